"""GraSP: frame numbers are times in both editions, and lists name missing masks."""

import os

import numpy as np
import pytest

from shared_components.data.check import check_site
from shared_components.data.files.images import DataError
from shared_components.data.readers import find_reader
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import FOUR, canonical_mask, frame_image, numbers, write, write_grasp

READER = find_reader("grasp")


@pytest.fixture
def dense(tmp_path):
    """Make a site of one video of 2 s with images at 30 Hz, masks after 0.5 s and 1.5 s.

    `counted` turns an image's place into the number in its name.
    """

    def make(video: str, counted=lambda place: place) -> Site:
        for place in range(60):
            name = f"{video}/{counted(place):09d}"
            write(tmp_path / f"data/frames/{name}.jpg", np.full((8, 12, 3), 2 * place, dtype=np.uint8))
            if place in (15, 45):
                mask = np.full((8, 12), 7, dtype=np.uint8)
                write(tmp_path / f"data/annotations/segmentations/{name}.png", mask)
        (tmp_path / "site.yaml").write_text(f"dataset: grasp\nroot: data\nsplit: {{train: [{video}]}}\n")
        return load_site(tmp_path)

    return make


@pytest.mark.parametrize(("video", "counted", "names"), [
    ("CASE041", lambda place: place, [[0, 3, 9, 15], [27, 33, 39, 45]]),
    # no image has the name 59, which is 0.2 s before 68
    ("CASE001", lambda place: round(1.5 * place), [[0, 4, 14, 22], [40, 50, 58, 68]]),
])  # fmt: skip
def test_frames_of_clips_are_0_2_s_apart_in_cases_counted_by_30_and_by_45(video, counted, names, dense):
    site = dense(video, counted)
    clips = samples(site, "train", FOUR)
    assert check_site(site, FOUR) == [] and READER.CLASS_MAP == "foreground"
    assert [sample.index for sample in clips] == [15, 45]  # 0.5 s and 1.5 s
    assert [numbers(sample) for sample in clips] == names


@pytest.mark.parametrize(("video", "names", "expected"), [
    ("CASE001", (68, 1642, 3218), [45, 1095, 2145]), ("CASE053", (15, 1065), [15, 1065]),
])  # fmt: skip
def test_the_names_published_for_both_counts_are_35_seconds_apart(video, names, expected, tmp_path):
    for name in names:
        write(tmp_path / f"annotations/segmentations/{video}/{name:09d}.png", np.zeros((2, 2), dtype=np.uint8))
    assert [number for number, _, _ in READER.frames(tmp_path, video)] == expected


def test_an_image_missing_from_a_clip_is_named_or_where_names_count_otherwise_described(dense, tmp_path):
    site = dense("CASE001", lambda place: round(1.5 * place))
    (tmp_path / "data/frames/CASE001/000000058.jpg").unlink()
    (problem,) = check_site(site, FOUR)
    assert problem.file == tmp_path / "data/frames/CASE001/(0.2 s before 000000068.jpg)"
    assert problem.what == "file is missing, and clips show it"
    other = dense("CASE041")
    (tmp_path / "data/frames/CASE041/000000039.jpg").unlink()
    (problem,) = check_site(other, FOUR)
    assert problem.file == tmp_path / "data/frames/CASE041/000000039.jpg"


def test_one_frame_a_second_is_numbered_in_the_same_time(tmp_path):
    for second in range(5):
        write(tmp_path / f"data/frames/CASE001/{second:05d}.jpg", frame_image(second))
        write(tmp_path / f"data/annotations/segmentations/CASE001/{second:05d}.png", canonical_mask(second))
    (tmp_path / "site.yaml").write_text("dataset: grasp\nroot: data\nsplit: {train: [CASE001]}\n")
    site = load_site(tmp_path)
    listed = samples(site, "train", SampleSpec(frames=3, interval=2.0))
    assert [sample.index for sample in listed] == [0, 30, 60, 90, 120]
    assert numbers(listed[4]) == [0, 2, 4]
    with pytest.raises(SiteError, match=r"CASE001 of grasp has an image every 1 s .* ask for a multiple of 1 s"):
        samples(site, "train", FOUR)


@pytest.mark.parametrize("missing", ["segmentations/CASE001/*.png", "*.json"])
def test_either_the_lists_or_the_masks_name_the_frames_with_a_mask(missing, tmp_path):
    write_grasp(tmp_path, 2, 3)
    listing = READER.frames(tmp_path, "CASE001")
    for path in (tmp_path / "annotations").glob(missing):
        path.unlink()
    assert READER.frames(tmp_path, "CASE001") == listing
    assert len(listing) == 3


def test_a_list_is_read_again_when_it_was_changed(tmp_path):
    write_grasp(tmp_path, 1, 2)
    assert len(READER.frames(tmp_path, "CASE001")) == 2
    path = tmp_path / "annotations/grasp_short-term_test.json"
    path.write_text('{"images": [{"file_name": "CASE001/000009999.jpg"}, {"file_name": "CASE002/000009999.jpg"}]}')
    os.utime(path, ns=(1, 1))  # however coarse the clock of the disk
    assert [image.name for _, image, _ in READER.frames(tmp_path, "CASE001")][2:] == ["000009999.jpg"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"images": [{"id": 1}]}', '{"images": [{"file_name": 1}]}'])
def test_a_list_that_is_none_is_refused_by_file(text, tmp_path):
    write_grasp(tmp_path, 1, 1)
    (tmp_path / "annotations/grasp_short-term_test.json").write_text(text)
    with pytest.raises(DataError, match=r"grasp_short-term_test\.json: does not list its images as COCO files do"):
        READER.frames(tmp_path, "CASE001")


def test_a_case_without_masks_and_the_folder_above_the_edition_are_refused(tmp_path):
    write(tmp_path / "frames/CASE060/000000000.jpg", frame_image(0))
    with pytest.raises(DataError, match=r"segmentations/CASE060: contains no masks; unpack the annotations or take"):
        READER.frames(tmp_path, "CASE060")
    assert list(READER.images(tmp_path, "CASE060")) == [0]
    (tmp_path / "above/GraSP_30fps/frames/CASE001").mkdir(parents=True)
    with pytest.raises(DataError, match=r"frames: cannot be listed .*; mount it or correct 'root'"):
        READER.videos(tmp_path / "above")
