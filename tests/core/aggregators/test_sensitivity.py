"""Shape-similarity softmax, Eqs. (14) and (15), against a golden vector and a scalar loop."""

import math

import pytest
import torch

from shared_components.core.aggregators.sensitivity import normalised_entropy, similarity_mean, similarity_weights
from shared_components.core.method import Update


def update(site, value, sensitivity):
    return Update(site, 0, {"w": torch.tensor(value)}, {"sensitivity": {"w": torch.tensor(sensitivity)}})


def test_golden_vector_of_three_sites():
    given = [update("1", [2.0, 2], [0.0, 1]), update("2", [1.0, 4], [1.0, 1]), update("3", [4.0, 2], [2.0, 1])]
    pieces, _ = similarity_mean(given, ["w"], scale="raw", temperature=1.0)
    torch.testing.assert_close(pieces["w"], torch.tensor([3.08575344, 2.66666667]))


def test_weights_equal_a_scalar_loop():
    values = torch.rand(4, 5)
    weights = similarity_weights(list(values), temperature=0.5)
    for j in range(5):
        exponentials = [math.exp(float(values[k, j]) / 0.5) for k in range(4)]
        for k in range(4):
            assert float(weights[k, j]) == pytest.approx(exponentials[k] / sum(exponentials), rel=1e-6)


def test_equal_sensitivities_are_plain_averaging_with_entropy_one():
    given = [update(str(k), [float(k)], [0.3]) for k in range(3)]
    pieces, entropy = similarity_mean(given, ["w"], scale="raw", temperature=1.0)
    assert pieces["w"].item() == pytest.approx(1.0)
    assert entropy == pytest.approx(1.0)


def test_relative_scale_does_not_depend_on_units_and_raw_does():
    values = [torch.tensor([1e-6, 2e-6]), torch.tensor([3e-6, 2e-6])]
    raw, relative = similarity_weights(values), similarity_weights(values, scale="relative")
    torch.testing.assert_close(raw, torch.full((2, 2), 0.5, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(relative, similarity_weights([v * 1e6 for v in values], scale="relative"))
    assert relative[1, 0] > 0.7


def test_relative_scale_of_parameters_off_the_path_is_uniform():
    weights = similarity_weights([torch.zeros(2)] * 3, scale="relative")
    torch.testing.assert_close(weights, torch.full((3, 2), 1 / 3, dtype=torch.float64))


def test_unknown_scale_is_named():
    with pytest.raises(ValueError, match="'log'"):
        similarity_weights([torch.zeros(1)], scale="log")


def test_entropy_of_one_site_is_one():
    assert normalised_entropy(0.0, 1) == 1.0
