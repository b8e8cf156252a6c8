"""What is particular to the layouts of the EndoVis challenges and of SCARED."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from shared_components.data.files import DataError
from shared_components.data.readers import find_reader
from tests.data.conftest import COLOURS_2018, H, W, canonical_mask, frame_image, write, write_scared


def test_two_videos_of_one_name_are_refused(tmp_path):
    for release in ("release_1", "release_2"):
        write(tmp_path / release / "seq_1/left_frames/frame000.png", frame_image(0))

    with pytest.raises(DataError, match="two videos named 'seq_1'"):
        find_reader("endovis2018").videos(tmp_path)


def test_endovis2017_crops_challenge_frames_to_the_camera_picture(tmp_path):
    image = np.zeros((1080, 1920, 3), dtype=np.uint8)
    mask = np.zeros((1080, 1920), dtype=np.uint8)
    image[28, 320], image[1051, 1599], mask[28, 320], mask[1051, 1599] = 200, 100, 10, 30
    write(tmp_path / "frame000.png", image)
    write(tmp_path / "Left_labels/frame000.png", mask)
    reader = find_reader("endovis2017")

    cropped = reader.read_image(tmp_path / "frame000.png")
    parts = reader.read_target("label", (tmp_path / "Left_labels/frame000.png",))

    assert cropped.shape == (1024, 1280, 3)
    assert parts.shape == (1024, 1280)
    assert (cropped[0, 0, 0], cropped[-1, -1, 0]) == (200, 100)
    assert (parts[0, 0], parts[-1, -1]) == (1, 3)


def test_endovis2017_gives_overlaps_to_the_part_nearest_the_tip(tmp_path):
    # columns: shaft over clasper, other over wrist, wrist over shaft
    write(tmp_path / "a.png", np.array([[10, 40, 20]], dtype=np.uint8))
    write(tmp_path / "b.png", np.array([[30, 20, 10]], dtype=np.uint8))

    parts = find_reader("endovis2017").read_target("label", (tmp_path / "a.png", tmp_path / "b.png"))

    assert parts.tolist() == [[3, 2, 2]]


def test_endovis2017_reads_the_cropped_layout_of_ternaus(tmp_path):
    folder = tmp_path / "instrument_dataset_1"
    write(folder / "images/frame000.jpg", frame_image(0))
    write(folder / "parts_masks/frame000.png", canonical_mask(0) * 85)
    reader = find_reader("endovis2017")

    ((_, image, files),) = reader.frames(tmp_path, "instrument_dataset_1")

    np.testing.assert_array_equal(reader.read_target("label", files["label"]), canonical_mask(0))
    assert reader.read_image(image).shape == (H, W, 3)


def test_endovis2018_puts_wrist_before_clasper_and_tissue_to_background(tmp_path):
    # official ids 1 shaft, 2 clasper, 3 wrist, 4 kidney, 11 ultrasound probe
    colours = [(0, 255, 0), (0, 255, 255), (125, 255, 12), (255, 55, 0), (12, 255, 141)]
    write(tmp_path / "frame000.png", np.array([colours], dtype=np.uint8))
    assert find_reader("endovis2018").read_target("label", (tmp_path / "frame000.png",)).tolist() == [[1, 3, 2, 0, 0]]


def test_endovis2018_refuses_an_unknown_colour_by_file_and_colour(tmp_path):
    label = np.array([[COLOURS_2018[0], (1, 2, 3)]], dtype=np.uint8)
    write(tmp_path / "frame007.png", label)

    with pytest.raises(DataError, match=r"frame007\.png: holds the unknown colour \(1, 2, 3\) at row 0, column 1"):
        find_reader("endovis2018").read_target("label", (tmp_path / "frame007.png",))


def test_real_endovis2015_has_40_frames_per_surgery_of_three_classes(real_data):
    reader = find_reader("endovis2015_rigid")
    root = real_data / "endovis2015_rigid"

    assert reader.videos(root) == ["OP1", "OP2", "OP3", "OP4"]
    for video in reader.videos(root):
        listing = reader.frames(root, video)
        assert [number for number, _, _ in listing] == list(range(1, 41))
        masks = [reader.read_target("label", files["label"]) for _, _, files in listing]
        assert set(np.unique(masks)) == {0, 1, 2}
        assert {reader.read_image(image).shape for _, image, _ in listing} == {(480, 640, 3)}


def test_real_endovis2017_masks_map_to_the_published_part_ids(real_data):
    reader = find_reader("endovis2017")
    paths = sorted((real_data / "endovis2017/masks").glob("*.png"))

    assert len(paths) == 6
    for path in paths:
        parts = reader.read_target("label", (path,))
        published = cv2.imread(str(path.parents[1] / "masks_parts_ids" / path.name), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(parts, published[28:1052, 320:1600])
        assert set(np.unique(parts)) == {0, 1, 2, 3}
        assert (parts > 0).sum() == (published > 0).sum()  # the crop cuts no instrument
        assert reader.read_image(path.parents[1] / "images" / path.name).shape == (1024, 1280, 3)


def test_real_endovis2017_instruments_merge_to_the_published_mask(real_data):
    reader = find_reader("endovis2017")
    folder = real_data / "endovis2017"
    instruments = tuple(folder / "intel_per_instrument" / f"{side}_frame.png" for side in ("left", "right"))

    np.testing.assert_array_equal(
        reader.read_target("label", instruments), reader.read_target("label", (folder / "masks/intel_frame.png",))
    )


def test_scared_keyframes_are_videos_in_the_folder_of_a_split_too(tmp_path):
    names = ["dataset_1/keyframe_1", "dataset_1/keyframe_2", "dataset_2/keyframe_1"]
    assert write_scared(tmp_path / "training", 3, 2) == find_reader("scared").videos(tmp_path) == names
    numbers = [number for number, _, _ in find_reader("scared").frames(tmp_path, names[1])]
    assert numbers == [0, 1]


def test_scared_misses_no_depth_between_the_depth_maps(tmp_path):
    write_scared(tmp_path, 1, 13)
    folder = tmp_path / "dataset_1/keyframe_1/data/depthmap_undistorted"
    for number in set(range(13)) - {0, 3, 9, 12}:  # every third has depth, and that of 6 is missing
        (folder / f"{number:06d}.png").unlink()

    listing = find_reader("scared").frames(tmp_path, "dataset_1/keyframe_1")

    assert [number for number, _, _ in listing] == [0, 3, 6, 9, 12]
    assert listing[2][2] == {"depth": (folder / "000006.png",)}
    assert len(find_reader("scared").images(tmp_path, "dataset_1/keyframe_1")) == 13


def test_scared_without_any_depth_is_refused(tmp_path):
    write(tmp_path / "dataset_1/keyframe_1/data/left_undistorted/000000.png", frame_image(0))

    with pytest.raises(DataError, match="depthmap_undistorted: holds no depth maps"):
        find_reader("scared").frames(tmp_path, "dataset_1/keyframe_1")
