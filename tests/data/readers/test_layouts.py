"""Layouts of AutoLaparo, EndoVis, SCARED, SAR-RARP50 (and its unpacking) and Sisvse."""

import shutil
from itertools import pairwise

import cv2
import numpy as np
import pytest

from shared_components.commands import unpack_sar_rarp50
from shared_components.data.check import check_site
from shared_components.data.files.classes import CLASS_MAPS, merge_classes
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.readers.sar_rarp50 import unpack
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site_file import load_site
from tests.data import conftest as layouts
from tests.data.conftest import COLOURS_2018, H, W, canonical_mask, frame_image, run_command, write, write_yaml

SAR_RARP50, SISVSE = find_reader("sar_rarp50"), find_reader("sisvse")


@pytest.mark.parametrize(("frames", "numbers"), [
    ((1, 2, 3, 4, 5, 6), (1001, 1002, 1003, 1004, 1005, 1006)),
    ((1, 25, 50, 75, 100, 125), (1000, 1001, 1002, 1003, 1004, 1005)),
    ((0, 25, 50, 75, 100, 125), (1000, 1001, 1002, 1003, 1004, 1005)), ((1, 3, 5), (1001, 1003, 1005)),
])  # fmt: skip
def test_autolaparos_frames_are_a_second_apart_by_either_numbering(frames, numbers, tmp_path):
    for clip in (1, 2):
        for index, frame in enumerate(frames):
            write(tmp_path / f"imgs/{clip:03d}{frame:03d}.jpg", frame_image(index))
            write(tmp_path / f"masks/{clip:03d}{frame:03d}.png", np.full((H, W), 20, np.uint8))
    reader = find_reader("autolaparo")
    assert reader.videos(tmp_path) == ["001", "002"] and tuple(reader.images(tmp_path, "001")) == numbers
    split = {"train": ["001"], "validation": ["002"]}
    site = load_site(write_yaml(tmp_path / "site.yaml", {"dataset": "autolaparo", "root": ".", "split": split}))
    interval = float(numbers[1] - numbers[0])
    listed = samples(site, "train", SampleSpec(frames=2, interval=interval, targets_of="all"))
    shown = [tuple(int(image.stem[3:]) for image in sample.images) for sample in listed[1:]]
    assert shown == list(pairwise(frames))
    missing = tmp_path / f"imgs/001{frames[2]:03d}.jpg"
    missing.unlink()
    assert [problem.file for problem in check_site(site)] == [missing]


def test_frames_of_one_second_videos_of_one_name_and_other_folders_are_refused(tmp_path):
    for frame in (1, 5, 25, 50, 75, 100, 125):
        write(tmp_path / f"imgs/007{frame:03d}.jpg", frame_image(0))
    with pytest.raises(DataError, match=r"007005.jpg: is of the same second as 007001.jpg, at 25 frame numbers"):
        find_reader("autolaparo").videos(tmp_path)
    for release in ("release_1", "release_2"):
        write(tmp_path / release / "seq_1/left_frames/frame000.png", frame_image(0))
    with pytest.raises(DataError, match="two videos named 'seq_1'"):
        find_reader("endovis2018").videos(tmp_path)
    with pytest.raises(DataError, match=r"contains no sets of images and masks .*; set 'root' to the folder miccai"):
        SISVSE.videos(tmp_path)


def write_scared(root, scale, *, z=80.0, depth=80.0):
    """Write a keyframe whose depth map is `z` mm deep, and two exports of `depth` mm."""
    data = root / "dataset_1/keyframe_1/data"
    points = np.full((H, W, 3), np.nan, np.float32)
    points[2:] = 5, -7, z  # X, Y, Z in the file
    write(data.parent / "left_depth_map.tiff", points)
    for number in (0, 1):
        write(data / f"left_undistorted/{number:06d}.png", frame_image(number))
        exported = np.full((H, W), round(depth * scale), np.uint16)
        exported[:2] = 0
        write(data / f"depthmap_undistorted/{number:06d}.png", exported)


@pytest.mark.parametrize("scale", [256, 128])
def test_scareds_depth_is_in_millimetres_by_either_scale_of_the_export(scale, tmp_path):
    write_scared(tmp_path, scale, depth=88.0)
    reader = find_reader("scared")
    for _, _, files in reader.frames(tmp_path, "dataset_1/keyframe_1"):
        depth = reader.read_target("depth", files["depth"])
        assert depth.dtype == np.float32 and not depth[:2].any()
        np.testing.assert_allclose(depth[2:], 88.0)


