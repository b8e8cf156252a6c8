"""The sentence that opens a comparison: which rows differ beyond chance, by p-values worked by hand."""

import math

import pytest

from shared_components.experiments.comparison.output import as_page
from shared_components.experiments.comparison.results import _holm, _p_value, verdict
from shared_components.experiments.comparison.tables import score_table
from tests.experiments.comparison.conftest import compared, result


def sentence(**rows: tuple[float | None, ...]) -> str:
    """Return the verdict on rows by their Dice in each seed, the same at both sites."""
    comparison = compared(*(
        result(label, seed, None if dice is None else (dice, dice))
        for label, values in rows.items()
        for seed, dice in enumerate(values, start=1)
    ))  # fmt: skip
    return verdict(comparison, comparison.groups[0])


def test_the_best_row_is_told_from_those_that_it_beats_in_every_seed_and_not_from_the_others():
    text = sentence(A=(0.60, 0.62, 0.64), B=(0.50, 0.51, 0.52), C=(0.60, 0.57, 0.66))
    assert text.startswith("A has the highest mean Dice (%) over the sites, 62.00. It differs beyond chance from B, ")
    assert "and not from C (paired t-test over 3 seeds, corrected by Holm for 2 rows, p < 0.05)." in text
    assert "differs from no other row beyond chance" in sentence(A=(0.6, 0.7, 0.5), B=(0.5, 0.72, 0.5))


def test_p_is_that_of_two_degrees_of_freedom_and_constant_differences_are_not_tested():
    t = 0.11 / (0.01 / math.sqrt(3))  # of the differences 0.10, 0.11 and 0.12
    assert _p_value([(0.6, 0.5), (0.62, 0.51), (0.64, 0.52)]) == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert _p_value([(0.75, 0.5)] * 3) == _p_value([(0.9, 0.1)] * 2) == 1.0


def test_holm_stops_at_the_first_that_is_not_significant():
    assert _holm({"a": 0.03, "b": 0.01, "c": 0.02}) == ["a", "b", "c"]  # below 0.05 / 1, 0.05 / 3 and 0.05 / 2
    assert _holm({"a": 0.01, "b": 0.03, "c": 0.03}) == ["a"]


def test_few_seeds_and_lone_rows_claim_nothing():
    assert sentence(A=(0.6, 0.6), B=(0.1, 0.2)).endswith("Too few seeds for a test: 2 of 3.")
    assert sentence(A=(0.6,), B=(None,)) == ""


def test_rows_are_ranked_at_the_seeds_that_all_have():
    """A is the better one in its only seed, where B is better still in the same."""
    lone = sentence(A=(0.90, None, None), B=(0.95, 0.80, 0.80))
    assert lone.startswith("B has the highest mean Dice (%) over the sites, 95.00. A follows with 90.00. Too few ")
    assert "paired t-test over 3 seeds" in sentence(A=(0.60, 0.62, 0.64), B=(0.50, 0.51, 0.52), C=(None, None, None))
    found = compared(*(result("A", 1, (0.9, 0.9)), *(result("B", seed, (0.8, 0.8)) for seed in (1, 2))))
    table = score_table(found, found.groups[0], found.groups[0].first)
    assert "Ranks use only the seeds that all rows with a number have" in table.note


def test_the_page_opens_with_its_title_and_the_sentence(comparison):
    head = as_page(comparison).split("</header>")[0].split("<h1>")[1]
    assert head.startswith(comparison.title)
    assert "PFedSIS* has the highest mean Dice (%) over the sites, 65.00. FedAvg follows with 40.00. Too few" in head
