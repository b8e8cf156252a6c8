"""SAM and ASAM against Algorithm 1 written plainly, what is put back, and averaging over rounds."""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from shared_components.core.method import Term, load_method
from shared_components.core.objectives import SharpnessAware, ascent
from shared_components.core.partition import partition_network
from shared_components.core.training import train_step
from tests.federation.conftest import make_job, narrow  # noqa: F401
from tests.methods.toys import context


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


def test_radius_zero_is_one_plain_pass_and_zero_gradients_move_nothing():
    backward = Mock(return_value={"loss": 1.0})
    assert SharpnessAware(0.0)(Bowl(), backward, context()) == {"loss": 1.0} and backward.call_count == 1
    assert ascent({"w": torch.ones(2, 2)}, {"w": torch.zeros(2, 2)}, rho=1.0, eta=0.01)["w"].abs().sum() == 0
    assert [load_method("fedsam", adaptive=a).about.label for a in (False, True)] == ["FedSAM", "FedASAM"]


def test_both_passes_see_the_same_masks_and_the_second_leaves_no_trace():
    seen, noisy = [], Bowl()
    noisy.loss = lambda: seen.append(torch.rand(3).tolist()) or Bowl.loss(noisy)
    torch.manual_seed(3)
    gradients_of(SharpnessAware(0.1), noisy)
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(3)
    assert seen[0] == seen[1] and torch.equal(after, torch.rand(1))
    network = Bowl()
    network.norm = nn.BatchNorm1d(2)
    network.loss = lambda: Bowl.loss(network) + network.norm(network.matrix.repeat(2, 1) + 1).sum()
    gradients_of(SharpnessAware(0.5), network)
    assert network.norm.num_batches_tracked == 1
    assert network.norm.running_mean.tolist() == pytest.approx([0.1 * 3.0, 0.1 * 0.0])
    network = Bowl()
    network.loss = Mock(side_effect=[Bowl.loss(network), FloatingPointError("not finite")])
    with pytest.raises(FloatingPointError):
        gradients_of(SharpnessAware(0.5), network)
    assert network.vector.item() == 3.0


@pytest.mark.slow
def test_a_federation_ends_with_the_mean_of_its_last_models_also_after_a_resume(federate, tmp_path):
    job = make_job("fedsam", rounds=3, arguments={"swa": {"start": 1}})
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


class Layers(nn.Module):
    """A token, a normalisation layer and two matrices, by whose names and shapes the scalings differ."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
        self.norm = nn.LayerNorm(4)
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(self.norm(x[:, None] + self.cls_token)))).square().mean()


def algorithm_1(batches, rate, rho, eta=None, released=False):
    """Return the weights after SAM's, or with eta ASAM's, steps of gradient descent, in plain loops."""
    network = Layers()
    for batch in batches:
        parameters = dict(network.named_parameters())
        gradients = torch.autograd.grad(network(batch), list(parameters.values()))
        scales = {}
        for name, value in parameters.items():
            adaptive = eta is not None and ("weight" in name if released else value.dim() >= 2)
            scales[name] = [abs(v) + eta if adaptive else 1.0 for v in value.flatten().tolist()]
        scaled = [[t * g for t, g in zip(scales[n], grad.flatten().tolist(), strict=True)]
                  for n, grad in zip(parameters, gradients, strict=True)]  # fmt: skip
        norm = math.sqrt(sum(v * v for row in scaled for v in row))
        moved = Layers()
        moved.load_state_dict(network.state_dict())
        for (name, value), row in zip(moved.named_parameters(), scaled, strict=True):
            epsilon = torch.tensor([rho * t * v / norm for t, v in zip(scales[name], row, strict=True)])
            value.data += epsilon.view_as(value)
        at_theta_hat = torch.autograd.grad(moved(batch), list(moved.parameters()))
        for value, gradient in zip(network.parameters(), at_theta_hat, strict=True):
            value.data -= rate * gradient
    return network.state_dict()


@pytest.mark.parametrize("adaptive, scaling", [(False, "paper"), (True, "paper"), (True, "as_released")])
def test_steps_are_those_of_algorithm_1(adaptive, scaling):
    torch.manual_seed(2)
    batches = torch.randn(4, 3, 4)
    method = load_method("fedsam", rho=0.7, eta=0.2, adaptive=adaptive, scaling=scaling)
    network = Layers()
    optimizer, found = torch.optim.SGD(network.parameters(), lr=0.1), partition_network(network, method.partition)
    for batch in batches:
        known = replace(context(), precision="float32")
        train_step(network, optimizer, method, {"x": batch}, known, found, by_loss)
    expected = algorithm_1(batches, 0.1, 0.7, 0.2 if adaptive else None, scaling == "as_released")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def by_loss(network, batch, known):
    return [Term("loss", network(batch["x"]))]


def test_under_bf16_autocast_weights_and_gradients_stay_float32_and_the_ascent_is_undone_to_the_bit():
    torch.manual_seed(2)
    network, plain = Layers(), Layers()
    method, batch = load_method("fedsam", rho=0.7, eta=0.2, adaptive=True), {"x": torch.randn(3, 4)}
    found, seen = partition_network(network, method.partition), []
    before = {n: v.clone() for n, v in network.state_dict().items()}

    def objective(network, batch, known):
        seen.append(network.fc1(batch["x"]).dtype)
        return by_loss(network, batch, known)

    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    train_step(network, optimizer, method, batch, replace(context(), precision="bf16"), found, objective)
    assert seen == [torch.bfloat16] * 2
    assert all(torch.equal(before[n], v) and v.dtype == torch.float32 for n, v in network.state_dict().items())
    assert all(p.grad.dtype == torch.float32 for p in network.parameters())
    # the second pass sees the moved weights: a cast that was kept from the first would give its gradient
    train_step(plain, optimizer, load_method("fedavg"), batch, replace(context(), precision="bf16"), found, by_loss)
    assert not torch.equal(network.fc1.weight.grad, plain.fc1.weight.grad)
