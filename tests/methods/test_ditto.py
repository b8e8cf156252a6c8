"""Ditto: whose model is validated and saved, and the limits of its strength."""

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core import training as local
from shared_components.core.losses import segmentation_loss
from shared_components.core.method import Context, load_method
from shared_components.core.partition import partition_network
from shared_components.methods.ditto import NearReceived, TwoModels, personal_model
from shared_components.networks.bundle_config import load_bundle
from tests.federation.conftest import TINY, federate, make_job, narrow, scenes  # noqa: F401 (fixtures)
from tests.methods.toys import SEGMENTATION


class Line(torch.nn.Module):
    """Logits are a constant per class: two numbers to train."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor([1.0, -2.0]))

    def forward(self, image):
        return self.bias[None, :, None, None].expand(len(image), 2, *image.shape[2:])


BATCH = {"image": torch.zeros(1, 3, 2, 2), "label": torch.ones(1, 2, 2, dtype=torch.long)}


def context(**known):
    return Context(0, SEGMENTATION, torch.Generator().manual_seed(0), iterations=3, **known)


def test_the_distance_term_is_half_lambda_times_the_square():
    terms = NearReceived(0.5)(Line(), BATCH, context(received={"bias": torch.tensor([0.0, 1.0])}))
    assert [term.name for term in terms] == ["segmentation", "distance"]
    assert terms[1].value.item() == pytest.approx(0.5 * 0.5 * (1 + 9))
    assert [term.name for term in NearReceived(0.0)(Line(), BATCH, context())] == ["segmentation"]


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
        batches = [BATCH] * self.context.iterations
        return local.local_iterations(network, optimizer, self.method, batches, self.context, self.partition, objective)


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_the_own_model_goes_on_from_itself_and_the_common_one_from_what_was_received(strength):
    received = {"bias": torch.tensor([1.0, -2.0])}
    own = {"personal/bias": torch.tensor([4.0, 4.0])}
    known = context(received=received, memory=dict(own))
    work = Work(Line(), known)
    losses = TwoModels(NearReceived(strength))(work)
    plain = Line()
    by_hand = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    mine = Line()
    mine.load_state_dict({"bias": own["personal/bias"]})
    by_hand_mine = torch.optim.AdamW(mine.parameters(), lr=1e-3, weight_decay=0.01)
    for network, optimizer, pull in ((plain, by_hand, 0.0), (mine, by_hand_mine, strength)):
        for _ in range(3):
            optimizer.zero_grad()
            loss = segmentation_loss(network(BATCH["image"]), BATCH["label"])
            (loss + pull / 2 * (network.bias - received["bias"]).square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(work.network.bias, plain.bias)
    torch.testing.assert_close(known.memory["personal/bias"], mine.bias.detach())
    assert {"segmentation", "personal_segmentation"} <= set(losses)


def test_a_great_strength_draws_the_own_model_to_the_received_one():
    start = {"personal/bias": torch.tensor([1.5, -1.5])}
    distances = []
    for strength in (0.0, 100.0):
        known = context(received={"bias": torch.tensor([1.0, -2.0])}, memory=dict(start))
        TwoModels(NearReceived(strength))(Work(Line(), known))
        distances.append((known.memory["personal/bias"] - known.received["bias"]).norm().item())
    assert distances[1] < distances[0]


def test_a_site_uses_its_own_model_once_it_has_one():
    state = {"bias": torch.zeros(2)}
    assert personal_model(state, {}) is state
    assert personal_model(state, {"personal/bias": torch.ones(2)})["bias"].tolist() == [1, 1]


def test_in_a_federation_the_common_model_is_fedavgs_and_the_saved_ones_are_the_sites_own(federate, tmp_path):  # noqa: F811
    federation = federate(make_job("ditto", rounds=1), folder=tmp_path / "a").run().finish()
    plain = federate(make_job("fedavg", rounds=1), folder=tmp_path / "b").run()
    ours, theirs = federation.server.state.models.shared, plain.server.state.models.shared
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    saved = [load_file(federation.server.folder / s / "model.safetensors") for s in federation.server.state.sites]
    name = "head_global.weight"
    assert not torch.equal(saved[0][name], saved[1][name]) and not torch.equal(saved[0][name], ours[name])


def test_the_own_model_survives_between_rounds(federate, tmp_path):  # noqa: F811
    straight = federate(make_job("ditto", rounds=2), folder=tmp_path / "a").run()
    federate(make_job("ditto", rounds=2), folder=tmp_path / "b").run(until=1)
    again = federate(make_job("ditto", rounds=2), folder=tmp_path / "b", resume=True).run()
    for name in straight.server.state.sites:
        files = [f.sites[name]._files(f.server.job, f.server.folder.name).load() for f in (straight, again)]
        kept = [{n: v for n, v in tensors.items() if n.startswith("memory/")} for _, tensors, _ in files]
        assert kept[0] and all(torch.equal(value, kept[1][n]) for n, value in kept[0].items())


def test_a_negative_strength_is_refused():
    with pytest.raises(ValueError, match="ditto: strength is -1"):
        load_method("ditto", strength=-1)
