"""CD2-pFed: which channels are whose, the sub-models, and the distillation by hand."""

import copy
import math

import pytest
import torch

from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.methods.cd2_pfed import CyclicDistillation, channel_slices, mutual_divergence, ramp
from tests.methods.toys import context, frames

BATCH, LATE = frames(count=1), 100  # a round after the ramp


def test_the_last_half_of_every_layers_output_channels_stays(network):
    partition = partition_network(network, load_method("cd2_pfed").partition)
    shared, local = partition.with_roles(Role.GLOBAL), partition.with_roles(Role.LOCAL)
    for name, tensor in network.state_dict().items():
        rows = tensor.shape[0]
        if name.startswith(("head_global", "head_personal")):
            assert name in shared
        elif ".attn.kv." in name:  # keys and values, each in halves
            for start in (0, rows // 2):
                stops = start + rows // 4, start + rows // 2
                assert f"{name}[{start}:{stops[0]}]" in shared and f"{name}[{stops[0]}:{stops[1]}]" in local
        else:
            assert f"{name}[0:{rows - rows // 2}]" in shared and f"{name}[{rows - rows // 2}:{rows}]" in local


@pytest.mark.parametrize(
    ("name", "parts"), [("temporal.16.kv.weight", 2), ("blocks.3.attn.qkv.weight", 3), ("attn.in_proj_weight", 3)]
)
def test_queries_keys_and_values_are_cut_each_whatever_the_network_calls_them(name, parts):
    found = channel_slices(name, torch.zeros(4 * parts, 2), 0.5, frozenset())
    bounds = [(part.role, part.start, part.stop) for part in found]
    assert bounds == [
        (role, 4 * part + at, 4 * part + at + 2)
        for part in range(parts)
        for role, at in ((Role.GLOBAL, 0), (Role.LOCAL, 2))
    ]


def test_share_zero_is_fedavg_and_strength_zero_leaves_the_task_alone(network):
    method = load_method("cd2_pfed", personal_share=0.0)
    assert partition_network(network, method.partition).roles == {Role.GLOBAL}
    plain = load_method("fedavg").local.objective(network, BATCH, context(LATE))
    for limit in (method, load_method("cd2_pfed", strength=0.0)):
        terms = limit.local.objective(network, BATCH, context(LATE))
        assert len(terms) == 1 and torch.equal(terms[0].value, plain[0].value)


class TwoChannels(torch.nn.Module):
    """Two 1x1 layers without biases, small enough to do by hand; the second one is the classifier."""

    def __init__(self):
        super().__init__()
        self.parts = {"head": ("head_global",)}
        self.body = torch.nn.Conv2d(1, 2, 1, bias=False)
        self.head_global = torch.nn.Conv2d(2, 2, 1, bias=False)
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor([3.0, 5.0]).reshape(2, 1, 1, 1))
            self.head_global.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(2, 2, 1, 1))

    def forward(self, image):
        return self.head_global(self.body(image))


def test_a_sub_model_has_the_other_channels_at_zero_and_leaves_no_statistics():
    network, objective, image = TwoChannels(), CyclicDistillation(0.5, 1.0, 1), torch.ones(1, 1, 1, 1)
    shared, private = (objective._part(network, image, private=private) for private in (False, True))
    assert shared.flatten().tolist() == [3.0, 0.0] and private.flatten().tolist() == [0.0, 5.0]
    (gradient,) = torch.autograd.grad(private.sum(), network.body.weight)
    assert gradient.flatten().tolist() == [0.0, 1.0]
    network = TwoChannels()
    network.body = torch.nn.Sequential(network.body, torch.nn.BatchNorm2d(2))
    before = copy.deepcopy(dict(network.named_buffers()))
    CyclicDistillation(0.5, 1.0, 1)._part(network, torch.ones(1, 1, 2, 2), private=True)
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())


@pytest.mark.parametrize("private", [False, True])
def test_either_sub_model_still_attends(network, private):
    """What attention gives depends on the place: neither all values nor all keys are zero."""
    network, seen = copy.deepcopy(network), {}
    for name, module in network.named_modules():
        if name.endswith(".attn"):
            for linear in (module.q, module.kv):
                torch.nn.init.normal_(linear.weight)
            module.register_forward_hook(lambda m, i, o, name=name: seen.update({name: o.detach().flatten(1, 2)}))
    CyclicDistillation(0.5, 1.0, 1)._part(network, torch.rand(1, 3, 64, 64), private=private)
    assert len(seen) == 8 and all(float(value.std(1).max()) > 0 for value in seen.values())


def test_the_divergence_is_the_mean_of_both_ways_and_each_half_learns_from_the_others_fixed_prediction():
    one, other = [[0.7, 0.3], [0.5, 0.5]], [[0.4, 0.6], [0.5, 0.5]]
    logits = [torch.tensor(pixels).log().T.reshape(1, 2, 1, 2) for pixels in (one, other)]

    def divergence(p, q):
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    pixels = [(divergence(p, q) + divergence(q, p)) / 2 for p, q in zip(one, other, strict=True)]
    assert mutual_divergence(*logits).item() == pytest.approx(sum(pixels) / 2, rel=1e-5)
    assert mutual_divergence(logits[0], logits[0]) == 0
    one, other = (torch.randn(1, 3, 2, 2, requires_grad=True) for _ in range(2))
    mutual_divergence(one, other).backward()
    expected = (one.detach().softmax(1) - other.detach().softmax(1)) / 4 / 2  # of 4 pixels; of two terms
    torch.testing.assert_close(one.grad, expected)
    torch.testing.assert_close(other.grad, -expected)


def test_the_distillation_has_a_weight_that_ramps_up_and_stays(network):
    assert ramp(0, 10) == pytest.approx(math.exp(-5)) and ramp(5, 10) == pytest.approx(math.exp(-1.25))
    assert ramp(10, 10) == ramp(99, 10) == 1
    objective = load_method("cd2_pfed", ramp_rounds=10).local.objective
    terms, full = (objective(network, BATCH, context(round)) for round in (5, 10))
    assert terms[1].name == "distillation" and full[1].value > 0
    torch.testing.assert_close(terms[1].value, full[1].value * math.exp(-1.25))
