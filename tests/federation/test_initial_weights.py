"""Initial weights and network arguments of a federation: recorded, refused, the same after a resume."""

import json
import logging

import pytest
import torch

from shared_components.core.partition import Role, cut
from shared_components.core.shipped_weights import FACTS, MODEL, sha256_of
from shared_components.core.trained_model import load_trained
from shared_components.core.training_settings import training_from
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.runs.run_folder import newest_run
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
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
        federation.sites[name].start_weights = path
    return federation


def test_sites_begin_from_the_rendered_weights_or_at_random_as_recorded(federate, shipped):
    federation = federate(job("rendered")).enrol()
    assert same(federation.server.state.models.shared, load_weights(shipped))
    assert {str(p.start) for p in federation.server.state.profiles.values()} == {
        str({"start": "rendered", "sha256": sha256_of(shipped)})
    }
    recorded = json.loads((federation.server.folder / "run.json").read_text())["start"]
    assert recorded == {"start": "rendered", "sha256": sha256_of(shipped)}
    federation = federate(make_job("fedavg", bundle="toy", training={}, rounds=1)).enrol()
    recorded = json.loads((federation.server.folder / "run.json").read_text())["start"]
    assert recorded == {"start": "random", "sha256": ""}
    torch.manual_seed(training_from({}).seed)
    assert same(federation.server.state.models.shared, Tiny().state_dict())


def test_what_stays_at_a_site_begins_from_the_weights_too(federate, shipped):
    federation = federate(job("rendered", "fedper", arguments={}))
    site = federation.sites["site-2"]
    setup = set_up_site(federation.server.job, site.find_site(federation.server.job, 1))
    own = cut(setup.network.state_dict(), setup.partition, Role.LOCAL)
    weights = load_weights(shipped)
    assert own and all(torch.equal(value, weights[name]) for name, value in own.items() if name in weights)
    assert federation.run().finish().server.state.round == 1


def test_other_and_missing_files_are_refused_by_site_and_an_unused_one_is_warned_of(federate, tmp_path, caplog):
    one, other = (written(tmp_path / f"{seed}.safetensors", seed) for seed in (7, 8))
    federation = given(federate(job("file")), one, ("site-1", "site-3"))
    given(federation, other, ("site-2",))
    with pytest.raises(FederationError, match="site-1 and site-2 differ in their start") as error:
        federation.enrol()
    assert sha256_of(one)[:8] in str(error.value) and sha256_of(other)[:8] in str(error.value)
    federation = given(federate(job("file")), written(tmp_path / "a.safetensors", 7), ("site-1", "site-3"))
    with pytest.raises(
        FederationError, match=r"site site-2: training: start is 'file', but no file is given; set SURGFL_START_WEIGHTS"
    ):
        federation.enrol()
    federation = given(federate(job("random")), tmp_path / "a.safetensors", ("site-2",))
    with caplog.at_level(logging.WARNING):
        federation.enrol()
    warnings = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(warnings) == 1 and warnings[0].startswith("site site-2: SURGFL_START_WEIGHTS is ")


@pytest.mark.parametrize(
    "start, words",
    [
        ("rendered", "site site-1: bundle 'toy' ships no weights"),
        ("/tmp/a.safetensors", r"start is '/tmp/a\.safetensors'; use one of .*a job carries no path"),
        ({"batch_size": 99, "few_samples": "refuse"}, "site-1: has 4 training samples, fewer than a batch of 99"),
    ],
)
def test_a_start_or_a_batch_that_cannot_be_is_refused_at_enrolment(federate, start, words):
    training = {"start": start} if isinstance(start, str) else {"start": "random", **start}
    with pytest.raises(FederationError, match=words):
        federate(make_job("fedavg", bundle="toy", training=training, rounds=1)).enrol()


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


def wide(network=None, **changes):
    return make_job("fedavg", bundle="toy", network={"width": 8} if network is None else network, **changes)


def test_a_run_goes_on_with_its_own_network_alone(federate):
    assert wide().to_json()["network"] == {"width": 8}
    assert Job.from_json(json.loads(json.dumps(wide().to_json()))) == wide()
    assert Job("a", "toy", "fedavg").network == {} == Job("a", "toy", "fedavg").to_json()["network"]
    assert wide().open_bundle().network["width"] == 8 and wide().open_bundle().chosen == {"width": 8}
    federate(wide()).run(until=1)
    for other, key in (({}, "width"), ({"width": 16}, "width"), ({"width": 8, "dropout": 0.2}, "dropout")):
        with pytest.raises(FederationError, match=rf"other settings of network\.{key}; put them back"):
            federate(wide(other), resume=True)
    again = federate(wide(), resume=True)
    assert again.resumed and again.run().server.state.round == 2


def test_two_rounds_train_and_leave_models_of_the_chosen_network(federate):
    server = federate(wide()).run().finish().server
    assert server.state.models.shared["past.weight"].shape == (8, 8, 1, 1)
    assert json.loads((server.folder / "run.json").read_text())["job"]["network"] == {"width": 8}
    paths = [server.folder / name for name in (*[f"{site}/best.safetensors" for site in server.state.sites],
                                               "site-1/model.safetensors", "server/model.safetensors")]  # fmt: skip
    for path in paths:
        assert json.loads(load_metadata(path)["network"]) == {"width": 8}
        expected, image = Tiny(width=8).eval(), torch.rand(1, 3, 32, 64)
        expected.load_state_dict(load_weights(path))
        assert torch.equal(load_trained(path, bundle="toy").network.eval()(image), expected(image))


def test_a_run_from_before_jobs_said_it_had_the_bundles_own(federate, tmp_path):
    federate(wide({})).run(until=1)
    path = newest_run(tmp_path / "runs" / "test-fedavg") / "run.json"
    facts = json.loads(path.read_text())
    del facts["job"]["network"]
    path.write_text(json.dumps(facts))
    with pytest.raises(FederationError, match=r"ran with other settings of network\.width;"):
        federate(wide(), resume=True)
    server = federate(wide({}), resume=True).run().finish().server
    assert server.state.round == 2
    for name in ("site-1/model.safetensors", "server/model.safetensors"):  # the bundle's own network is not recorded
        assert "network" not in load_metadata(server.folder / name)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"widht": 8}, "site site-1: network: unknown argument 'widht'; did you mean 'width'"),
        ({"_target_": "shared_components.networks.pvt_fpn.PvtFpn"}, "'_target_', which names code"),
        ({"out_channels": 9}, "out_channels is set by the site's task"),
        ({"width": True}, "width is True; it is a whole number"),
        ({"width": 6}, "Tiny: width is 6; give a positive multiple of 4"),
    ],
)
def test_a_site_refuses_what_cannot_be_before_the_first_round(federate, network, sentence):
    with pytest.raises((FederationError, ValueError), match=sentence):  # what names code is no job at all
        federate(wide(network)).enrol()
