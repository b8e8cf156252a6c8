"""A federation of sites that train on another site's frames besides their own."""

import shutil

import pytest
import yaml

from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from tests.federation.conftest import Federation, make_job


@pytest.fixture
def adding(scenes, tmp_path):
    """Two sites that add the same frames, whose videos and numbers are called as the first one's own."""
    added = shutil.copytree(scenes[0].parent, tmp_path / "added") / "site.yaml"
    files = []
    for number, path in enumerate(scenes[:2]):
        files.append(shutil.copytree(path.parent, tmp_path / f"site-{number}") / "site.yaml")
        config = yaml.safe_load(path.read_text()) | {"also_trains_on": str(added), "quarantine": 0.2}
        files[-1].write_text(yaml.safe_dump(config))
    return files


def federation_of(files, folder, method="fedavg"):
    return Federation(make_job(method), folder, files, ["a", "b"]).enrol()


def test_added_frames_count_where_sites_are_weighted_and_in_no_score(adding, scenes, tmp_path):
    plain = federation_of(scenes, tmp_path / "plain")
    federation = federation_of(adding, tmp_path / "adding")
    assert [plain.server.state.profiles[name].samples for name in "ab"] == [4, 4]
    assert [federation.server.state.profiles[name].samples for name in "ab"] == [8, 8]
    before, after = (f.replies()["a"].header for f in (plain, federation))
    assert (before["samples"], after["samples"]) == (4, 8)
    assert before["metrics"] == after["metrics"]  # of the model that both have received


@pytest.mark.parametrize("which", [0, 4])
def test_a_frame_that_is_set_aside_takes_no_other_of_its_name_with_it(adding, tmp_path, which):
    broken = samples(load_site(adding[0]), "train")[which]
    broken.images[0].write_bytes(b"")
    federation = federation_of(adding, tmp_path)
    runner, message = federation.sites["a"], federation.asked.messages["a"].header
    bench = runner._bench(federation.server.job, load_site(adding[0]))
    left = runner._samples(bench, federation.server.job, message["run"], "train")
    assert len(left) == 7 and broken not in left
    assert [sample.added for sample in left].count(True) == (4 if which == 0 else 3)


def test_frames_that_several_sites_add_are_pooled_once(adding, tmp_path):
    federation = federation_of(adding, tmp_path, "centralised")
    runner, header = federation.sites["a"], federation.asked.messages["a"].header
    bench = runner._bench(federation.server.job, load_site(adding[0]))
    pool = runner._training_samples(bench, federation.server.job, header).samples
    assert [sample.added for sample in pool] == [False] * 8 + [True] * 4
