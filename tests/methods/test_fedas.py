"""FedAS: weights by Fisher information, prototypes and alignment in plain loops, two rounds in a federation."""

from functools import partial

import pytest
import torch

from shared_components.core.aggregators.site_weights import fisher_trace, fisher_weights
from shared_components.core.method import load_method
from shared_components.methods import fedas
from shared_components.networks.pvt_fpn import PvtFpn
from tests.federation.conftest import make_job, narrow  # noqa: F401
from tests.methods.toys import SITES, frames, shared, step, updates

build = partial(load_method, "fedas")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return PvtFpn(out_channels=4, dropout=0.0, drop_path=0.0)


def batch(number=0, size=2):
    return frames(count=size, classes=3, seed=number)


def test_the_mean_weighted_by_fisher_information_equals_plain_loops_and_ignores_samples():
    sent = updates(SITES[:3], extras={"fisher": [2, 6, 2]})
    found, capped = (step(b.server.aggregator, shared(), sent) for b in (build(), build(largest_weight=0.5)))
    assert found.models.shared["w"].tolist() == pytest.approx([1.8, 3.2], abs=1e-12)
    assert found.report["weights"] == pytest.approx({"site-1": 0.2, "site-2": 0.6, "site-3": 0.2})
    assert capped.report["weights"]["site-2"] == pytest.approx(0.5)
    fisher = [0.5, 3.0, 1.25, 0.1, 7.0]
    found = step(build().server.aggregator, shared(), updates(extras={"fisher": fisher}))
    expected = [sum(f * s[i] for f, s in zip(fisher, SITES, strict=True)) / sum(fisher) for i in (0, 1)]
    assert found.models.shared["w"].tolist() == pytest.approx(expected, abs=1e-12)
    found = step(build().server.aggregator, shared(), updates(SITES[:3], extras={"fisher": [0, 0, 0]}))
    assert found.models.shared["w"].tolist() == pytest.approx([7 / 3, 8 / 3])


@pytest.mark.parametrize("traces, largest, expected", [
    ([2, 6, 2], 1.0, [0.2, 0.6, 0.2]), ([2, 6, 2], 0.5, [0.25, 0.5, 0.25]),
    ([1, 8, 1], 0.3, [1 / 3, 1 / 3, 1 / 3]),  # three sites cannot all stay below 0.3
    ([1, 50, 49], 0.45, [0.1, 0.45, 0.45]),
    ([1, 60, 39], 0.45, [0.1, 0.45, 0.45]),  # the second passes the cap once it has the first one's rest
    ([0, 5, 0], 0.6, [0.2, 0.6, 0.2]), ([5], 0.4, [1.0]),
])  # fmt: skip
def test_a_cap_gives_the_rest_to_the_others(traces, largest, expected):
    assert fisher_weights(traces, largest) == pytest.approx(expected, abs=1e-12)


def test_the_trace_equals_a_loop_over_batches_and_parameters(network):
    network.train()
    total = 0.0
    for given in (batch(1), batch(2)):
        network.eval()
        network.zero_grad()
        logarithms = network(given["image"]).log_softmax(1).movedim(1, -1).reshape(-1, 4)
        rows = zip(logarithms, given["label"].reshape(-1).tolist(), strict=True)
        (-sum(row[number] for row, number in rows) / len(logarithms)).backward()
        total += sum(float((p.grad.double() ** 2).sum()) for p in network.parameters() if p.grad is not None)
    network.train()
    assert fisher_trace(network, [batch(1), batch(2)]) == pytest.approx(total, rel=1e-4) and network.training


class TwoChannels(torch.nn.Module):
    """Features are the image's first two channels, at half size, times a weight."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder_global = torch.nn.Identity(), torch.nn.Conv2d(2, 2, 1, bias=False)
        self.decoder_global.weight.data = torch.tensor([[[[2.0]], [[0.0]]], [[[0.0]], [[1.0]]]])

    def encode(self, image):
        return image[:, :2, ::2, ::2], None


def pixels_by_hand(given):
    """Yield of every second pixel its class and its features, in plain numbers."""
    for image, label in zip(given["image"].tolist(), given["label"].tolist(), strict=True):
        for y in range(0, 32, 2):
            for x in range(0, 32, 2):
                yield label[y][x], [2 * image[0][y][x], image[1][y][x]]


def prototypes_by_hand(batches):
    found = [pixel for given in batches for pixel in pixels_by_hand(given)]
    return {
        number: [sum(v[i] for n, v in found if n == number) / sum(n == number for n, _ in found) for i in (0, 1)]
        for number in {n for n, _ in found}
    }


def test_prototypes_and_alignment_loss_equal_plain_loops():
    batches = [batch(1), batch(2, size=1)]
    found = fedas.class_prototypes(TwoChannels(), batches)
    expected = prototypes_by_hand(batches)
    assert found.keys() == expected.keys() == {0, 1, 2}
    for number, prototype in found.items():
        assert prototype.tolist() == pytest.approx(expected[number], abs=1e-6)
    network, given = TwoChannels(), batch(3)
    prototypes = {0: torch.tensor([0.5, 0.25]), 1: torch.tensor([-1.0, 2.0])}  # class 2 has none
    found = fedas.alignment_loss(fedas.features(network, given["image"]), given["label"], prototypes)
    expected = 0.0
    for number, prototype in prototypes.items():
        own = [v for n, v in pixels_by_hand(given) if n == number]
        squares = [(a - b) ** 2 for v in own for a, b in zip(v, prototype.tolist(), strict=True)]
        expected += sum(squares) / len(squares)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    nothing = fedas.alignment_loss(fedas.features(network, given["image"]), given["label"], {})
    assert float(nothing.detach()) == 0 and nothing.requires_grad


def test_two_rounds_align_keep_the_base_and_leave_heads_at_home(federate, monkeypatch):
    seen = []
    original = fedas.Alignment._align

    def watched(self, work, old):
        before = {n: v.clone() for n, v in work.network.state_dict().items()}
        losses = original(self, work, old)
        after = work.network.state_dict()
        changed = {n.split(".")[0] for n in before if not torch.equal(before[n], after[n])}
        distance = max(float((before[n] - after[n]).abs().max()) for n in before)
        seen.append((work.context.round, losses["alignment"], changed, distance))
        return losses

    monkeypatch.setattr(fedas.Alignment, "_align", watched)
    federation = federate(make_job("fedas"), names=("a", "b")).run().finish()
    assert [round for round, *_ in seen] == [1, 1]
    for _, loss, changed, distance in seen:
        assert loss > 0 and changed == {"encoder", "decoder_global"} and distance < 1
    records = [r for r in federation.server.records if r["kind"] == "aggregation"]
    assert all(sum(r["weights"].values()) == pytest.approx(1) for r in records)
    assert all(min(r["fisher"].values()) > 0 for r in records)
    assert all(n.startswith(("encoder", "decoder_global")) for n in federation.server.state.models.shared)


def test_a_rate_of_zero_changes_nothing_before_training(federate, monkeypatch):
    monkeypatch.setattr(fedas.Alignment, "_align", lambda *_: pytest.fail("aligned"))
    federate(make_job("fedas", arguments={"alignment_rate": 0.0}), names=("a",)).run()
