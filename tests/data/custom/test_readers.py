"""A hospital's own folders, videos and volumes are read to its own classes, pixel by pixel, or refused by name."""

import pickle
import re
import shutil
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from shared_components.commands.check_data import check
from shared_components.data.check import check_site, readable_samples
from shared_components.data.samples import SampleSpec, read_sample, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.inference.video import frames_of, look_at
from tests.data.conftest import write
from tests.data.custom import conftest
from tests.data.custom.conftest import CLASSES, FRAMES, assert_read, canonical, colours, image, values, write_video
from tests.data.volumes import write_labels


def put(root: Path, files: Mapping[str, Any]) -> None:
    """Write an image per array, a volume per list of masks and a video per number of frames; None removes a file."""
    for name, content in files.items():
        if content is None:
            (root / name).unlink()
        elif isinstance(content, int):
            write_video(root / name, content)
        elif isinstance(content, list):
            write_labels(root / name, content)
        else:
            write(root / name, content)


def refusal(path: Path) -> str:
    """Return the only problem that a check of the site reports, in one line."""
    (problem,) = {str(problem) for problem in check_site(load_site(path))}
    assert "\n" not in problem
    return problem


@pytest.mark.parametrize(("kind", "laid", "images", "masks"), [
    ("frames", None, None, None), ("nifti", None, None, None),
    ("frames", ("{v}/{n}.png", "masks/{v}/{n}.png"), "{video}", "masks/{video}"),
    ("frames", ("{v}/{v}-raw/{n}.png", "{v}/{v}-label/{n}.png"), "{video}/{video}-raw", "{video}/{video}-label"),
    # colours as `surgfl segment` writes them, with a volume of labels or with masks of the frames' numbers
    ("nifti", ("frames/{v}.nii", "labels/{v}.nii.gz"), "frames/{video}.nii", "labels/{video}.nii.gz"),
    ("frames", ("frames/{v}.nii", "masks/{v}/f{n:03d}.png"), "frames/{video}.nii", "masks/{video}/f*.png"),
])  # fmt: skip
def test_a_site_of_ones_own_is_read_where_its_templates_say(kind, laid, images, masks, own_site, tmp_path):
    site = load_site(own_site(kind, laid, images=images, masks=masks))
    assert (site.dataset, site.classes) == (kind, CLASSES)
    assert site.source.reader.videos(tmp_path) == ["a", "b", "c"]
    assert check_site(site) == []
    frames = samples(site, "train")
    assert [sample.index for sample in frames] == list(range(FRAMES))
    for index, sample in enumerate(frames):
        item = read_sample(pickle.loads(pickle.dumps(sample)))  # as another process gets it
        np.testing.assert_array_equal(item.images, image(index)[None])
        np.testing.assert_array_equal(item.targets["label"], canonical(index))
        assert item.name == f"a-{index}"


@pytest.mark.parametrize(
    ("kind", "names"),
    [("frames", "wxyz"), ("nifti", ("op_00-10-57", "op_00-11-49", "op_00-12-42", "op_00-13-03"))],  # times of day
)
def test_images_are_counted_in_the_order_of_names_without_frame_numbers(kind, names, own_site, tmp_path):
    path = own_site(kind)
    for folder in ("images", "masks") if kind == "frames" else ("images",):
        for index, name in enumerate(names):
            (tmp_path / folder / f"a/f{index:03d}.png").rename(tmp_path / folder / f"a/{name}.png")
    assert [sample.index for sample in samples(load_site(path), "train")] == [0, 1, 2, 3]
    assert_read(path)


@pytest.mark.parametrize("first", [0, 1])
def test_masks_are_of_the_frame_of_the_video_that_their_number_says(first, own_site, tmp_path):
    path = own_site(images="videos/{video}.mp4", masks="numbered/{video}", first_frame=first)
    for video in "abc":
        write_video(tmp_path / f"videos/{video}.mp4", frames=12)
        for index, number in enumerate((9, 3, 7)):
            write(tmp_path / f"numbered/{video}/f{number + first}.png", values(index))

    site = load_site(path)
    frames = samples(site, "train")
    assert check_site(site) == []
    assert [sample.index for sample in frames] == [3 + first, 7 + first, 9 + first]
    whole = [frame for _, frame, _ in frames_of(look_at(tmp_path / "videos/a.mp4"))]
    for sample, number, drawn in zip(frames, (3, 7, 9), (1, 2, 0), strict=True):
        item = read_sample(sample)
        np.testing.assert_array_equal(item.images[0], whole[number])
        np.testing.assert_array_equal(item.targets["label"], canonical(drawn))


