"""Split violins: densities against scipy's, colours by significance, and what is written beside them."""

import numpy as np
import pytest
from scipy import stats

from shared_components.core.paired_test import paired_test
from shared_components.reporting.violins import FIRST, NEITHER, SECOND, density, significance_colour, violins

LOW, HIGH = np.linspace(0.3, 0.5, 9), np.linspace(0.5, 0.9, 9)


def test_density_equals_scipys_kernel():
    values, at = np.random.default_rng(0).normal(size=12), np.linspace(-2, 2, 5)
    assert density(values, at) == pytest.approx(stats.gaussian_kde(values)(at))


def test_colours_follow_significance_and_direction():
    def colour(first, second, **which):
        return significance_colour(paired_test(first, second), level=0.01, **which)

    assert (colour(HIGH, LOW), colour(LOW, HIGH), colour(LOW, LOW)) == (FIRST, SECOND, NEITHER)
    assert colour(LOW, HIGH, higher_is_better=False) == FIRST
    assert colour(HIGH[:4], LOW[:4]) == NEITHER  # four pairs cannot be


def test_a_drawing_has_two_halves_a_name_its_p_and_the_least_possible_one():
    pairs = {"fold <1>": (HIGH, LOW), "few": (HIGH[:4], LOW[:4])}
    drawn = violins(pairs, title="AP", y_label="mAP", models=("FL", "CEN"))
    assert drawn.count("<path") == 4 and drawn.count("<circle") == 2 * (9 + 4)
    assert "fold &lt;1&gt;" in drawn and "<1>" not in drawn
    assert "min p 0.125" in drawn and "cannot be below 0.01" in drawn and "FL better" in drawn


def test_the_test_may_use_other_pairs_and_equal_values_have_no_outline():
    labels, few = {"title": "t", "y_label": "y", "models": ("a", "b")}, paired_test(HIGH[:4], LOW[:4])
    drawn = violins({"a": (HIGH, LOW)}, tested={"a": few}, **labels)
    assert "p 0.125, n 4" in drawn and drawn.count("<circle") == 18
    drawn = violins({"a": ([0.5] * 3, [0.5] * 3)}, **labels)
    assert "<path" not in drawn and drawn.count("<circle") == 6
