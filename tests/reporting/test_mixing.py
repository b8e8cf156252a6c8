"""Mixing: matrices as recorded, and a plain sentence where it is plain averaging."""

import math
from pathlib import Path
from typing import Any

import pytest

from shared_components.reporting.mixing import entropies, matrices, own_weights, spread, verdicts
from shared_components.reporting.records import Run


def run_with(*aggregations: dict[str, Any], sites: tuple[str, ...] = ("a", "b")) -> Run:
    return Run(Path(), {}, sites, {site: {} for site in sites}, dict(enumerate(aggregations)), {})


MIXED = {
    "mixing": {"a": {"head": {"a": 0.75, "b": 0.25}, "body": {"a": 0.25, "b": 0.75}}},
    "entropy": {"hypernetwork": 0.81},
}


def test_matrix_rows_are_receiving_sites_and_absent_sites_are_nan() -> None:
    head = matrices(run_with(MIXED))["head"]
    assert head[0] == [0.75, 0.25]
    assert all(map(math.isnan, head[1]))


def test_the_newest_round_with_weights_is_shown() -> None:
    older = {"mixing": {"a": {"head": {"a": 1.0, "b": 0.0}}}}
    assert matrices(run_with(older, MIXED, {"entropy": {}}))["head"][0] == [0.75, 0.25]


def test_own_weight_is_the_mean_over_layers() -> None:
    assert own_weights(run_with(MIXED))["a"] == {0: 0.5}
    assert own_weights(run_with(MIXED))["b"] == {}


def test_nearly_equal_weights_keep_a_pale_colour_scale() -> None:
    assert spread({"head": [[0.5001, 0.4999]]}, 2) == 0.125
    assert spread({"head": [[0.9, 0.1]]}, 2) == pytest.approx(0.4)


def test_entropy_by_site_is_averaged_and_null_left_out() -> None:
    assert entropies(run_with({"entropy": {"hypernetwork": {"a": 1.0, "b": 0.5}}}))["hypernetwork"] == {0: 0.75}
    assert math.isnan(entropies(run_with({"entropy": {"sensitivity": None}}))["sensitivity"][0])


def test_the_entropy_decides_how_near_to_plain_averaging_a_mixing_is_called() -> None:
    entropy = {"sensitivity_raw": 0.9995, "sensitivity": 0.9, "hypernetwork": 0.997}
    plain, other, near = verdicts(run_with({"entropy": entropy}))
    assert "is practically plain averaging (normalised entropy 0.99950" in plain
    assert "differs from plain averaging (normalised entropy 0.900" in other
    assert "is close to plain averaging" in near


def test_own_weight_stands_beside_the_equal_share() -> None:
    assert "gives its own weights 0.50 on average; an equal share is 0.50" in verdicts(run_with(MIXED))[0]


def test_fedavg_has_nothing_to_say_and_one_site_nothing_to_mix() -> None:
    assert verdicts(run_with({"entropy": {}})) == []
    assert "nothing to mix" in verdicts(run_with({"entropy": {"hypernetwork": 1.0}}, sites=("a",)))[0]