def test_scareds_depth_of_another_scale_is_refused_and_without_the_keyframe_it_is_256(tmp_path):
    write_scared(tmp_path, 64)
    reader = find_reader("scared")
    ((_, _, files), _) = reader.frames(tmp_path, "dataset_1/keyframe_1")
    with pytest.raises(DataError, match=r"000000.png: has a median depth of 20 mm, and left_depth_map.tiff of 80"):
        reader.read_target("depth", files["depth"])
    (tmp_path / "dataset_1/keyframe_1/left_depth_map.tiff").unlink()
    assert reader.read_target("depth", files["depth"]).max() == 20


def test_endovis2017_is_cropped_gives_overlaps_to_the_tip_and_has_the_layout_of_ternaus(tmp_path):
    image = np.zeros((1080, 1920, 3), dtype=np.uint8)
    mask = np.zeros((1080, 1920), dtype=np.uint8)
    image[28, 320], image[1051, 1599], mask[28, 320], mask[1051, 1599] = 200, 100, 10, 30
    write(tmp_path / "frame000.png", image)
    write(tmp_path / "Left_labels/frame000.png", mask)
    reader = find_reader("endovis2017")
    cropped = reader.read_image(tmp_path / "frame000.png")
    parts = reader.read_target("label", (tmp_path / "Left_labels/frame000.png",))
    assert (cropped.shape, parts.shape) == ((1024, 1280, 3), (1024, 1280))
    assert (cropped[0, 0, 0], cropped[-1, -1, 0]) == (200, 100)
    assert (parts[0, 0], parts[-1, -1]) == (1, 3)
    # columns: shaft over clasper, other over wrist, wrist over shaft
    write(tmp_path / "a.png", np.array([[10, 40, 20]], dtype=np.uint8))
    write(tmp_path / "b.png", np.array([[30, 20, 10]], dtype=np.uint8))
    parts = find_reader("endovis2017").read_target("label", (tmp_path / "a.png", tmp_path / "b.png"))
    assert parts.tolist() == [[3, 2, 2]]
    folder = tmp_path / "instrument_dataset_1"
    write(folder / "images/frame000.jpg", frame_image(0))
    write(folder / "parts_masks/frame000.png", canonical_mask(0) * 85)
    reader = find_reader("endovis2017")
    ((_, image, files),) = reader.frames(tmp_path, "instrument_dataset_1")
    np.testing.assert_array_equal(reader.read_target("label", files["label"]), canonical_mask(0))
    assert reader.read_image(image).shape == (H, W, 3)
    shutil.rmtree(folder / "parts_masks")
    assert reader.images(tmp_path, "instrument_dataset_1") == {0: image}


def test_endovis2018_puts_wrist_before_clasper_tissue_to_background_and_refuses_other_colours(tmp_path):
    # official ids 1 shaft, 2 clasper, 3 wrist, 4 kidney, 11 ultrasound probe
    colours = [(0, 255, 0), (0, 255, 255), (125, 255, 12), (255, 55, 0), (12, 255, 141)]
    write(path := tmp_path / "frame007.png", np.array([colours], dtype=np.uint8))
    assert find_reader("endovis2018").read_target("label", (path,)).tolist() == [[1, 2, 3, 4, 11]]
    merged = merge_classes(np.array([[1, 2, 3, 4, 11]]), CLASS_MAPS["scene"], CLASS_MAPS["parts"])
    assert merged.tolist() == [[1, 3, 2, 0, 0]]
    write(path, np.array([[COLOURS_2018[0], (1, 2, 3)]], dtype=np.uint8))
    with pytest.raises(DataError, match=r"frame007\.png: has the unknown colour \(1, 2, 3\) at row 0, column 1"):
        find_reader("endovis2018").read_target("label", (path,))


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


def test_real_endovis2017_masks_and_instruments_map_to_the_published_ids(real_data):
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
    folder = real_data / "endovis2017"
    instruments = tuple(folder / "intel_per_instrument" / f"{side}_frame.png" for side in ("left", "right"))
    merged = reader.read_target("label", (folder / "masks/intel_frame.png",))
    np.testing.assert_array_equal(reader.read_target("label", instruments), merged)


def test_scared_keyframes_are_videos_and_only_a_keyframe_without_depth_is_refused(tmp_path):
    names = ["dataset_1/keyframe_1", "dataset_1/keyframe_2", "dataset_2/keyframe_1"]
    reader, root = find_reader("scared"), tmp_path / "split"
    assert layouts.write_scared(root / "training", 3, 2) == reader.videos(root) == names
    assert [number for number, _, _ in reader.frames(root, names[1])] == [0, 1]
    layouts.write_scared(tmp_path, 1, 13)
    folder = tmp_path / "dataset_1/keyframe_1/data/depthmap_undistorted"
    for number in set(range(13)) - {0, 3, 9, 12}:  # every third has depth, and that of 6 is missing
        (folder / f"{number:06d}.png").unlink()
    listing = reader.frames(tmp_path, "dataset_1/keyframe_1")
    assert [number for number, _, _ in listing] == [0, 3, 6, 9, 12]
    assert listing[2][2] == {"depth": (folder / "000006.png",)}
    assert len(reader.images(tmp_path, "dataset_1/keyframe_1")) == 13
    write(tmp_path / "bare/dataset_1/keyframe_1/data/left_undistorted/000000.png", frame_image(0))
    with pytest.raises(DataError, match="depthmap_undistorted: has no depth maps"):
        reader.frames(tmp_path / "bare", "dataset_1/keyframe_1")


