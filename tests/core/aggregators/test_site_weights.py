"""q-FedAvg's step against published golden values, a scalar loop and its limits."""

import pytest
import torch

from shared_components.core.aggregators.site_weights import FairMean, fair_weights
from shared_components.core.method import Models, Update
from shared_components.core.partition import Partition
from tests.methods.toys import SITES, THETA, shared, step, updates

LOSSES = [0.5, 1.0, 2.0, 0.25, 3.0]


def given(losses=LOSSES[:3], values=SITES[:3]):
    return updates(values, extras={"loss": losses})


def scalar_step(sites, losses, q, lipschitz):
    """Algorithm 2 as it is written: sums of Delta_k and of h_k."""
    numerator, denominator = [0.0, 0.0], 0.0
    for site, loss in zip(sites, losses, strict=True):
        gradient = [lipschitz * (a - b) for a, b in zip(THETA, site, strict=True)]
        for i in (0, 1):
            numerator[i] += loss**q * gradient[i]
        square = sum(g * g for g in gradient)
        denominator += (q * loss ** (q - 1) * square if q else 0.0) + lipschitz * loss**q
    return [a - n / denominator for a, n in zip(THETA, numerator, strict=True)]


def test_golden_vector_and_all_sites_with_the_mean_loss_as_released():
    found = step(FairMean(1.0, 10.0), shared(), given()).models.shared["w"].tolist()
    assert found == pytest.approx([1.04529617, 2.01393728], abs=1e-8)
    weights = fair_weights([1.0, 2.0], [1.0, 1.0], q=1.0, lipschitz=1.0)
    assert weights[1] == pytest.approx(2 * weights[0])
    assert sum(fair_weights([1.0, 2.0], [1.0, 1.0], q=1.0, lipschitz=10.0)) < sum(weights) < 1
    result = step(FairMean(1.0, 10.0, released=True), shared(), given())
    mean = (0.5 + 1.0 + 2 * 2.0) / 4 + 1e-10  # samples 1, 1, 2
    expected = scalar_step(SITES[:3], [mean] * 3, 1.0, 10.0)
    assert result.models.shared["w"].tolist() == pytest.approx(expected, abs=1e-12)
    assert len(set(result.report["fairness"]["weight"].values())) == 1


@pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("lipschitz", [0.5, 10.0, 1000.0])
def test_it_equals_a_scalar_loop(q, lipschitz):
    found = step(FairMean(q, lipschitz), shared(), given(LOSSES, SITES)).models.shared["w"].tolist()
    assert found == pytest.approx(scalar_step(SITES, LOSSES, q, lipschitz), abs=1e-10)


@pytest.mark.parametrize("q", [0.0, 0.2, 1.0, 2.0])
@pytest.mark.parametrize("released", [False, True])
def test_a_loss_of_zero_stays_finite(q, released):
    result = step(FairMean(q, 10.0, released), shared(), given([0.0, 0.0, 0.0]))
    assert torch.isfinite(result.models.shared["w"]).all()


def test_integer_buffers_take_the_maximum():
    models = Models({"w": torch.zeros(2), "steps": torch.tensor(3)}, {})
    sent = [
        Update(s, 0, {"w": torch.ones(2), "steps": torch.tensor(n)}, {"loss": {"value": torch.tensor(1.0)}})
        for s, n in (("a", 9), ("b", 5))
    ]
    assert FairMean(1.0, 10.0).apply({}, Partition(()), models, sent).models.shared["steps"].item() == 9
