"""The summary: what the records say, in words a clinician reads."""

from pathlib import Path
from typing import Any

from shared_components.reporting.records import Run
from shared_components.reporting.summary import amount, sentences, state, tiles
from tests.reporting.conftest import METRICS, SEGMENTATION


def site_row(r: int, dice: float) -> dict[str, Any]:
    return {"round": r, "metrics": {"dice": {"shaft": dice, "mean": dice}}}


def run_of(dice: dict[str, tuple[float, ...]], *, rounds: int = 1, **info: Any) -> Run:
    rows = {site: {r: site_row(r, v) for r, v in enumerate(values)} for site, values in dice.items()}
    aggregations = {r: {"round": r} for r in range(max(map(len, dice.values())) - 1)}
    info |= {"rounds": rounds, "cards": dict.fromkeys(dice, SEGMENTATION.to_json())}
    info["metrics"] = {kind: [metric.to_json() for metric in rows] for kind, rows in METRICS.items()}
    return Run(Path("nowhere"), info, tuple(dice), rows, aggregations, {})


def test_every_gain_is_named() -> None:
    said = sentences(run_of({"a": (0.12, 0.71), "b": (0.2, 0.6)}))
    assert said[0] == "Every site's Dice rose: a 0.12 → 0.71, b 0.20 → 0.60."
    assert said[1] == "The worst site is b with Dice 0.600; the mean over the sites is 0.655."


def test_a_loss_is_not_hidden() -> None:
    assert sentences(run_of({"a": (0.1, 0.7), "b": (0.5, 0.4)}))[0].startswith("Dice rose at 1 of 2 sites: ")
    assert sentences(run_of({"a": (0.5, 0.5)}))[0] == "The site's Dice did not rise: a 0.50 → 0.50."


def test_a_site_without_numbers_does_not_count_as_risen() -> None:
    assert sentences(run_of({"a": (0.1, 0.7), "b": ()}))[0] == "Dice rose at 1 of 2 sites: a 0.10 → 0.70."


def test_many_sites_are_given_as_a_range_with_those_that_fell() -> None:
    dice = {f"s{i}": (0.1, 0.5 + i / 100) for i in range(7)} | {"late": (0.6, 0.3)}
    assert sentences(run_of(dice))[0] == "Dice rose at 7 of 8 sites: from 0.10–0.60 to 0.30–0.56; not at late."


def test_missed_rounds_are_named() -> None:
    run = run_of({"a": (0.1, 0.2, 0.3, 0.4), "b": (0.1, 0.2, 0.3, 0.4)}, rounds=3)
    del run.rows["b"][1], run.rows["b"][2]
    assert "b is missing from rounds 2, 3." in sentences(run)


def test_refused_updates_are_counted() -> None:
    run = run_of({"a": (0.1, 0.2)})
    run.aggregations[0]["rejected"] = [{"site": "a", "reason": "not finite"}]
    assert "1 update was refused or did not come; see the list below." in sentences(run)
    assert ("updates missing", "1") in tiles(run)


def test_state_is_complete_unfinished_or_failed() -> None:
    assert state(run_of({"a": (0.1, 0.2)})) == ("complete", "1 of 1 rounds were aggregated.")
    assert state(run_of({"a": (0.1, 0.2)}, rounds=5))[0] == "unfinished"
    failed = state(run_of({"a": (0.1, 0.2)}, rounds=5, error="site-2: no training data"))
    assert failed == ("failed", "This run failed after 1 of 5 rounds were aggregated: site-2: no training data")


def test_bytes_are_written_in_a_unit_that_suits_them() -> None:
    assert [amount(n) for n in (8, 1500, 27_160_000, 13.04e9)] == ["8 bytes", "1.5 kB", "27.2 MB", "13.0 GB"]
