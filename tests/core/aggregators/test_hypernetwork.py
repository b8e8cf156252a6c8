"""PFedSIS at the server: the hypernetwork's size, steps; the similarity softmax, Eqs. (14), (15)."""

import math

import pytest
import torch

from shared_components.core.aggregators import hypernetwork as hn
from shared_components.core.aggregators.mean import normalised_entropy
from shared_components.core.aggregators.site_weights import similarity_mean, similarity_weights
from shared_components.core.method import Update


def weights(layers=2, sites=3, seed=0):
    return hn.init_hypernetwork(layers, sites, torch.Generator().manual_seed(seed))


def test_a_hypernetwork_has_the_published_size_and_uniform_weights_if_its_output_is_dead():
    count = sum(value.numel() for name, value in weights(14, 3).items() if name != "embedding")
    assert count == 34_542  # "34.5K" in Table II
    given = weights()
    given["output.weight"] = -torch.ones_like(given["output.weight"])
    torch.testing.assert_close(hn.mixing_weights(given), torch.full((2, 3), 1 / 3))


def test_step_equals_automatic_differentiation_through_the_mixed_weights():
    """Eqs. (8), (9): the released way (vector-Jacobian product of theta_P) gives the same step."""
    pieces = [{"a": torch.randn(5)} for _ in range(3)]
    change = {"a": torch.randn(5)}
    given = weights(layers=1)
    ours = hn.update_hypernetwork(given, hn.layer_products({"x": ["a"]}, pieces, change), learning_rate=0.1)
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    omega = hn.mixing_weights(leaves)[0]
    theta = sum(omega[k] * pieces[k]["a"] for k in range(3))
    gradients = torch.autograd.grad(theta, list(leaves.values()), grad_outputs=change["a"])
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        torch.testing.assert_close(ours[name], (leaf + 0.1 * gradient).detach(), atol=1e-5, rtol=1e-4)


def test_entropy_is_one_for_plain_averaging_or_one_site_and_zero_for_one_weight():
    assert hn.mixing_entropy(torch.full((4, 3), 1 / 3)) == pytest.approx(1.0)
    assert hn.mixing_entropy(torch.eye(3)) == pytest.approx(0.0) and normalised_entropy(0.0, 1) == 1.0
    given = [update(str(k), [float(k)], [0.3]) for k in range(3)]
    pieces, entropy = similarity_mean(given, ["w"], scale="raw", temperature=1.0)
    assert pieces["w"].item() == pytest.approx(1.0) and entropy["raw"] == pytest.approx(1.0)


def update(site, value, sensitivity):
    return Update(site, 0, {"w": torch.tensor(value)}, {"sensitivity": {"w": torch.tensor(sensitivity)}})


def test_golden_weights_equal_a_scalar_loop():
    given = [update("1", [2.0, 2], [0.0, 1]), update("2", [1.0, 4], [1.0, 1]), update("3", [4.0, 2], [2.0, 1])]
    pieces, _ = similarity_mean(given, ["w"], scale="raw", temperature=1.0)
    torch.testing.assert_close(pieces["w"], torch.tensor([3.08575344, 2.66666667]))
    values = torch.rand(4, 5)
    weights = similarity_weights(list(values), temperature=0.5)
    for j in range(5):
        exponentials = [math.exp(float(values[k, j]) / 0.5) for k in range(4)]
        for k in range(4):
            assert float(weights[k, j]) == pytest.approx(exponentials[k] / sum(exponentials), rel=1e-6)


def test_relative_sensitivities_do_not_depend_on_units_and_are_uniform_off_the_path():
    values = [torch.tensor([1e-6, 2e-6]), torch.tensor([3e-6, 2e-6])]
    raw, relative = similarity_weights(values), similarity_weights(values, scale="relative")
    torch.testing.assert_close(raw, torch.full((2, 2), 0.5, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(relative, similarity_weights([v * 1e6 for v in values], scale="relative"))
    assert relative[1, 0] > 0.7
    weights = similarity_weights([torch.zeros(2)] * 3, scale="relative")
    torch.testing.assert_close(weights, torch.full((3, 2), 1 / 3, dtype=torch.float64))