def labelled(root) -> list[int]:
    """Return the numbers of the frames of video_1 that have or miss a mask."""
    return [number for number, _, _ in SAR_RARP50.frames(root, "video_1")]


def test_no_mask_is_missed_between_labelled_frames_or_at_the_end_at_1_hz(tmp_path):
    layouts.write_sar_rarp50(tmp_path, 1, 3)
    write(tmp_path / "train1/video_1/rgb/000000180.png", frame_image(3))  # after the last mask
    assert labelled(tmp_path) == [0, 60, 120]
    root = tmp_path / "at 1 Hz"
    for number in (0, 60, 120):
        write(root / f"video_1/rgb/{number:09d}.png", frame_image(0))
        write(root / f"video_1/segmentation/{number:09d}.png", canonical_mask(0))
    (root / "video_1/segmentation/000000120.png").unlink()
    assert labelled(tmp_path / "at 1 Hz") == [0, 60, 120]


@pytest.mark.parametrize(
    ("clip", "expected"), [({}, [0, 60, 120]), ({"frames": 4, "interval": 0.2}, [0, 24, 36, 48, 60, 84, 96, 108, 120])]
)
def test_unpacking_writes_exactly_the_labelled_frames_and_those_of_their_clips(clip, expected, packed_video):
    with pytest.raises(DataError, match=r"video_1: has no frames in rgb/; run 'surgfl unpack-sar-rarp50"):
        labelled(packed_video.parent)
    assert unpack(packed_video, **clip) == len(expected)
    assert unpack(packed_video, **clip) == 0
    images = SAR_RARP50.images(packed_video.parent, "video_1")
    assert list(images) == expected and labelled(packed_video.parent) == [0, 60, 120]
    for number, path in images.items():
        assert abs(SAR_RARP50.read_image(path)[..., 1].mean() - 2 * number) < 1  # frames differ by 2


def test_unpacking_misses_no_mask_at_the_start_and_refuses_partial_frames_and_short_videos(packed_video, tmp_path):
    (packed_video / "segmentation/000000000.png").unlink()
    unpack(packed_video, frames=3, interval=0.5)
    assert sorted(SAR_RARP50.images(packed_video.parent, "video_1")) == [30, 60, 90, 120]
    assert labelled(packed_video.parent) == [60, 120]
    with pytest.raises(ValueError, match=r"0\.17 s is no whole number of frames at 60 a second"):
        unpack(packed_video, frames=4, interval=0.17)
    write(packed_video / "segmentation/000000180.png", canonical_mask(0))
    with pytest.raises(DataError, match=r"video_left\.avi: is missing, damaged or ends before frame"):
        unpack(packed_video)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"contains no video_\* folders"):
        run_command(unpack_sar_rarp50, tmp_path / "empty")


def test_images_of_real_sets_lie_in_one_folder_and_numbers_are_places_in_natural_order(tmp_path):
    layouts.write_sisvse(tmp_path, 8, 2)
    first, second = (SISVSE.frames(tmp_path, name) for name in ("real_train_1", "real_val_1"))
    folders = {image.parent for _, image, _ in (*first, *second)}
    assert folders == {tmp_path / "images/real"}
    assert {image for _, image, _ in first}.isdisjoint(image for _, image, _ in second)
    assert SISVSE.images(tmp_path, "real_train_1") == {number: image for number, image, _ in first}
    assert "real" not in SISVSE.videos(tmp_path)
    layouts.write_sisvse(tmp_path / "few", 2, 11)  # ..._2 comes before ..._10
    listing = SISVSE.frames(tmp_path / "few", "manual_syn")
    endings = [int(image.stem.split("_")[-1]) for _, image, _ in listing]
    listing[3][1].unlink()
    listing[5][2]["label"][0].unlink()
    assert endings == [number for number, _, _ in listing] == list(range(11))
    assert SISVSE.frames(tmp_path / "few", "manual_syn") == listing
    assert set(SISVSE.images(tmp_path / "few", "manual_syn")) == set(range(11)) - {3}
