"""Momentum and Adam at the server against scalar loops, momentum against published golden values."""

import math

import pytest
import torch

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.aggregators.server_optimizers import ServerAdam, ServerMomentum
from shared_components.core.method import Models, Update
from shared_components.core.partition import Partition
from tests.methods.toys import SITES, THETA, profiles, shared, start, step, tensor, updates

ADAM = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
ROUNDS = [SITES[:3], [[0.5, -1.0], [3.0, 2.0], [1.0, 1.0]], [[2.5, 0.0], [2.0, 2.0], [1.5, 4.0]]]


def close(found, expected):
    torch.testing.assert_close(found, tensor(expected), atol=1e-8, rtol=0)


def run(aggregator, rounds=ROUNDS):
    models, state, path = shared(), None, []
    for values in rounds:
        result = step(aggregator, models, updates(values), state)
        models, state = result.models, result.state
        path.append(models.shared["w"])
    return path


def means():
    """Weigh the sites of every round by their samples, 1, 1 and 2."""
    return [[(a + b + 2 * c) / 4 for a, b, c in zip(*values, strict=True)] for values in ROUNDS]


def test_golden_vectors_of_momentum_which_is_fedavg_bit_for_bit_without_it():
    path = run(ServerMomentum(0.9, 1.0), [SITES[:3], [[3.0, 3.0]] * 3])
    close(torch.stack(path), [[2.75, 2.5], [4.575, 3.45]])
    torch.manual_seed(0)
    models = Models({"w": torch.randn(50_000) * 1e3}, {})
    given = [Update(s, 0, {"w": torch.randn(50_000) * 10 ** torch.randn(50_000)}, samples=3) for s in "abc"]
    ours, mean = ServerMomentum(0.0, 1.0), WeightedMean()
    found = [a.apply(start(a, models, 3), Partition(()), models, given).models.shared for a in (ours, mean)]
    assert torch.equal(found[0]["w"], found[1]["w"])


@pytest.mark.parametrize("momentum, rate", [(0.9, 1.0), (0.5, 0.3), (0.0, 0.1)])
def test_momentum_equals_a_scalar_loop(momentum, rate):
    theta, moment = list(THETA), [0.0, 0.0]
    for found, mean in zip(run(ServerMomentum(momentum, rate)), means(), strict=True):
        for i in (0, 1):
            moment[i] = momentum * moment[i] + (theta[i] - mean[i])
            theta[i] -= rate * moment[i]
        assert found.tolist() == pytest.approx(theta, abs=1e-12)


@pytest.mark.parametrize("released", [False, True])
def test_adam_equals_a_scalar_loop(released):
    theta, first, second = list(THETA), [0.0, 0.0], [0.0, 0.0]
    for t, (found, mean) in enumerate(zip(run(ServerAdam(**ADAM, released=released)), means(), strict=True), 1):
        rate = 0.1 * math.sqrt(1 - 0.99 ** (t + 1)) / (1 - 0.9 ** (t + 1)) if released else 0.1
        for i in (0, 1):
            change = mean[i] - theta[i]
            first[i] = 0.9 * first[i] + 0.1 * change
            second[i] = 0.99 * second[i] + 0.01 * change**2
            theta[i] += rate * first[i] / (math.sqrt(second[i]) + 1e-3)
        assert found.tolist() == pytest.approx(theta, abs=1e-12)


@pytest.mark.parametrize("aggregator", [ServerMomentum(0.9, 1.0), ServerAdam(**ADAM)])
def test_statistics_of_batch_norm_are_the_mean_of_what_sites_send(aggregator):
    """A variance that has fallen once would fall on with the momentum, below 0."""
    pieces = ("n.weight", "n.running_var", "n.running_mean[0:2]")
    models, state = Models({name: torch.ones(2) for name in pieces}, {}), None
    for value in (0.5, 0.1, 0.05):
        given = [Update(s, 0, {name: torch.full((2,), value) for name in pieces}, samples=1) for s in "ab"]
        result = step(aggregator, models, given, state)
        models, state = result.models, result.state
        assert [models.shared[name].tolist() for name in pieces[1:]] == [pytest.approx([value] * 2)] * 2
    assert models.shared["n.weight"].tolist() != pytest.approx([value] * 2)


@pytest.mark.parametrize("aggregator", [ServerMomentum(0.9, 0.1), ServerAdam(**ADAM)])
def test_integer_buffers_take_the_maximum_and_have_no_moments(aggregator):
    models = Models({"w": torch.zeros(2), "steps": torch.tensor(3)}, {})
    given = [Update(s, 0, {"w": torch.ones(2), "steps": torch.tensor(n)}) for s, n in (("a", 9), ("b", 5))]
    state = aggregator.init(Partition(()), models, profiles(2))
    result = aggregator.apply(state, Partition(()), models, given)
    assert result.models.shared["steps"].item() == 9 and result.models.shared["steps"].dtype == torch.int64
    assert not any(name.endswith("/steps") for name in result.state) and result.state.keys() == state.keys()
