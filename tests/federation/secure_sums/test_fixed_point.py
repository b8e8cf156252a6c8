"""Weights as whole numbers: exact sums, a stated error, and no overflow without a sentence."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from shared_components.federation.secure_sums.fixed_point import FixedPoint, as_pieces, as_vector


def drawn(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"b": (3, 4), "a": (5,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def test_two_sites_by_hand():
    """With 8 fraction bits 1.5 is 384 and -0.25 is -64: (2 x 384 - 3 x 64) / 5 / 256 = 0.45."""
    point = FixedPoint(total=5, fraction_bits=8)
    one, two = (point.encode({"w": torch.tensor([value])}, n) for value, n in ((1.5, 2), (-0.25, 3)))
    assert one.tolist() == [768] and two.tolist() == [2**64 - 192]
    assert point.decode(one + two, 5, {"w": torch.zeros(1)})["w"].item() == pytest.approx(0.45)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_mean_is_as_near_as_stated(bits):
    """Against exact fractions; the bound is met and is no more than ten times what is found."""
    samples = [1, 2000, 7]
    point = FixedPoint(sum(samples), bits)
    sites = [drawn(seed) for seed in range(3)]
    summed = sum(point.encode(site, n) for site, n in zip(sites, samples, strict=True))
    mean = point.decode(summed, sum(samples), sites[0])
    worst = 0.0
    for name in ("a", "b"):
        values = [site[name].reshape(-1).tolist() for site in sites]
        for place, got in enumerate(mean[name].reshape(-1).tolist()):
            exact = sum(n * Fraction(v[place]) for n, v in zip(samples, values, strict=True)) / sum(samples)
            worst = max(worst, abs(float(Fraction(got) - exact)))
    assert point.error / 10 < worst <= point.error * (1 + 1e-6)


def test_the_largest_weight_at_every_site_does_not_overflow_and_the_next_is_refused():
    samples = [1000, 3000, 5]
    point = FixedPoint(sum(samples), 32)
    for sign in (1, -1):
        site = {"w": torch.tensor([sign * point.largest], dtype=torch.float64)}
        summed = sum(point.encode(site, n) for n in samples)
        assert point.decode(summed, sum(samples), site)["w"].item() == pytest.approx(sign * point.largest)
        assert abs(int(summed.view(np.int64)[0])) < 2**62 + 2**20
    beyond = {"w": torch.tensor([point.largest * 1.001], dtype=torch.float64)}
    with pytest.raises(ValueError, match="piece w has values that are not finite or beyond 268100"):
        point.encode(beyond, 1000)


def test_equal_counts_of_steps_stay_and_shapes_dtypes_and_order_survive():
    point, counts = FixedPoint(10), {"steps": torch.tensor(123457)}
    summed = point.encode(counts, 3) + point.encode(counts, 7)
    mean = point.decode(summed, 10, counts)["steps"]
    assert mean.item() == 123457 and mean.dtype == torch.int64
    like = {"b": torch.zeros(3, 4, dtype=torch.bfloat16), "a": torch.zeros(5), "c": torch.zeros(())}
    point = FixedPoint(1)
    mean = point.decode(point.encode(like, 1), 1, like)
    assert list(mean) == list(like)
    assert {n: (v.shape, v.dtype) for n, v in mean.items()} == {n: (v.shape, v.dtype) for n, v in like.items()}
    vector = np.arange(18, dtype=np.uint64) + np.uint64(2**63)
    pieces = as_pieces(vector, like)
    assert pieces["b"].shape == (3, 4) and pieces["a"].dtype == torch.int64
    assert np.array_equal(as_vector(pieces), vector)


def test_what_is_not_finite_and_wrong_numbers_of_samples_are_refused():
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="piece w has values that are not finite"):
            FixedPoint(10).encode({"w": torch.tensor([1.0, value])}, 10)
    for samples in (0, 11, -1):
        with pytest.raises(ValueError, match=f"^{samples} samples are not from 1 to 10"):
            FixedPoint(10).encode(drawn(0), samples)
