"""A simulator without data renders what the job asks for, one site per task."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import Site
from shared_components.federation.find_site import find_site
from shared_components.federation.messages import Job, SiteRefusal

SMALL = {"frames_per_video": 2, "videos": [1, 1, 0], "height": 64, "width": 96}


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SURGFL_SITE_CONFIG", raising=False)

    def find(index: int, **synthetic: object) -> Site:
        job = Job(name="job", bundle="pfedsis", method="fedavg", synthetic={**SMALL, **synthetic})
        scenes = tmp_path / "scenes"
        return find_site(f"site-{index + 1}", local=tmp_path, scenes=scenes, job=job, index=index)

    return find


def test_sites_cycle_through_the_jobs_tasks(find):
    tasks = ["segmentation", "segmentation", "depth"]

    sites = [find(index, tasks=tasks) for index in range(3)]

    assert [site.task for site in sites] == ["", "", "depth"]
    assert [site.dataset for site in sites] == ["endovis2017", "endovis2018", "scared"]


def test_other_tasks_and_clips_lie_in_other_folders(find):
    roots = {
        find(0).root,
        find(0, tasks=["segmentation", "depth"]).root,
        find(0, tasks=["reconstruction"]).root,
        find(0, clip=4, interval=0.2).root,
        find(0, tasks=["segmentation"] * 40).root,  # longer than a folder's name may be
    }

    assert len({root.parents[1] for root in roots}) == 5


def test_the_jobs_clips_can_be_read(find):
    site = find(0, tasks=["depth"], clip=4, interval=0.2)

    (_, sample) = samples(site, "train", SampleSpec(("depth",), frames=4, interval=0.2))

    assert [path.stem for path in sample.images] == ["000000", "000000", "000005", "000010"]


def test_an_unknown_key_or_task_is_refused(find):
    with pytest.raises(SiteRefusal, match="job: synthetic has no key 'task'; known keys: frames_per_video"):
        find(0, task="depth")
    with pytest.raises(ValueError, match="task 'dept' is unknown; sites are rendered for segmentation"):
        find(0, tasks=["dept"])


def test_one_sites_file_is_not_taken_for_the_servers_own_data(find, tmp_path, monkeypatch):
    """A folder, or a path with {site} in it, tells them apart."""
    own = find(0).path
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(own))
    job = Job(name="job", bundle="pvt_fpn", method="fedavg")
    assert find_site("site-1", local=tmp_path, scenes=None, job=job, index=0).path == own
    with pytest.raises(SiteRefusal, match=r"the one file .*site.yaml, a site's; .*folder with server/site\.yaml"):
        find_site("server", local=tmp_path, scenes=None, job=job, index=3)
