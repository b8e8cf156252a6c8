"""Frames to train, validate and test on, refused sites, and remarks on the scores."""

import shutil

import numpy as np
import pytest

from shared_components.data.samples import LABELLED, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.weights.fine_tuning import frames as few_frames
from shared_components.weights.fine_tuning.frames import MOST, evenly, frames_of, remarks, with_test
from tests.data.conftest import write
from tests.data.custom.conftest import own_site, values  # noqa: F401

SPEC = LABELLED


def in_time(*bounds):
    names = ("train", "validation", "test")
    return {name: [{"a": [begin, end]}] for name, begin, end in zip(names, bounds, bounds[1:], strict=False)}


def messages(site):
    return list(remarks(site, frames_of(site, SPEC)))


@pytest.fixture
def site_of(own_site):  # noqa: F811
    return lambda **changes: load_site(own_site(**changes))


def test_frames_come_by_split_and_long_ones_are_thinned_evenly(site_of, monkeypatch):
    site = site_of()
    assert {split: [s.index for s in outcome] for split, outcome in frames_of(site, SPEC).items()} == {
        "train": [0, 1, 2, 3], "validation": [0, 1, 2, 3], "test": [0, 1, 2, 3],
    }  # fmt: skip
    monkeypatch.setitem(MOST, "test", 2)
    assert [sample.index for sample in frames_of(site, SPEC)["test"]] == [1, 3]


@pytest.mark.parametrize(
    ("most", "chosen"), [(1, [5]), (2, [2, 7]), (5, [1, 3, 5, 7, 9]), (10, list(range(10))), (99, list(range(10)))]
)
def test_frames_are_thinned_from_the_middle_of_equal_parts(most, chosen):
    assert evenly(range(10), most) == chosen


@pytest.mark.parametrize(("split", "missing"), [
    ({"train": ["a"], "validation": ["b"]}, "under 'test'"), ({"train": ["a"]}, "under 'validation' and 'test'"),
])  # fmt: skip
def test_a_missing_split_is_named_with_what_to_write(site_of, split, missing):
    with pytest.raises(SiteError, match=rf"site.yaml: 'split' has no video {missing}; .* test: \[{{a: \[0, 5\]}}\]"):
        frames_of(site_of(split=split), SPEC)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_split_without_labelled_pixels_is_refused(site_of, tmp_path, split):
    site = site_of()
    video = site.split[split][0].video
    for path in (tmp_path / "masks" / video).iterdir():
        write(path, np.zeros_like(values(0)))
    with pytest.raises(SiteError, match=rf"no frame of split '{split}' \(4 in all\) shows bulldog clamp or irrig"):
        frames_of(site, SPEC)


def test_unreadable_frames_are_refused_by_file(site_of, tmp_path):
    site = site_of()
    (tmp_path / "images" / "a" / "f001.png").write_bytes(b"no picture")
    with pytest.raises(SiteError, match=r"images/a/f001.png.*1 of 4 frames of split 'train'"):
        frames_of(site, SPEC)


def test_a_second_video_is_cut_by_time_into_validation_and_test(site_of):
    site = site_of(split={"train": ["a"], "validation": ["b"]})
    assert with_test(site, SPEC) == {"train": ["a"], "validation": [{"b": [0, 2]}], "test": [{"b": [2, 4]}]}
    assert with_test(site_of(), SPEC) is None, "it has a test"
    assert with_test(site_of(split={"train": ["a"], "validation": [{"b": [0, 2]}]}), SPEC) is None, "cut already"
    one = site_of(split={"train": ["a"], "validation": ["b"]}, frame_interval=4)
    assert len(samples(one, "validation", SPEC)) == 1 and with_test(one, SPEC) is None


def test_remarks_name_the_limits_of_the_scores(site_of, monkeypatch):
    same = messages(site_of(split=in_time(0, 2, 3, 4)))
    assert same[0].startswith("test frames and training frames are from the same video (a): ")
    assert "not on another video or patient" in same[0]
    assert same[1].startswith("labelled frames in no split, and not used: 4 of b, 4 of c; ")
    halves = {"train": ["a"], "validation": [{"b": [0, 2]}], "test": [{"b": [2, 4]}]}
    assert messages(site_of(split=halves))[0].startswith("validation and test use parts of the same video (b)")
    assert messages(site_of())[0] == "all test frames are from one video (c): other videos may give other scores"
    *_, last = messages(site_of(split=in_time(0, 2, 3, 4)))
    assert last.startswith("1 frame will score the model, and 1 frame will select its checkpoint: ")
    *_, last = messages(site_of())
    assert last.startswith("4 frames will score the model, and 4 frames will select its checkpoint: ")
    assert last.endswith("label at least 10 frames for each")
    monkeypatch.setattr(few_frames, "FEW", 4)
    assert not any("will score" in line for line in messages(site_of()))


def test_frames_added_later_to_a_cut_video_are_not_passed_over_in_silence(site_of, tmp_path):
    site = site_of(split=in_time(0, 2, 3, 4))
    for kind in ("images", "masks"):
        shutil.rmtree(tmp_path / kind / "b")
        shutil.rmtree(tmp_path / kind / "c")
        folder = tmp_path / kind / "a"
        shutil.copy(folder / "f003.png", folder / "f004.png")
    assert messages(load_site(site.path))[1].startswith("labelled frames in no split, and not used: 1 of a; ")
