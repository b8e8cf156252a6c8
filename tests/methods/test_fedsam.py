"""SAM and ASAM on a quadratic by hand, what is put back, and weight averaging over rounds."""

import math
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from shared_components.core.aggregators.server_optimizers import AveragedMean, delivered
from shared_components.core.method import load_method
from shared_components.core.objectives import SharpnessAware, ascent
from tests.federation.conftest import make_job, narrow  # noqa: F401
from tests.methods.toys import context, partition, profiles, shared, updates


class Bowl(nn.Module):
    """Loss sum of a_i w_i^2 / 2 over a matrix and a vector, whose gradient is a_i w_i."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[2.0, -1.0]]))
        self.vector = nn.Parameter(torch.tensor([3.0]))

    def loss(self):
        return (torch.tensor([1.0, 4.0]) * self.matrix.square()).sum() / 2 + self.vector.square().sum() / 2


def gradients_of(rule, network=None):
    network = network or Bowl()

    def backward():
        network.zero_grad()
        loss = network.loss()
        loss.backward()
        return {"loss": float(loss.detach())}

    losses = rule(network, backward, context())
    return losses, [*network.matrix.grad.flatten().tolist(), network.vector.grad.item()], network


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_gradient_is_taken_at_the_ascent_point(adaptive):
    w, a, rho, eta = [2.0, -1.0, 3.0], [1.0, 4.0, 1.0], 0.5, 0.01
    gradient = [a[i] * w[i] for i in range(3)]
    scale = [abs(w[0]) + eta, abs(w[1]) + eta, 1.0] if adaptive else [1.0] * 3
    norm = math.sqrt(sum((scale[i] * gradient[i]) ** 2 for i in range(3)))
    expected = [a[i] * (w[i] + rho * scale[i] ** 2 * gradient[i] / norm) for i in range(3)]
    losses, found, network = gradients_of(SharpnessAware(rho, adaptive, eta))
    assert found == pytest.approx(expected, rel=1e-6)
    assert losses["loss"] == pytest.approx((1 * 4 + 4 * 1 + 9) / 2)
    assert network.matrix.flatten().tolist() == w[:2] and network.vector.item() == 3.0


def test_radius_zero_is_the_plain_gradient_of_one_pass():
    backward = Mock(return_value={"loss": 1.0})
    assert SharpnessAware(0.0)(Bowl(), backward, context()) == {"loss": 1.0} and backward.call_count == 1


def test_zero_gradients_move_nothing():
    moves = ascent({"w": torch.ones(2, 2)}, {"w": torch.zeros(2, 2)}, rho=1.0, eta=0.01)
    assert moves["w"].abs().sum() == 0


def test_both_passes_see_the_same_masks_and_the_stream_goes_on_as_after_one():
    seen, noisy = [], Bowl()
    noisy.loss = lambda: seen.append(torch.rand(3).tolist()) or Bowl.loss(noisy)
    torch.manual_seed(3)
    gradients_of(SharpnessAware(0.1), noisy)
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(3)
    assert seen[0] == seen[1] and torch.equal(after, torch.rand(1))


def test_the_network_is_put_back_when_the_second_pass_fails():
    network = Bowl()
    network.loss = Mock(side_effect=[Bowl.loss(network), FloatingPointError("not finite")])
    with pytest.raises(FloatingPointError):
        gradients_of(SharpnessAware(0.5), network)
    assert network.vector.item() == 3.0


def test_the_running_mean_is_of_every_cycles_models_from_the_first_round_on():
    """Models of rounds 0 to 4 are 1, 3, 5, 7, 9 in the first coordinate; from round 1 every second: 3 and 7."""
    aggregator = AveragedMean(start=1, cycle=2)
    state = aggregator.init(partition(), shared(), profiles(1))
    models = shared()
    assert delivered(state, models) is models
    for round in range(5):
        result = aggregator.apply(state, partition(), models, updates([[1.0 + 2 * round, 0.0]]))
        state, models = result.state, result.models
    assert models.shared["w"].tolist() == [9.0, 0.0]
    assert delivered(state, models).shared["w"].tolist() == [5.0, 0.0]
    assert result.report == {"averaged_rounds": 2} and state["average/w"].dtype == torch.float64


@pytest.mark.slow
def test_a_federation_ends_with_the_mean_of_its_last_models_also_after_a_resume(federate, tmp_path):
    job = make_job("fedsam", rounds=3, arguments={"average_from": 1})
    federation = federate(job, folder=tmp_path / "a")
    federation.enrol()
    models = []
    while federation.server.state.round < 3:
        federation.send(federation.replies())
        models.append(dict(federation.server.state.models.shared))
    last = federation.asked.messages["site-1"].pieces
    for name in ("head_global.bias", "encoder.patch_embed1.proj.weight"):
        torch.testing.assert_close(last[name], (models[1][name] + models[2][name]) / 2)
    federate(job, folder=tmp_path / "b").run(until=2)
    again = federate(job, folder=tmp_path / "b", resume=True).run()
    found = again.asked.messages["site-1"].pieces
    assert all(torch.equal(last[name], found[name]) for name in last)


def test_the_label_says_which_it_is():
    assert [load_method("fedsam", adaptive=a).about.label for a in (False, True)] == ["FedSAM", "FedASAM"]
