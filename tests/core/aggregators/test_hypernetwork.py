"""PFedSIS at the server: the hypernetwork's size, steps; the similarity softmax, Eqs. (14), (15)."""

import math
from unittest.mock import Mock

import pytest
import torch

from shared_components.core.aggregators import hypernetwork as hn
from shared_components.core.aggregators.mean import normalised_entropy, weighted_sum
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
    (products,) = hn.layer_products({"x": ["a"]}, pieces, [(change, {"a": torch.zeros(5)})])
    ours = hn.update_hypernetwork(given, products, rate=0.1)
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    omega = hn.mixing_weights(leaves)[0]
    theta = sum(omega[k] * pieces[k]["a"] for k in range(3))
    gradients = torch.autograd.grad(theta, list(leaves.values()), grad_outputs=change["a"])
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        torch.testing.assert_close(ours[name], (leaf + 0.1 * gradient).detach(), atol=1e-5, rtol=1e-4)


def test_products_and_mixtures_of_many_sites_equal_one_sum_after_another_bit_by_bit():
    generator, layers = torch.Generator().manual_seed(0), {"x": ["a", "n"], "y": ["b"]}

    def pieces():
        a, b = (torch.randn(n, generator=generator) for n in (20_000, 300))
        return {"a": a, "b": b.reshape(3, 100), "n": torch.tensor(int(a[0] * 100))}

    sites = [pieces() for _ in range(9)]
    moved = [(pieces(), site) for site in sites[:4]]
    products = hn.layer_products(layers, sites, moved)
    for u, (after, before) in enumerate(moved):
        for number, name in enumerate(("a", "b")):
            for k, site in enumerate(sites):
                exact = (site[name].double() * (after[name] - before[name]).double()).sum()
                assert products[u, number, k] == exact.float()
    mixings = torch.softmax(torch.randn(9, 2, 9, generator=generator), 2)
    for mixing, mixed in zip(mixings, hn.mix(layers, sites, mixings), strict=True):
        for row, names in zip(mixing, layers.values(), strict=True):
            for name in names:
                alone = weighted_sum([site[name] for site in sites], row.double().tolist())
                assert mixed[name].shape == alone.shape and torch.equal(mixed[name], alone)


def test_a_product_that_a_matrix_product_leaves_open_is_summed_anew(monkeypatch):
    """The change is orthogonal to the pieces, so that the error bound spans many float32 values."""
    here, change = {"w": torch.tensor([1.0, 1e-4] * 2000)}, {"w": torch.tensor([1e-4, -1.0] * 2000)}
    summed = Mock(wraps=hn._dot)
    monkeypatch.setattr(hn, "_dot", summed)
    (((product,),),) = hn.layer_products({"x": ["w"]}, [here], [(change, {"w": torch.zeros(4000)})]).tolist()
    assert summed.call_count == 1 and product == hn._dot(here["w"], change["w"])


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
    weights, entropy = similarity_weights(values.double(), temperature=0.5)
    assert entropy == pytest.approx(float(-(weights * weights.log()).sum()))
    for j in range(5):
        exponentials = [math.exp(float(values[k, j]) / 0.5) for k in range(4)]
        for k in range(4):
            assert float(weights[k, j]) == pytest.approx(exponentials[k] / sum(exponentials), rel=1e-6)


def test_relative_sensitivities_do_not_depend_on_units_and_are_uniform_off_the_path():
    values = torch.tensor([[1e-6, 2e-6], [3e-6, 2e-6]], dtype=torch.float64)
    (raw, _), (relative, _) = similarity_weights(values), similarity_weights(values, scale="relative")
    torch.testing.assert_close(raw, torch.full((2, 2), 0.5, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(relative, similarity_weights(values * 1e6, scale="relative")[0])
    assert relative[1, 0] > 0.7
    weights, _ = similarity_weights(torch.zeros(3, 2, dtype=torch.float64), scale="relative")
    torch.testing.assert_close(weights, torch.full((3, 2), 1 / 3, dtype=torch.float64))
