"""The papers' tables: by metric and site, by cost, by ablation; the best in bold, the second underlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller

from shared_components.comparison.results import (
    METRICS,
    Comparison,
    Result,
    contest,
    mean_and_deviation,
)
from shared_components.reporting.records import NAN
from shared_components.reporting.tables import DASH

NAMES = {"dice": "Dice (%)", "iou": "IoU (%)", "assd": "ASSD (px)", "hd95": "HD95 (px)"}


@dataclass(frozen=True)
class Cell:
    """A text and how it stands out: ``best``, ``second`` or not at all."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; the first ``labels`` columns are names, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    note: str = ""


Column = tuple[str, Callable[[Result], float], bool | None, int, float]
"""Heading, what it shows of a run, whether higher is better (None: not ranked), digits, factor."""


def all_grids(comparison: Comparison) -> list[Grid]:
    """Return the preset's own table first, then all the others."""
    metrics = [score_grid(comparison, metric) for metric in METRICS]
    costs, ablation = cost_grid(comparison), ablation_grid(comparison)
    first = {"costs": [costs], "ablation": [ablation], "scores": []}[comparison.layout]
    rest = [] if comparison.layout == "costs" else [costs]
    return [*first, *metrics, *rest, contest_grid(comparison), run_grid(comparison)]


def score_grid(comparison: Comparison, metric: str) -> Grid:
    """Tabulate one metric: average, every site, worst site, and out of the federation."""
    better, factor, digits = METRICS[metric], *_scale(metric)
    columns: list[Column] = [("Average", methodcaller("average", metric), better, digits, factor)]
    for site in comparison.sites:
        columns.append((site, methodcaller("value", metric, site), better, digits, factor))
    columns.append(("Worst site", methodcaller("worst", metric), better, digits, factor))
    if any(result.run.held_out for result in comparison.results):
        columns.append(("Out of federation", methodcaller("held_out", metric), better, digits, factor))
    arrow = "higher" if better else "lower"
    return _grid(
        f"{comparison.title}: {NAMES[metric]}, {arrow} is better",
        comparison,
        columns,
        _score_note(comparison),
    )


def ablation_grid(comparison: Comparison) -> Grid:
    """Tabulate the averages of all four metrics beside the ticks of what is switched on."""
    columns: list[Column] = [
        (NAMES[m], methodcaller("average", m), METRICS[m], _scale(m)[1], _scale(m)[0]) for m in METRICS
    ]
    grid = _grid(comparison.title, comparison, columns, "averages over the sites; " + _score_note(comparison))
    rows = []
    for label, row in zip(comparison.labels, grid.rows, strict=True):
        ticks = comparison.of(label)[0].run.variant.ticks or (False,) * len(comparison.tick_names)
        rows.append((row[0], *(Cell("✓" if on else "") for on in ticks), *row[1:]))
    count = len(comparison.tick_names)
    return Grid(
        grid.title, (grid.head[0], *comparison.tick_names, *grid.head[1:]), tuple(rows), 1 + count, grid.note
    )


def cost_grid(comparison: Comparison) -> Grid:
    """Tabulate what a method costs: time of a frame, parameters, bytes and seconds of a round."""
    columns: list[Column] = [
        ("Inference ms/frame", methodcaller("cost", "ms_frame"), None, 2, 1),
        ("Parameters, site (K)", methodcaller("cost", "parameters_site"), None, 3, 1e-3),
        ("Parameters, server (K)", methodcaller("cost", "parameters_server"), None, 1, 1e-3),
        ("Up MB/round", methodcaller("cost", "bytes_up"), None, 1, 1e-6),
        ("Down MB/round", methodcaller("cost", "bytes_down"), None, 1, 1e-6),
        ("Site s/round", methodcaller("cost", "seconds_round"), None, 2, 1),
        ("Server s/round", methodcaller("cost", "seconds_aggregation"), None, 3, 1),
    ]
    note = (
        "means over seeds, of one site and round; validation of the received model included; parameters at the "
        "server are those it trains itself, of all sites' hypernetworks together; times of a machine that worked on "
        "other runs at the same time"
    )
    return _grid("Cost", comparison, columns, note)


