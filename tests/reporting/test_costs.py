"""Costs: bytes summed, seconds averaged, nothing counted twice."""

from pathlib import Path
from typing import Any

from shared_components.reporting.costs import (
    bytes_by_round,
    cost_table,
    rejections,
    seconds_by_round,
    traffic_table,
)
from shared_components.reporting.records import Run


def line(r: int, up: int, training: float, total: float) -> dict[str, Any]:
    return {
        "round": r,
        "samples": 40,
        "loss": {"segmentation": 0.5},
        "bytes": {"up": {"global": up, "mixed": 1}, "down": {"global": 2 * up}},
        "seconds": {"training": training, "total": total},
        "memory_mb": 100 + r,
    }


ROWS = {
    "a": {0: line(0, 10, 1.0, 2.0), 1: line(1, 20, 3.0, 3.0), 2: {"round": 2, "metrics": {}}},
    "b": {0: line(0, 30, 3.0, 3.0)},
}
AGGREGATIONS = {0: {"seconds": 0.5, "rejected": [{"site": "b", "reason": "late"}]}}
RUN = Run(Path(), {}, ("a", "b"), ROWS, AGGREGATIONS, {})


def test_bytes_are_summed_over_sites_by_role() -> None:
    assert bytes_by_round(RUN, "up") == {0: {"global": 40, "mixed": 2}, 1: {"global": 20, "mixed": 1}}
    assert bytes_by_round(RUN, "down") == {0: {"global": 80}, 1: {"global": 40}}


def test_seconds_are_means_with_the_rest_named_other() -> None:
    stacks = seconds_by_round(RUN)
    assert stacks[0] == {"training": 2.0, "other": 0.5, "aggregating (server)": 0.5}
    assert stacks[1] == {"training": 3.0}


def test_the_table_of_costs_counts_trained_rounds_only() -> None:
    assert cost_table(RUN).rows[0] == ("a", "40", "2", "0.00", "0.00", "2.5", "2.0", "101")


def test_traffic_is_exact() -> None:
    assert traffic_table(RUN).rows == (("global", "60", "120"), ("mixed", "3", "0"))


def test_rejections_name_round_site_and_reason() -> None:
    assert rejections(RUN) == [("0", "b", "late")]
