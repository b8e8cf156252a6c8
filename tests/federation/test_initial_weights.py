"""What a federation begins from: the same for all sites, recorded, and the same after a resume."""

import json
import logging

import pytest
import torch

from shared_components.core.partition import Role, cut
from shared_components.core.shipped_weights import FACTS, MODEL, sha256_of
from shared_components.federation.messages import FederationError
from shared_components.networks.bundle_config import training_from
from shared_components.networks.checkpoints import load_weights, save_weights
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import SITES, make_job, same

pytestmark = pytest.mark.usefixtures("toy_bundle")
NOTES = {"task": "segmentation", "outputs": "background,shaft,wrist,clasper"}


def job(start, method="fedavg", **changes):
    return make_job(method, bundle="toy", training={"start": start}, rounds=1, **changes)


def written(path, seed):
    torch.manual_seed(seed)
    save_weights(path, Tiny().state_dict(), NOTES)
    return path


@pytest.fixture
def shipped(toy_bundle):
    """Let bundle `toy` ship weights; return their file."""
    path = written(toy_bundle / "toy" / MODEL, seed=7)
    (toy_bundle / "toy" / FACTS).write_text(json.dumps({"sha256": sha256_of(path)}))
    return path


def given(federation, path, names):
    for name in names:
        federation.sites[name]._start_weights = path
    return federation


def test_the_first_message_is_the_first_sites_rendered_weights(federate, shipped):
    federation = federate(job("rendered")).enrol()
    assert same(federation.server.state.models.shared, load_weights(shipped))
    assert {str(p.start) for p in federation.server.state.profiles.values()} == {
        str({"start": "rendered", "sha256": sha256_of(shipped)})
    }
    told = json.loads((federation.server.folder / "run.json").read_text())["start"]
    assert told == {"start": "rendered", "sha256": sha256_of(shipped)}


def test_what_stays_at_a_site_begins_from_the_weights_too(federate, shipped):
    federation = federate(job("rendered", "fedper", arguments={}))
    site = federation.sites["site-2"]
    bench = site._bench(federation.server.job, site._find_site(federation.server.job, 1))
    own = cut(bench.network.state_dict(), bench.partition, Role.LOCAL)
    weights = load_weights(shipped)
    assert own and all(torch.equal(value, weights[name]) for name, value in own.items() if name in weights)
    assert federation.run().finish().server.state.round == 1


def test_random_weights_are_the_default_and_recorded(federate):
    federation = federate(make_job("fedavg", bundle="toy", training={}, rounds=1)).enrol()
    told = json.loads((federation.server.folder / "run.json").read_text())["start"]
    assert told == {"start": "random", "sha256": ""}
    torch.manual_seed(training_from({}).seed)
    assert same(federation.server.state.models.shared, Tiny().state_dict())


def test_sites_that_begin_from_different_files_are_refused_by_both_names(federate, tmp_path):
    one, other = (written(tmp_path / f"{seed}.safetensors", seed) for seed in (7, 8))
    federation = given(federate(job("file")), one, ("site-1", "site-3"))
    given(federation, other, ("site-2",))
    with pytest.raises(FederationError, match="site-1 and site-2 differ in their start") as error:
        federation.enrol()
    assert sha256_of(one)[:8] in str(error.value) and sha256_of(other)[:8] in str(error.value)


def test_a_site_without_the_file_says_what_to_set(federate, tmp_path):
    federation = given(federate(job("file")), written(tmp_path / "a.safetensors", 7), ("site-1", "site-3"))
    with pytest.raises(FederationError, match=r"site site-2: .*name it in the environment variable SURGFL_START"):
        federation.enrol()


def test_a_file_that_is_not_used_is_warned_of(federate, tmp_path, caplog):
    federation = given(federate(job("random")), tmp_path / "a.safetensors", ("site-2",))
    with caplog.at_level(logging.WARNING):
        federation.enrol()
    said = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("site site-2: SURGFL_START_WEIGHTS names ")


@pytest.mark.parametrize(
    "start, words",
    [
        ("rendered", "site site-1: bundle 'toy' ships no weights"),
        ("/tmp/a.safetensors", r"start is '/tmp/a\.safetensors'; use one of .*a job carries no path"),
    ],
)
def test_a_start_that_cannot_be_is_refused_at_enrolment(federate, start, words):
    with pytest.raises(FederationError, match=words):
        federate(job(start)).enrol()


def test_a_resume_from_another_file_is_refused(federate, tmp_path):
    path = written(tmp_path / "a.safetensors", 7)
    two = make_job("fedavg", bundle="toy", training={"start": "file"}, rounds=2)
    given(federate(two), path, SITES).run(until=1)
    before = path.read_bytes()
    written(path, 8)
    with pytest.raises(FederationError, match=r"site-1 has another start than when the run began \(file "):
        given(federate(two, resume=True), path, SITES).enrol()
    path.write_bytes(before)
    assert given(federate(two, resume=True), path, SITES).run().server.state.round == 2
