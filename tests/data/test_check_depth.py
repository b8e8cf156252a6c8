"""Depth with holes is used; depth without known values, or in another unit, is named before training."""

import cv2
import numpy as np
import pytest

from shared_components.data.check import check_site, readable_samples
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.scenes.site import write_site

DEPTH = SampleSpec(targets=("depth",))


CHANGES = {
    "in metres": lambda number, values: values / 1000,
    "saturated": lambda number, values: np.full_like(values, 65535),
    "only the second frame": lambda number, values: values * number,
    "holes": lambda number, values: values * (np.arange(len(values)) % 2)[:, None],
    "nothing": lambda number, values: values * 0,
}


@pytest.fixture
def changed(tmp_path):
    """Return a function that changes every depth file of a rendered site and opens the site."""
    options = {"videos": {"train": 1}, "frames_per_video": 2, "height": 64, "width": 64}
    path = write_site(tmp_path / "site", look="rose", seed=1, layout="scared", task="depth", **options)
    depths = {file: cv2.imread(str(file), -1) for file in (path.parent / "scared").rglob("*.png")}
    depths = {file: depth for file, depth in depths.items() if depth.dtype == np.uint16}
    assert len(depths) == 2

    def change(name):
        for number, (file, depth) in enumerate(depths.items()):
            cv2.imwrite(str(file), CHANGES[name](number, depth).astype(np.uint16))
        return load_site(path)

    return change


def test_holes_and_a_frame_of_unknown_depth_are_used_and_another_unit_is_refused(changed):
    for name in ("holes", "only the second frame"):
        site = changed(name)
        assert check_site(site, DEPTH) == [] and len(readable_samples(site, "train", DEPTH)[0]) == 2
    for name, median in (("in metres", r"0\.0"), ("saturated", "256")):
        sentence = f"has a median depth of {median}.* mm, and an endoscope's lies between 1"
        with pytest.raises(SiteError, match=sentence):
            readable_samples(changed(name), "train", DEPTH)


def test_a_split_without_any_known_depth_is_a_problem(changed):
    site = changed("nothing")
    broken = samples(site, "train", DEPTH)[0].images[0]
    (problem,) = check_site(site, DEPTH)
    assert problem.sample is None and not problem.quarantined
    assert "has no known depth, and neither have the others of split 'train', 2 in all; export it in" in str(problem)
    broken.write_bytes(b"broken")
    problems = check_site(site, DEPTH)
    assert [other.file.name for other in problems] == [problem.file.name, broken.name]
    for known in (None, problems):
        with pytest.raises(SiteError, match="has no known depth"):
            readable_samples(site, "train", DEPTH, problems=known)