def contest_grid(comparison: Comparison) -> Grid:
    """Tabulate whether the best two differ, metric by metric."""
    rows = []
    for metric in METRICS:
        found = contest(comparison, metric)
        if found is None:
            continue
        factor, digits = _scale(metric)
        p_values = [_number(p, 4) for p in (found.t_test, found.wilcoxon)]
        texts = (NAMES[metric], found.best, found.second, _number(found.difference * factor, digits))
        rows.append(tuple(Cell(text) for text in (*texts, str(found.pairs), *p_values)))
    head = ("Metric", "Best", "Second", "Difference", "Pairs", "Paired t-test p", "Wilcoxon p")
    note = (
        "two-sided, paired by seed and site; frames of one video are not independent, so that they are not paired "
        f"singly; {DASH}: fewer than three pairs. Wilcoxon's p cannot be below 2 / 2^pairs"
    )
    return Grid("Do the best two differ?", head, tuple(rows), 3, note)


def run_grid(comparison: Comparison) -> Grid:
    """Tabulate where every number comes from."""
    rows = []
    for result in comparison.results:
        info, seconds = result.info or {}, (result.scores or {}).get("seconds", {})
        where = f"runs/{result.folder.parent.name}/{result.folder.name}" if result.folder else result.reason
        texts = (result.run.variant.label, str(result.run.seed), where, str(info.get("commit", DASH)))
        times = (_number(seconds.get(key, NAN), 0) for key in ("training", "added"))
        rows.append(tuple(Cell(text) for text in (*texts, *times)))
    head = ("Method", "Seed", "Run", "Commit", "Training s", "Added s")
    return Grid("Runs", head, tuple(rows), 4, _run_note(comparison))


def _run_note(comparison: Comparison) -> str:
    machines = sorted({str(r.info["hardware"]) for r in comparison.results if r.info})
    known = [r.scores["seconds"] for r in comparison.results if r.scores]
    timed = [s for s in known if not math.isnan(s.get("added") or NAN)]
    share = sum(s["added"] for s in timed) / max(sum(s["training"] for s in timed), 1e-9)
    text = "Every run's folder holds run.json (job, commit, seed, hardware), rounds.jsonl, models and scores.json"
    if timed:
        text += f"; starting, checking data and scoring added {100 * share:.0f}% to the training"
    return f"{text}; {', '.join(machines)}" if machines else text


def _score_note(comparison: Comparison) -> str:
    seeds = sorted({result.run.seed for result in comparison.results})
    run = comparison.results[0].run
    size = f"{run.training['height']}x{run.training['width']}" if "height" in run.training else "512x640"
    text = (
        f"mean ± standard deviation over {len(seeds)} seeds" if len(seeds) > 1 else f"one seed ({seeds[0]})"
    )
    text += f"; {run.rounds} rounds at {size}; every site's best model on validation, "
    text += "scored on its test videos at the original resolution"
    failed = {r.run.variant.label: r.reason for r in comparison.results if r.scores is None}
    return text + "".join(f"; {label}: {reason}" for label, reason in failed.items())


def _scale(metric: str) -> tuple[float, int]:
    """Return factor and digits: overlaps in percent, distances in pixels, as in the papers."""
    return (100.0, 2) if metric in ("dice", "iou") else (1.0, 2)


def _grid(title: str, comparison: Comparison, columns: Sequence[Column], note: str) -> Grid:
    drawn = [_column(comparison, column) for column in columns]
    rows = tuple(
        (Cell(label), *(cells[number] for cells in drawn)) for number, label in enumerate(comparison.labels)
    )
    return Grid(title, ("Method", *(column[0] for column in columns)), rows, 1, note)


def _column(comparison: Comparison, column: Column) -> list[Cell]:
    """Write a column's cells and mark its best two."""
    _, value, better, digits, factor = column
    found = [mean_and_deviation([value(r) for r in comparison.of(label)]) for label in comparison.labels]
    ranked = sorted(
        {round(mean * factor, digits) for mean, _ in found if not math.isnan(mean)}, reverse=bool(better)
    )
    marks = (
        dict(zip(ranked, ("best", "second"), strict=False)) if better is not None and len(found) > 1 else {}
    )
    cells = []
    for mean, deviation in found:
        text = _number(mean * factor, digits)
        if not math.isnan(deviation) and better is not None:
            text += f" ± {_number(deviation * factor, digits)}"
        cells.append(Cell(text, "" if math.isnan(mean) else marks.get(round(mean * factor, digits), "")))
    return cells


def _number(value: float, digits: int) -> str:
    return DASH if value is None or math.isnan(value) else f"{value:.{digits}f}"
