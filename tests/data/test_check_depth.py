"""Depth with holes is used; depth of which nothing is known, or in another unit, is named before any training."""

import cv2
import numpy as np
import pytest

from shared_components.data.check import check_site, readable_samples
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.scenes.site import write_site

DEPTH = SampleSpec(targets=("depth",))


@pytest.fixture
def changed(tmp_path):
    """Return a function that changes every file of a rendered site's depth and opens the site."""
    made = {"videos": {"train": 1}, "frames_per_video": 2, "height": 64, "width": 64}
    path = write_site(tmp_path / "site", look="rose", seed=1, layout="scared", task="depth", **made)

    def changed(change):
        files = [
            file for file in (path.parent / "scared").rglob("*.png") if cv2.imread(str(file), -1).dtype == np.uint16
        ]
        assert len(files) == 2
        for number, file in enumerate(files):
            cv2.imwrite(str(file), change(number, cv2.imread(str(file), -1)).astype(np.uint16))
        return load_site(path)

    return changed


def in_metres(number, values):
    return values / 1000


def saturated(number, values):
    return np.full_like(values, 65535)


def of_one_frame(number, values):
    return values * number


def holes(number, values):
    values[::2] = 0
    return values


def nothing(number, values):
    return values * 0


@pytest.mark.parametrize("change", [holes, of_one_frame])
def test_holes_and_a_frame_of_unknown_depth_are_used(changed, change):
    site = changed(change)
    assert check_site(site, DEPTH) == [] and len(readable_samples(site, "train", DEPTH)[0]) == 2


@pytest.mark.parametrize(("change", "found"), [(in_metres, r"0\.0"), (saturated, "256")])
def test_depth_in_another_unit_is_refused(changed, change, found):
    site = changed(change)
    with pytest.raises(SiteError, match=f"has a median depth of {found}.* mm, and an endoscope's lies between 1"):
        readable_samples(site, "train", DEPTH)


def test_a_split_without_any_known_depth_is_a_problem(changed):
    site = changed(nothing)
    [broken] = [sample.images[0] for sample in samples(site, "train", DEPTH)[:1]]
    (problem,) = check_site(site, DEPTH)
    assert problem.sample is None and not problem.quarantined
    assert "has no known depth, and neither have the others of split 'train', 2 in all; export it in" in str(problem)
    broken.write_bytes(b"broken")
    problems = check_site(site, DEPTH)
    assert [one.file.name for one in problems] == [problem.file.name, broken.name]
    for known in (None, problems):
        with pytest.raises(SiteError, match="has no known depth"):
            readable_samples(site, "train", DEPTH, problems=known)
