"""A simulator without data renders the job's scenes, one site per task; a file has the progress of a site."""

import pytest

from shared_components.common import step_file
from shared_components.common.progress import Step
from shared_components.data.samples import SampleSpec, samples
from shared_components.federation.messages import Job, SiteRefusal
from shared_components.federation.setup.find_site import find_site

SMALL = {"frames_per_video": 2, "videos": [1, 1, 0], "height": 64, "width": 96}


@pytest.fixture
def find(tmp_path, monkeypatch):
    monkeypatch.delenv("SURGFL_SITE_CONFIG", raising=False)

    def find(index, **synthetic):
        job = Job(name="job", bundle="pfedsis", method="fedavg", synthetic={**SMALL, **synthetic})
        return find_site(f"site-{index + 1}", local=tmp_path, scenes=tmp_path / "scenes", job=job, index=index)

    return find


def test_sites_cycle_through_the_jobs_tasks_and_unknown_keys_or_tasks_are_refused(find):
    sites = [find(index, tasks=["segmentation", "segmentation", "depth"]) for index in range(3)]
    assert [site.task for site in sites] == ["", "", "depth"]
    assert [site.dataset for site in sites] == ["endovis2017", "endovis2018", "scared"]
    with pytest.raises(SiteRefusal, match="job: synthetic has no key 'task'; known keys: frames_per_video"):
        find(0, task="depth")
    with pytest.raises(ValueError, match="task 'dept' is unknown; sites are rendered for segmentation"):
        find(0, tasks=["dept"])


def test_a_job_names_a_set_whose_sites_have_videos_of_their_own(find):
    site = find(8, set="endo700k")
    assert (site.task, site.dataset) == ("reconstruction", "endovis2017")
    assert len(samples(site, "train", SampleSpec(()))) == 2 and find(8, set="endo700k").root == site.root
    with pytest.raises(ValueError, match="set endo700k has 9 sites, so there is no site 10"):
        find(9, set="endo700k")


def test_a_job_of_five_sites_renders_five_kinds(find):
    layouts = ["endovis2017", "endovis2018_scene", "autolaparo", "scared", "stereomis"]
    sites = [find(index, layouts=layouts, clip=2, interval=0.2, dense=True) for index in range(5)]
    assert [site.task for site in sites] == ["", "", "", "depth", "depth"]
    assert [len(site.classes) for site in sites] == [4, 12, 10, 0, 0]
    assert [site.dataset for site in sites] == ["endovis2017", "endovis2018", *layouts[2:]]
    for site in sites:
        spec = SampleSpec((site.task or "label",), frames=2, interval=0.2, targets_of="all")
        assert len(samples(site, "train", spec)) == 2
    with pytest.raises(ValueError, match="layout 'endovis18' is unknown; known layouts: endovis2017"):
        find(0, layouts=["endovis18"])
    with pytest.raises(ValueError, match=r"synthetic\.layouts is 'scared'; it is a list of layouts"):
        find(0, layouts="scared")


def test_other_tasks_and_clips_lie_in_other_folders_and_can_be_read(find):
    roots = {
        find(0).root,
        find(0, tasks=["segmentation", "depth"]).root,
        find(0, tasks=["reconstruction"]).root,
        find(0, clip=4, interval=0.2).root,
        find(0, tasks=["segmentation"] * 40).root,  # longer than a folder's name may be
    }
    assert len({root.parents[1] for root in roots}) == 5
    site = find(0, tasks=["depth"], clip=4, interval=0.2)
    (_, sample) = samples(site, "train", SampleSpec(("depth",), frames=4, interval=0.2))
    assert [path.stem for path in sample.images] == ["000000", "000000", "000005", "000010"]


def test_one_sites_file_is_not_taken_for_the_servers_own_data(find, tmp_path, monkeypatch):
    """A folder, or a path with {site} in it, distinguishes them."""
    own = find(0).path
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(own))
    job = Job(name="job", bundle="pvt_fpn", method="fedavg")
    assert find_site("site-1", local=tmp_path, scenes=None, job=job, index=0).path == own
    with pytest.raises(SiteRefusal, match=r"the one file .*site.yaml, a site's; .*folder with server/site\.yaml"):
        find_site("server", local=tmp_path, scenes=None, job=job, index=3)


def test_the_server_reads_what_the_site_told_last(tmp_path):
    now = [100.0]
    listener = step_file.StepFile(tmp_path / "site-1", lambda: now[0])
    assert step_file.read_step(tmp_path / "site-1") is None
    listener(Step("training", 1, 9, "loss 0.5"))
    assert step_file.read_step(tmp_path / "site-1") == Step("training", 1, 9, "loss 0.5")
    listener(Step("training", 2, 9))  # too soon
    assert step_file.read_step(tmp_path / "site-1").done == 1
    listener(Step("saving"))  # another step is written at once
    assert step_file.read_step(tmp_path / "site-1") == Step("saving")
    now[0] += 0.5
    listener(Step("saving", 1, None))
    assert step_file.read_step(tmp_path / "site-1") == Step("saving", 1, None)
    step_file.forget(tmp_path / "site-1")
    assert step_file.read_step(tmp_path / "site-1") is None and not list((tmp_path / "site-1").iterdir())