def test_a_volume_may_be_of_a_video_file_and_clips_show_its_frames(own_site, tmp_path):
    path = own_site("nifti", images="{video}.mp4", rate=25.0)
    for video in "abc":
        write_video(tmp_path / f"{video}.mp4")
    (*_, last) = samples(load_site(path), "train", SampleSpec(frames=3, interval=0.04))
    item = read_sample(last)
    assert [round(int(frame[0, 0, 2]) / 10) for frame in item.images] == [1, 2, 3]
    np.testing.assert_array_equal(item.targets["label"], canonical(3))
    assert check_site(load_site(path), full=False) == []


@pytest.mark.parametrize("alpha", [False, True])
def test_masks_may_be_colours_with_transparent_background(alpha, own_site, tmp_path):
    path = own_site(ids={"#ff8000": "irrigator", "0, 64, 255": "bulldog clamp"})
    for index in range(FRAMES):
        mask = colours(index)
        if alpha:
            there = (canonical(index) > 0).astype(np.uint8)
            mask = np.dstack([mask + np.uint8(9) * (1 - there[..., None]), 255 * there])
        write(tmp_path / f"masks/a/f{index:03d}.png", mask)
    assert_read(path)


def write_palette(path: Path, index: int, **options: int) -> None:
    drawn = Image.fromarray(canonical(index), "P")
    drawn.putpalette([*conftest.COLOURS[0], *conftest.COLOURS[2], *conftest.COLOURS[1]])
    drawn.save(path, **options)


@pytest.mark.parametrize("ids", [{1: CLASSES[1], 2: CLASSES[2]}, {"#0040ff": CLASSES[1], "#ff8000": CLASSES[2]}])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_palette_is_read_by_its_places_or_its_colours(bits, ids, own_site, tmp_path):
    path = own_site(ids=ids)
    for index in range(FRAMES):
        write_palette(tmp_path / f"masks/a/f{index:03d}.png", index, bits=bits)
    assert_read(path)


def test_a_palette_whose_pixels_cannot_be_unpacked_is_damaged(own_site, tmp_path):
    """OpenCV reads what can be had of it."""
    path, first = own_site(ids={1: "bulldog clamp", 2: "irrigator"}), tmp_path / "masks/a/f000.png"
    for index in range(FRAMES):
        write_palette(tmp_path / f"masks/a/f{index:03d}.png", index)
    data = first.read_bytes()
    place = data.index(b"IDAT")
    length = int.from_bytes(data[place - 4 : place], "big")
    chunk = b"IDAT" + data[place + 4 : place + 4 + length - 4] + bytes(4)  # another checksum of the pixels
    first.write_bytes(data[:place] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + data[place + 8 + length :])
    with pytest.raises(SiteError, match=r"f000\.png: is not a readable image"):
        readable_samples(load_site(path), "train")


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "tiff"])
def test_other_endings_grey_frames_and_16_bits_do(ending, own_site, tmp_path):
    path = own_site(ids={40: "irrigator", 1000: "bulldog clamp"} if ending.startswith("tif") else conftest.IDS)
    for index in range(FRAMES):
        mask = values(index).astype(np.uint16 if ending.startswith("tif") else np.uint8)
        mask[mask == 200] = 1000 if ending.startswith("tif") else 200
        (tmp_path / f"masks/a/f{index:03d}.png").unlink()
        write(tmp_path / f"masks/a/f{index:03d}.{ending}", mask)
        (tmp_path / f"images/a/f{index:03d}.png").unlink()
        write(tmp_path / f"images/a/f{index:03d}.jpg", image(index)[..., 0])
    assert_read(path)
    item = read_sample(samples(load_site(path), "train")[0])
    assert item.images[0].shape == image(0).shape and (item.images[..., 0] == item.images[..., 2]).all()


def test_what_is_not_labelled_is_no_sample_where_the_site_says_so(own_site, tmp_path):
    path = own_site(partly_labelled=True)
    (tmp_path / "masks/a/f001.png").unlink()
    assert [sample.index for sample in samples(load_site(path), "train")] == [0, 2, 3]
    path = own_site("nifti", partly_labelled=True)
    write_labels(tmp_path / "masks/a.nii.gz", [values(0), 0 * values(0), values(2), 0 * values(0)])
    assert [sample.index for sample in samples(load_site(path), "train")] == [0, 2]
    assert_read(path, (0, 2))


def test_a_volume_turned_by_another_program_is_read_the_same_or_as_stored(own_site, tmp_path):
    path = own_site("nifti")
    array = np.stack([values(index) for index in range(FRAMES)]).transpose(2, 1, 0)
    nib.save(nib.Nifti1Image(array[::-1, ::-1], np.eye(4)), tmp_path / "masks/a.nii.gz")
    assert_read(path)
    path = own_site("nifti", axes="stored")
    nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "masks/a.nii.gz")
    assert_read(path)


