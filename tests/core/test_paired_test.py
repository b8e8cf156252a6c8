"""Wilcoxon's signed-rank test: scipy's exact values, all signs tried one by one, and the least possible p."""

import itertools

import numpy as np
import pytest
from scipy import stats

from shared_components.core.paired_test import paired_test


def test_p_equals_scipys_and_with_equal_differences_all_signs():
    for seed in range(20):
        first, second = np.random.default_rng(seed).normal(size=(2, 9))
        assert paired_test(first, second).p == pytest.approx(stats.wilcoxon(first, second, mode="exact").pvalue)
    differences = np.array([1.0, 1.0, -2.0, 2.0, 3.0, 1.0])
    ranks = stats.rankdata(np.abs(differences))
    middle, far = ranks.sum() / 2, abs(ranks[differences > 0].sum() - ranks.sum() / 2)
    sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(ranks))]
    expected = np.mean([abs(total - middle) >= far - 1e-9 for total in sums])
    assert paired_test(differences, np.zeros(6)).p == pytest.approx(expected)


@pytest.mark.parametrize(("pairs", "least"), [(4, 0.125), (5, 0.0625), (8, 0.0078125), (9, 0.00390625)])
def test_the_least_p_is_that_of_differences_of_one_sign(pairs, least):
    found = paired_test(np.arange(1.0, pairs + 1), np.zeros(pairs))
    assert found.p == found.least == least


def test_equal_and_unknown_pairs_are_left_out_and_too_few_pairs_are_called_insignificant():
    found = paired_test([1.0, 2.0, np.nan, 4.0], [1.0, 1.0, 5.0, 2.0])
    assert (found.pairs, found.equal, found.median) == (2, 1, 1.0) and paired_test([1.0], [1.0]).p == 1.0
    found = paired_test([0.9, 0.8, 0.7, 0.6], [0.5, 0.3, 0.4, 0.2])
    assert found.text(0.01) == "p 0.125 (minimum 0.125, 4 pairs: cannot be below 0.01)"
    assert paired_test(np.arange(1.0, 10), np.zeros(9)).text(0.01) == "p 0.0039 (minimum 0.0039, 9 pairs)"
    with pytest.raises(ValueError, match="are not pairs"):
        paired_test([1.0], [1.0, 2.0])
