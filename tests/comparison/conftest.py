"""Results by hand, and a comparison so small that it runs in a test."""

from pathlib import Path

import pytest

from shared_components.comparison.plan import Run, Variant
from shared_components.comparison.results import Comparison, Result

SITES = ("a", "b")
TINY = {"height": 32, "width": 64, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}


def result(label, seed, dice, *, held_out=None, ticks=(), **costs):
    """One run's result; its Dice by site, the other metrics derived from it."""
    run = Run(
        Variant(label, "fedavg", {}, ticks), seed, 2, TINY, dict.fromkeys(SITES, ""), "x" if held_out else ""
    )
    if dice is None:
        return Result(run, reason="too few sites")
    scores = {
        "sites": {site: metrics(value) for site, value in zip(SITES, dice, strict=True)},
        "costs": costs,
    }
    scores |= {
        "held_out": metrics(held_out) if held_out else None,
        "seconds": {"training": 100.0, "scoring": 8.0},
    }
    info = {"commit": "abc", "hardware": "a machine"}
    return Result(run, Path("runs") / f"{label}-{seed}" / "1", scores, info)


def metrics(dice):
    values = {"dice": dice, "iou": dice / 2, "assd": 10 - 10 * dice, "hd95": 20 - 20 * dice}
    return {name: {"shaft": value, "mean": value} for name, value in values.items()}


def compared(*results, layout="scores", tick_names=()):
    return Comparison("A title", layout, tick_names, SITES, results)


@pytest.fixture
def comparison():
    """Three rows; one of them has no result."""
    return compared(
        result("FedAvg", 1, (0.5, 0.3), held_out=0.2),
        result("FedAvg", 2, (0.7, 0.1), held_out=0.4),
        result("PFedSIS*", 1, (0.8, 0.6), held_out=0.1),
        result("PFedSIS*", 2, (0.6, 0.6), held_out=0.1),
        result("Krum", 1, None),
        result("Krum", 2, None),
    )