# ---- bad input

FILE = "masks/a/f000.png"
VOLUME = "masks/a.nii.gz"
BAD = [
    ("frames", {"masks/a/f001.png": None, "masks/a/g001.png": values(1)},
     r"masks/a: contains masks without an image in .*images/a of the same name: g001\.png; "),
    ("frames", {"masks/a/f001.png": None, **{f"images/a/f{index:03d}.png": image(0) for index in range(5, 10)}},
     r"/a: contains images without a mask .*: f001\.png, f005\.png, f006\.png and 3 more; .*partly_labelled: true"),
    ("frames", {"images/a/f001.jpg": image(1)}, r"images/a/f001\.png: is of the same frame as f001\.jpg; keep one"),
    ("frames", {FILE: None, "masks/a/f000.jpg": values(0)}, "is JPEG, which blurs values"),
    ("frames", {FILE: colours(0)}, "is in colours, and 'ids' of site.yaml names numbers"),
    ("frames", {FILE: np.dstack([colours(0), values(0)])}, r"has \d+ half-transparent pixels"),
    ("frames", {FILE: values(0)[:-1]}, "mask is 32x23 but its image .* is 32x24"),
    ("frames", {FILE: None, "masks/a/f000.tif": values(0).astype(np.float32)}, "contains float32 values"),
    ("frames", {FILE: colours(0).astype(np.uint16)}, "contains uint16 values in colours"),
    ("nifti", {VOLUME: [values(0)] * 3}, r"a\.nii\.gz: has 3 frames, but its video has 4; export it again"),
    ("nifti", {VOLUME: [values(0)] * 5}, r"a\.nii\.gz: has 5 frames, but its video has 4; export it again"),
    ("nifti", {VOLUME: [values(0)[1:]] * 4}, r"a\.nii\.gz: has frames of 32x23, but its video is 32x24; export it"),
    ("nifti", {"images/a/f002.png": image(2)[:-2]}, r"a\.nii\.gz/000002: mask is 32x24 but .*f002\.png is 32x22"),
    ("nifti", {VOLUME: None}, r"a\.nii\.gz: is missing; put the label volume there"),
    ("none labelled", {VOLUME: [0 * values(0)] * 4}, r"a\.nii\.gz: has no label in any frame; "),
    ("video files", {f"{video}.mp4": 3 for video in "abc"},
     r"a\.mp4: has frames 0 to 2, and there are masks of others: f003\.png; .*first_frame: 1"),
    ("video files", {"masks/a/f0001.png": values(1), **{f"{video}.mp4": 4 for video in "abc"}},
     r"f001\.png: has the same frame number as f0001\.png|f0001\.png: has the same"),
]  # fmt: skip


@pytest.mark.parametrize(("site", "files", "sentence"), BAD)
def test_what_is_wrong_with_ones_own_data_is_one_sentence(site, files, sentence, own_site, tmp_path):
    path = {
        "frames": own_site,
        "nifti": partial(own_site, "nifti"),
        "none labelled": partial(own_site, "nifti", partly_labelled=True),
        "video files": partial(own_site, images="{video}.mp4", split={"train": ["a"]}),
    }[site]()
    put(tmp_path, files)
    assert re.search(sentence, refusal(path))


def test_a_jpeg_that_calls_itself_png_is_seen(own_site, tmp_path):
    path = own_site()
    write(tmp_path / "other.jpg", values(0))
    (tmp_path / "other.jpg").rename(tmp_path / FILE)
    assert "is JPEG" in refusal(path)


@pytest.mark.parametrize(("kind", "times", "sentence"), [
    ("frames", FRAMES, "masks/a/f000.png: contains 200 (40 pixels), which 'ids' of site.yaml"),
    ("nifti", 1, "a.nii.gz: contains 200 (160 pixels) (in 4 of 4 frames), which 'ids'"),
])  # fmt: skip
def test_values_that_the_table_does_not_have_are_said_once_with_their_pixels(kind, times, sentence, own_site, capsys):
    assert check(own_site(kind, ids={40: "irrigator"}, split={"train": ["a"]}), SampleSpec(), full=True)
    output = capsys.readouterr().out
    assert output.count("does not name") == times and sentence in output
    assert "such as '200: ignore', or correct the mask" in output


@pytest.mark.parametrize("empty", ["images", "masks"])
def test_an_empty_folder_is_named(empty, own_site, tmp_path):
    path = own_site(split={"train": ["b"]})
    site = load_site(path)
    shutil.rmtree(tmp_path / empty / "b")
    (tmp_path / empty / "b").mkdir()
    problem = {str(problem) for problem in check_site(site)}.pop()
    assert f"{empty}/b" in problem or "has no video 'b'" in problem
