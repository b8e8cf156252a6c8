"""PSNR, SSIM and AUC against hand-worked values and other libraries."""

import math

import numpy as np
import pytest
import torch
from monai.metrics.regression import SSIMMetric
from scipy.stats import mannwhitneyu

from evidence.attacks.measures import auc, auc_interval, matched, psnr, ssim


def test_psnr_by_hand():
    """An error of 0.1 everywhere is 20 dB, of 0.5 on a quarter of the pixels 10 log10(16)."""
    black = torch.zeros(3, 4, 4)
    assert psnr(black, black + 0.1) == pytest.approx(20, abs=1e-5)
    quarter = black.clone()
    quarter[:, :2, :2] = 0.5
    assert psnr(black, quarter) == pytest.approx(10 * math.log10(16), abs=1e-9)
    assert psnr(black, black) == math.inf


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_ssim_equals_monais(noise):
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(3, 24, 32, generator=generator)
    b = (a + noise * torch.randn(3, 24, 32, generator=generator)).clamp(0, 1)
    other = float(SSIMMetric(spatial_dims=2, data_range=1.0)(a[None].double(), b[None].double()))
    assert ssim(a, b) == pytest.approx(other, abs=1e-5)
    assert noise or ssim(a, b) == pytest.approx(1.0)


def test_a_batch_found_in_another_order_is_put_in_its_own():
    true = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    order = [2, 0, 3, 1]
    assert torch.equal(matched(true[order], true), true)
    assert torch.equal(matched((true[order] + 0.01).clamp(0, 1), true), (true + 0.01).clamp(0, 1))


def test_auc_by_hand():
    """Of the six pairs (1, 2), (1, 3), (1, 1), (2.5, 2), (2.5, 3), (2.5, 1) three are in order and one is a tie."""
    assert auc([1.0, 2.5], [2.0, 3.0, 1.0]) == pytest.approx((3 + 0.5) / 6)
    assert auc([0.0, 0.1], [1.0, 2.0]) == 1.0 and auc([1.0], [1.0]) == 0.5


def test_auc_equals_the_statistic_of_mann_and_whitney():
    generator = np.random.default_rng(3)
    a, b = generator.integers(0, 9, 17), generator.integers(2, 12, 23)
    expected = mannwhitneyu(b, a).statistic / (17 * 23)
    assert auc(a.tolist(), b.tolist()) == pytest.approx(expected, abs=1e-12)


def test_the_interval_holds_the_value_and_repeats():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0, 1, 40).tolist(), generator.normal(1, 1, 40).tolist()
    low, high = auc_interval(a, b)
    assert low < auc(a, b) < high and (low, high) == auc_interval(a, b)
    assert 0.05 < high - low < 0.3
    assert auc_interval([0.0] * 5, [1.0] * 5) == (1.0, 1.0)
