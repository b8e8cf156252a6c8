"""Every public layout is read to the same canonical pixels."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from shared_components.data.classes import CLASS_MAPS
from shared_components.data.files import DataError
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.readers.sar_rarp50 import unpack


def as_read(dataset: str, mask: np.ndarray) -> np.ndarray:
    """Merge the parts of a canonical mask that a dataset does not tell apart."""
    return np.minimum(mask, {"endovis2015_rigid": 2, "grasp": 1}.get(dataset, 3))


@pytest.fixture(params=reader_names())
def dataset(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_reader_has_a_layout_here(layouts):
    assert reader_names() == sorted(layouts.WRITERS)


def test_every_layout_gives_canonical_ids_pixel_by_pixel(segmented, tmp_path, layouts):
    dataset, reader = segmented, find_reader(segmented)
    names = layouts.WRITERS[dataset](tmp_path, 3, 4)
    classes = set(range(len(CLASS_MAPS[reader.CLASS_MAP])))

    assert reader.videos(tmp_path) == names
    for video in names:
        listing = reader.frames(tmp_path, video)
        assert len(listing) == 4
        for index, (_, image, files) in enumerate(listing):
            mask = reader.read_target("label", files["label"])
            assert set(np.unique(mask)) == classes
            if reader.native_targets(video):
                mask = mask[::2, ::2]
            np.testing.assert_array_equal(mask, as_read(dataset, layouts.canonical_mask(index)))
            layouts.assert_frame(reader.read_image(image), index, image)


def test_a_frame_without_its_target_or_image_is_listed_with_the_name_it_should_have(dataset, tmp_path, layouts):
    reader = find_reader(dataset)
    video = layouts.WRITERS[dataset](tmp_path, 1, 4)[0]
    whole = reader.frames(tmp_path, video)
    next(iter(whole[1][2].values()))[0].unlink()

    listing = reader.frames(tmp_path, video)
    whole[2][1].unlink()

    assert len(listing) == 4 and listing[1][2] == whole[1][2]
    assert len(reader.frames(tmp_path, video)) == 4


def test_videos_are_in_natural_order(dataset, tmp_path, layouts):
    names = layouts.WRITERS[dataset](tmp_path, 11, 1)

    assert find_reader(dataset).videos(tmp_path) == names


def test_two_videos_of_one_name_are_refused(tmp_path, layouts):
    for release in ("release_1", "release_2"):
        layouts.write(tmp_path / release / "seq_1/left_frames/frame000.png", layouts.frame_image(0))

    with pytest.raises(DataError, match="two videos named 'seq_1'"):
        find_reader("endovis2018").videos(tmp_path)


def test_endovis2017_crops_challenge_frames_to_the_camera_picture(tmp_path, layouts):
    image = np.zeros((1080, 1920, 3), dtype=np.uint8)
    mask = np.zeros((1080, 1920), dtype=np.uint8)
    image[28, 320], image[1051, 1599], mask[28, 320], mask[1051, 1599] = 200, 100, 10, 30
    layouts.write(tmp_path / "frame000.png", image)
    layouts.write(tmp_path / "Left_labels/frame000.png", mask)
    reader = find_reader("endovis2017")

    cropped = reader.read_image(tmp_path / "frame000.png")
    parts = reader.read_target("label", (tmp_path / "Left_labels/frame000.png",))

    assert cropped.shape == (1024, 1280, 3)
    assert parts.shape == (1024, 1280)
    assert (cropped[0, 0, 0], cropped[-1, -1, 0]) == (200, 100)
    assert (parts[0, 0], parts[-1, -1]) == (1, 3)


def test_endovis2017_gives_overlaps_to_the_part_nearest_the_tip(tmp_path, layouts):
    # columns: shaft over clasper, other over wrist, wrist over shaft
    layouts.write(tmp_path / "a.png", np.array([[10, 40, 20]], dtype=np.uint8))
    layouts.write(tmp_path / "b.png", np.array([[30, 20, 10]], dtype=np.uint8))

    parts = find_reader("endovis2017").read_target("label", (tmp_path / "a.png", tmp_path / "b.png"))

    assert parts.tolist() == [[3, 2, 2]]


def test_endovis2017_reads_the_cropped_layout_of_ternaus(tmp_path, layouts):
    folder = tmp_path / "instrument_dataset_1"
    layouts.write(folder / "images/frame000.jpg", layouts.frame_image(0))
    layouts.write(folder / "parts_masks/frame000.png", layouts.canonical_mask(0) * 85)
    reader = find_reader("endovis2017")

    ((_, image, files),) = reader.frames(tmp_path, "instrument_dataset_1")

    np.testing.assert_array_equal(reader.read_target("label", files["label"]), layouts.canonical_mask(0))
    assert reader.read_image(image).shape == (layouts.H, layouts.W, 3)


def test_endovis2018_puts_wrist_before_clasper_and_tissue_to_background(tmp_path, layouts):
    # official ids 1 shaft, 2 clasper, 3 wrist, 4 kidney, 11 ultrasound probe
    colours = [(0, 255, 0), (0, 255, 255), (125, 255, 12), (255, 55, 0), (12, 255, 141)]
    layouts.write(tmp_path / "frame000.png", np.array([colours], dtype=np.uint8))

    assert find_reader("endovis2018").read_target("label", (tmp_path / "frame000.png",)).tolist() == [[1, 3, 2, 0, 0]]


def test_endovis2018_refuses_an_unknown_colour_by_file_and_colour(tmp_path, layouts):
    label = np.array([[layouts.COLOURS_2018[0], (1, 2, 3)]], dtype=np.uint8)
    layouts.write(tmp_path / "frame007.png", label)

    with pytest.raises(DataError, match=r"frame007\.png: holds the unknown colour \(1, 2, 3\) at row 0, column 1"):
        find_reader("endovis2018").read_target("label", (tmp_path / "frame007.png",))


def test_sar_rarp50_puts_everything_but_the_tool_to_background(tmp_path, layouts):
    layouts.write(tmp_path / "000000000.png", np.arange(10, dtype=np.uint8)[None])

    parts = find_reader("sar_rarp50").read_target("label", (tmp_path / "000000000.png",))

    assert parts.tolist() == [[0, 3, 2, 1, 0, 0, 0, 0, 0, 0]]


def test_sar_rarp50_misses_no_mask_between_the_labelled_frames(tmp_path, layouts):
    layouts.WRITERS["sar_rarp50"](tmp_path, 1, 3)
    layouts.write(tmp_path / "train1/video_1/rgb/000000180.png", layouts.frame_image(3))  # after the last mask

    numbers = [number for number, _, _ in find_reader("sar_rarp50").frames(tmp_path, "video_1")]

    assert numbers == [0, 60, 120]


def test_sar_rarp50_misses_the_last_mask_where_frames_are_at_1_hz(tmp_path, layouts):
    for number in (0, 60, 120):
        layouts.write(tmp_path / f"video_1/rgb/{number:09d}.png", layouts.frame_image(0))
        layouts.write(tmp_path / f"video_1/segmentation/{number:09d}.png", layouts.canonical_mask(0))
    (tmp_path / "video_1/segmentation/000000120.png").unlink()

    numbers = [number for number, _, _ in find_reader("sar_rarp50").frames(tmp_path, "video_1")]

    assert numbers == [0, 60, 120]


@pytest.fixture
def packed_video(tmp_path: Path, layouts: ModuleType) -> Path:
    folder = tmp_path / "video_1"
    for index in (0, 1):
        layouts.write(folder / f"segmentation/{60 * index:09d}.png", layouts.canonical_mask(index))
    video = cv2.VideoWriter(str(folder / "video_left.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 60, (layouts.W, layouts.H))
    for number in range(70):
        video.write(np.full((layouts.H, layouts.W, 3), 3 * number, dtype=np.uint8))
    video.release()
    return folder


def test_sar_rarp50_asks_to_unpack_a_video_once(packed_video):
    with pytest.raises(DataError, match=r"video_1: has no frames in rgb/; run 'surgfl unpack-sar-rarp50"):
        find_reader("sar_rarp50").frames(packed_video.parent, "video_1")


def test_unpacking_sar_rarp50_writes_exactly_the_labelled_frames(packed_video):
    assert unpack(packed_video) == 2
    assert unpack(packed_video) == 0

    reader = find_reader("sar_rarp50")
    listing = reader.frames(packed_video.parent, "video_1")
    assert [number for number, _, _ in listing] == [0, 60]
    for number, image, _ in listing:
        assert abs(reader.read_image(image).mean() - 3 * number) < 1.5  # frames differ by 3


def test_unpacking_a_video_that_ends_too_early_is_refused(packed_video, layouts):
    layouts.write(packed_video / "segmentation/000000120.png", layouts.canonical_mask(0))

    with pytest.raises(DataError, match=r"video_left\.avi: is missing, damaged or ends before frame"):
        unpack(packed_video)


@pytest.mark.parametrize(
    ("dataset", "bad_id", "allowed"),
    [
        ("endovis2017", 50, "0, 10 shaft, 20 wrist, 30 clasper, 40 other"),
        ("sar_rarp50", 10, "0 to 9"),
        ("endovis2015_rigid", 71, "0, 160 shaft, 70 manipulator"),
        ("pfedsis_npy", 4, "0, 1 shaft, 2 wrist, 3 clasper"),
        ("sisvse", 32, "Sisvse classes are 0 to 31"),
        ("grasp", 8, "GraSP masks hold 0 and the instruments 1 to 7"),
        ("grasp", 255, "GraSP masks hold 0 and the instruments 1 to 7"),
    ],
)
def test_an_unknown_id_is_refused_by_file_id_and_what_is_allowed(dataset, bad_id, allowed, tmp_path, layouts):
    path = tmp_path / ("frame003.npy" if dataset == "pfedsis_npy" else "frame003.png")
    layouts.write(path, np.array([[0, bad_id]], dtype=np.uint8))

    with pytest.raises(DataError) as error:
        find_reader(dataset).read_target("label", (path,))

    message = str(error.value)
    assert message.startswith(f"{path}: mask holds unknown ids [{bad_id}]; ")
    assert allowed in message


@pytest.mark.parametrize(("dataset", "value", "read"), [("sisvse", 4, 2), ("grasp", 3, 1), ("sar_rarp50", 2, 2)])
@pytest.mark.parametrize("alpha", [4, 255])
def test_equal_channels_and_alpha_are_read_and_colours_refused(dataset, value, read, alpha, tmp_path, layouts):
    equal = np.full((2, 3, 4), value, dtype=np.uint8)
    equal[..., 3] = alpha
    coloured = equal.copy()
    coloured[1, 1, 0] = value + 1
    layouts.write(tmp_path / "equal.png", equal)
    layouts.write(tmp_path / "coloured.png", coloured)
    reader = find_reader(dataset)

    assert (reader.read_target("label", (tmp_path / "equal.png",)) == read).all()
    with pytest.raises(DataError, match="is a colour image, not a mask of ids"):
        reader.read_target("label", (tmp_path / "coloured.png",))


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


def test_scared_depth_is_millimetres_of_256_steps_and_0_where_unknown(tmp_path, layouts):
    reader = find_reader("scared")
    names = layouts.WRITERS["scared"](tmp_path / "training", 3, 2)

    assert reader.videos(tmp_path) == names
    assert names == ["dataset_1/keyframe_1", "dataset_1/keyframe_2", "dataset_2/keyframe_1"]
    for index, (number, image, files) in enumerate(reader.frames(tmp_path, names[1])):
        depth = reader.read_target("depth", files["depth"])
        assert number == index
        assert depth.dtype == np.float32
        np.testing.assert_array_equal(depth, layouts.depth_map(index) / 256.0)
        np.testing.assert_array_equal(reader.read_image(image), layouts.frame_image(index))


def test_scared_misses_no_depth_between_the_depth_maps(tmp_path, layouts):
    layouts.WRITERS["scared"](tmp_path, 1, 13)
    folder = tmp_path / "dataset_1/keyframe_1/data/depthmap_undistorted"
    for number in set(range(13)) - {0, 3, 9, 12}:  # every third has depth, and that of 6 is missing
        (folder / f"{number:06d}.png").unlink()

    listing = find_reader("scared").frames(tmp_path, "dataset_1/keyframe_1")

    assert [number for number, _, _ in listing] == [0, 3, 6, 9, 12]
    assert listing[2][2] == {"depth": (folder / "000006.png",)}
    assert len(find_reader("scared").images(tmp_path, "dataset_1/keyframe_1")) == 13


def test_scared_without_any_depth_is_refused(tmp_path, layouts):
    layouts.write(tmp_path / "dataset_1/keyframe_1/data/left_undistorted/000000.png", layouts.frame_image(0))

    with pytest.raises(DataError, match="depthmap_undistorted: holds no depth maps"):
        find_reader("scared").frames(tmp_path, "dataset_1/keyframe_1")
