"""A federation on a network of other arguments than its bundle's: what is sent, saved, resumed and refused."""

import json

import pytest
import torch

from shared_components.core.trained_model import load_trained
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.runs import newest_run
from shared_components.networks.checkpoints import load_metadata, load_weights
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import make_job

pytestmark = pytest.mark.usefixtures("toy_bundle")


def job(network=None, **changes):
    return make_job("fedavg", bundle="toy", network={"width": 8} if network is None else network, **changes)


def test_a_job_says_it_in_plain_values_and_mostly_nothing():
    assert job().to_json()["network"] == {"width": 8}
    assert Job.from_json(json.loads(json.dumps(job().to_json()))) == job()
    assert Job("a", "toy", "fedavg").network == {} == Job("a", "toy", "fedavg").to_json()["network"]
    assert job().open_bundle().network["width"] == 8 and job().open_bundle().chosen == {"width": 8}


def test_two_rounds_train_and_leave_models_of_the_chosen_network(federate):
    server = federate(job()).run().finish().server
    assert server.state.models.shared["past.weight"].shape == (8, 8, 1, 1)
    assert json.loads((server.folder / "run.json").read_text())["job"]["network"] == {"width": 8}
    paths = [server.folder / name for name in (*[f"{site}/best.safetensors" for site in server.state.sites],
                                               "site-1/model.safetensors", "server/model.safetensors")]  # fmt: skip
    for path in paths:
        assert json.loads(load_metadata(path)["network"]) == {"width": 8}
        expected, image = Tiny(width=8).eval(), torch.rand(1, 3, 32, 64)
        expected.load_state_dict(load_weights(path))
        found = load_trained(path, bundle="toy").network.eval()
        assert torch.equal(found(image), expected(image))


def test_the_bundles_own_network_is_not_told(federate):
    server = federate(job({}, rounds=1)).run().finish().server
    for name in ("site-1/model.safetensors", "server/model.safetensors"):
        assert "network" not in load_metadata(server.folder / name)


def test_a_run_goes_on_with_its_own_network_alone(federate):
    federate(job()).run(until=1)
    for other, key in (({}, "width"), ({"width": 16}, "width"), ({"width": 8, "dropout": 0.2}, "dropout")):
        with pytest.raises(FederationError, match=rf"other settings of network\.{key}; put them back"):
            federate(job(other), resume=True)
    again = federate(job(), resume=True)
    assert again.resumed and again.run().server.state.round == 2


def test_a_run_from_before_jobs_said_it_had_the_bundles_own(federate, tmp_path):
    federate(job({})).run(until=1)
    path = newest_run(tmp_path / "runs" / "test-fedavg") / "run.json"
    facts = json.loads(path.read_text())
    del facts["job"]["network"]
    path.write_text(json.dumps(facts))
    with pytest.raises(FederationError, match=r"ran with other settings of network\.width;"):
        federate(job(), resume=True)
    assert federate(job({}), resume=True).run().server.state.round == 2


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"widht": 8}, "site site-1: network: unknown argument 'widht'; did you mean 'width'"),
        ({"_target_": "shared_components.networks.pvt_fpn.PvtFpn"}, "'_target_', which names code"),
        ({"out_channels": 9}, "out_channels is decided by the site's task"),
        ({"width": True}, "width is True; it is a whole number"),
        ({"width": 6}, "Tiny: width is 6; it is a positive multiple of 4"),
    ],
)
def test_a_site_refuses_what_cannot_be_before_the_first_round(federate, network, sentence):
    with pytest.raises((FederationError, ValueError), match=sentence):  # what names code is no job at all
        federate(job(network)).enrol()
