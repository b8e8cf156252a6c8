"""Ditto: whose model is validated and saved, and the limits of its strength."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core import training as local
from shared_components.core.losses import segmentation_loss
from shared_components.core.method import load_method
from shared_components.core.partition import partition_network
from shared_components.methods.ditto import NearReceived, TwoModels, personal_model
from shared_components.networks.bundle_config import load_bundle
from tests.federation.conftest import TINY, make_job, narrow  # noqa: F401
from tests.methods.toys import LINE, Line, context


def test_the_distance_term_is_half_lambda_times_the_square():
    terms = NearReceived(0.5)(Line(), LINE, context(received={"bias": torch.tensor([0.0, 1.0])}))
    assert [term.name for term in terms] == ["segmentation", "distance"]
    assert terms[1].value.item() == pytest.approx(0.5 * 0.5 * (1 + 9))
    assert [term.name for term in NearReceived(0.0)(Line(), LINE, context())] == ["segmentation"]


class Work:
    """A LocalWork on the one batch, with plain AdamW."""

    def __init__(self, network, known):
        self.network, self.context = network, known
        self.method = load_method("ditto")
        self.partition = partition_network(network, self.method.partition)
        self.optimizers = {}

    def train(self, objective=None, *, network=None, iterations=None, key=""):
        network = network or self.network
        settings = load_bundle("pvt_fpn", TINY).training
        optimizer = self.optimizers.setdefault(key, local.make_optimizer(network, settings))
        batches = [LINE] * self.context.iterations
        return local.local_iterations(network, optimizer, self.method, batches, self.context, self.partition, objective)


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_the_own_model_goes_on_from_itself_and_the_common_one_from_what_was_received(strength):
    received = {"bias": torch.tensor([1.0, -2.0])}
    own = {"personal/bias": torch.tensor([4.0, 4.0])}
    known = context(received=received, memory=dict(own), iterations=3)
    work = Work(Line(), known)
    losses = TwoModels(NearReceived(strength))(work)
    plain, mine = Line(), Line()
    mine.load_state_dict({"bias": own["personal/bias"]})
    for network, pull in ((plain, 0.0), (mine, strength)):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss = segmentation_loss(network(LINE["image"]), LINE["label"])
            (loss + pull / 2 * (network.bias - received["bias"]).square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(work.network.bias, plain.bias)
    torch.testing.assert_close(known.memory["personal/bias"], mine.bias.detach())
    assert {"segmentation", "personal_segmentation"} <= set(losses)


def test_a_great_strength_draws_the_own_model_to_the_received_one():
    start = {"personal/bias": torch.tensor([1.5, -1.5])}
    distances = []
    for strength in (0.0, 100.0):
        known = context(received={"bias": torch.tensor([1.0, -2.0])}, memory=dict(start), iterations=3)
        TwoModels(NearReceived(strength))(Work(Line(), known))
        distances.append((known.memory["personal/bias"] - known.received["bias"]).norm().item())
    assert distances[1] < distances[0]


def test_a_site_uses_its_own_model_once_it_has_one():
    state = {"bias": torch.zeros(2)}
    assert personal_model(state, {}) is state
    assert personal_model(state, {"personal/bias": torch.ones(2)})["bias"].tolist() == [1, 1]


def test_in_a_federation_the_common_model_is_fedavgs_and_the_saved_ones_are_the_sites_own(federate, tmp_path):
    federation = federate(make_job("ditto", rounds=1), folder=tmp_path / "a").run().finish()
    plain = federate(make_job("fedavg", rounds=1), folder=tmp_path / "b").run()
    ours, theirs = federation.server.state.models.shared, plain.server.state.models.shared
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    saved = [load_file(federation.server.folder / s / "model.safetensors") for s in federation.server.state.sites]
    name = "head_global.weight"
    assert not torch.equal(saved[0][name], saved[1][name]) and not torch.equal(saved[0][name], ours[name])


def test_the_own_model_survives_between_rounds(federate, tmp_path):
    job, sites = make_job("ditto"), ("site-1", "site-2")
    straight = federate(job, folder=tmp_path / "a", names=sites).run()
    federate(job, folder=tmp_path / "b", names=sites).run(until=1)
    again = federate(job, folder=tmp_path / "b", names=sites, resume=True).run()
    for name in sites:
        files = [federation.files(name).load()[1] for federation in (straight, again)]
        kept = [{n: v for n, v in tensors.items() if n.startswith("memory/")} for tensors in files]
        assert kept[0] and all(torch.equal(value, kept[1][n]) for n, value in kept[0].items())
