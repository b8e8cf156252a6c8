"""The papers' tables: by metric and site, by cost, by ablation; the best in bold, the second underlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

from shared_components.card import DASH
from shared_components.comparison.results import (
    METRICS,
    Comparison,
    Result,
    contest,
    mean_and_deviation,
)
from shared_components.task import fixed as number

NAMES = {"dice": "Dice (%)", "iou": "IoU (%)", "assd": "ASSD (px)", "hd95": "HD95 (px)"}
FACTORS = {"dice": 100.0, "iou": 100.0, "assd": 1.0, "hd95": 1.0}  # overlaps in percent, as in the papers
DIGITS = 2


@dataclass(frozen=True)
class Cell:
    """A text and how it stands out: ``best``, ``second`` or not at all."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; the first ``labels`` columns are names, the others numbers.

    ``groups`` are headings over neighbouring columns of numbers: (text, how many columns).
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    note: str = ""
    groups: tuple[tuple[str, int], ...] = ()


Column = tuple[str, Callable[[Result], float], bool | None, int, float]
"""Heading, what it shows of a run, whether higher is better (None: not ranked), digits, factor."""


def all_grids(comparison: Comparison, *, grouped: bool = False) -> list[Grid]:
    """Return the preset's own table first, then all the others.

    Args:
        comparison: The results.
        grouped: Two metrics beside each other, as in the papers; else a table per metric.
    """
    scores = _paper_grids(comparison) if grouped else [score_grid(comparison, m) for m in METRICS]
    costs = cost_grid(comparison)
    first = {"costs": [costs], "ablation": [ablation_grid(comparison)], "scores": []}[comparison.layout]
    rest = [] if comparison.layout == "costs" else [costs]
    return [*first, *scores, *rest, contest_grid(comparison), run_grid(comparison)]


def score_grid(comparison: Comparison, metric: str) -> Grid:
    """Tabulate one metric: average, every site, worst site, and out of the federation."""
    columns = [*_site_columns(comparison, metric), *_edge_columns(comparison, metric)]
    arrow = "higher" if METRICS[metric] else "lower"
    title = f"{comparison.title}: {NAMES[metric]}, {arrow} is better"
    return _grid(title, comparison, columns, _score_note(comparison))


def _paper_grids(comparison: Comparison) -> list[Grid]:
    """Tabulate as PFedSIS's Table I: two metrics beside each other; worst and unseen sites in a third table."""
    note = _score_note(comparison)
    grids = [
        _side_by_side(comparison, comparison.title, pair, _site_columns, note)
        for pair in (("dice", "iou"), ("assd", "hd95"))
    ]
    titles = [heading for heading, *_ in _edge_columns(comparison, "dice")]
    edges = " and ".join(title.lower() for title in titles)
    title = f"{comparison.title}: {edges}"
    return [*grids, _side_by_side(comparison, title, tuple(METRICS), _edge_columns, note)]


def _side_by_side(
    comparison: Comparison,
    title: str,
    metrics: Sequence[str],
    columns: Callable[[Comparison, str], list[Column]],
    note: str,
) -> Grid:
    found = {metric: columns(comparison, metric) for metric in metrics}
    grid = _grid(title, comparison, [column for part in found.values() for column in part], note)
    arrows = {True: "↑", False: "↓"}
    groups = tuple((f"{NAMES[m]} {arrows[METRICS[m]]}", len(part)) for m, part in found.items())
    return replace(grid, groups=groups)


def _site_columns(comparison: Comparison, metric: str) -> list[Column]:
    column = _of_metric(metric)
    sites = [column(site, methodcaller("value", metric, site)) for site in comparison.sites]
    return [column("Average", methodcaller("average", metric)), *sites]


def _edge_columns(comparison: Comparison, metric: str) -> list[Column]:
    column = _of_metric(metric)
    columns = [column("Worst site", methodcaller("worst", metric))]
    if any(result.run.held_out for result in comparison.results):
        columns.append(column("Out of federation", methodcaller("held_out", metric)))
    return columns


def _of_metric(metric: str) -> Callable[[str, Callable[[Result], float]], Column]:
    return lambda heading, value: (heading, value, METRICS[metric], DIGITS, FACTORS[metric])


def ablation_grid(comparison: Comparison) -> Grid:
    """Tabulate the averages of all four metrics beside the ticks of what is switched on."""
    columns = [_of_metric(m)(NAMES[m], methodcaller("average", m)) for m in METRICS]
    grid = _grid(comparison.title, comparison, columns, "averages over the sites; " + _score_note(comparison))
    names = comparison.tick_names
    rows = []
    for label, row in zip(comparison.labels, grid.rows, strict=True):
        ticks = comparison.of(label)[0].run.variant.ticks or (False,) * len(names)
        rows.append((row[0], *(Cell("✓" if on else "") for on in ticks), *row[1:]))
    head = (grid.head[0], *names, *grid.head[1:])
    return replace(grid, head=head, rows=tuple(rows), labels=1 + len(names))


def cost_grid(comparison: Comparison) -> Grid:
    """Tabulate what a method costs: time of a frame, parameters, bytes and seconds of a round."""
    columns: list[Column] = [
        ("Inference ms/frame", methodcaller("cost", "ms_frame"), None, 2, 1),
        ("Parameters, site (K)", methodcaller("cost", "parameters_site"), None, 3, 1e-3),
        ("Parameters, server (K)", methodcaller("cost", "parameters_server"), None, 1, 1e-3),
        ("Up MB/round", methodcaller("cost", "bytes_up"), None, 1, 1e-6),
        ("Down MB/round", methodcaller("cost", "bytes_down"), None, 1, 1e-6),
        ("Slowest site s/round", methodcaller("cost", "seconds_round_slowest"), None, 2, 1),
        ("Server s/round", methodcaller("cost", "seconds_aggregation"), None, 3, 1),
    ]
    note = (
        "means over seeds; MB of one site; a site's seconds include the validation of the model it received; "
        "parameters at the server are those it trains itself, for all sites together; times of a machine that "
        "may have worked on other runs at the same time (--jobs 1 avoids that)"
    )
    title = comparison.title if comparison.layout == "costs" else "Cost"
    return _grid(title, comparison, columns, note)


def contest_grid(comparison: Comparison) -> Grid:
    """Tabulate whether the best two differ, metric by metric."""
    found = [result for metric in METRICS if (result := contest(comparison, metric))]
    rows = []
    for one in found:
        p_values = [one.untested or number(p, 4) for p in (one.t_test, one.wilcoxon)]
        difference = number(one.difference * FACTORS[one.metric], DIGITS)
        texts = (NAMES[one.metric], one.best, one.second, difference, str(one.pairs), *p_values)
        rows.append(tuple(map(Cell, texts)))
    head = ("Metric", "Best", "Second", "Difference", "Pairs", "Paired t-test p", "Wilcoxon p")
    note = (
        "two-sided; a pair is one seed and site, the mean over its test frames: frames of one video are not "
        "independent. Wilcoxon's p cannot be below 2 / 2^pairs; sites share models and seeds share videos, so "
        "that the pairs are not independent either"
    )
    return Grid("Do the best two differ?", head, tuple(rows), 3, note)


def run_grid(comparison: Comparison) -> Grid:
    """Tabulate where every number comes from."""
    rows = []
    for result in comparison.results:
        info, seconds = result.info or {}, (result.scores or {}).get("seconds", {})
        where = f"runs/{result.folder.parent.name}/{result.folder.name}" if result.folder else result.reason
        texts = (result.run.variant.label, str(result.run.seed), where, str(info.get("commit", DASH)))
        rows.append(tuple(map(Cell, (*texts, *(_seconds(seconds, key) for key in ("training", "scoring"))))))
    head = ("Method", "Seed", "Run", "Commit", "Training s", "Scoring s")
    return Grid("Runs", head, tuple(rows), 4, _run_note(comparison))


def added_share(comparison: Comparison) -> float | None:
    """Return what scoring adds to the training of the runs that ran in one go; None without such a run."""
    seconds = [r.scores["seconds"] for r in comparison.results if r.scores]
    whole = [one for one in seconds if one["training"]]
    return sum(one["scoring"] for one in whole) / sum(one["training"] for one in whole) if whole else None


def facts(comparison: Comparison) -> dict[str, str]:
    """Return what all runs have in common: sizes, seeds, commits and machines."""
    run = comparison.results[0].run
    training = run.settings()
    infos = [result.info for result in comparison.results if result.info]
    return {
        "rounds": str(run.rounds),
        "size": f"{training.height}x{training.width}",
        "local steps": f"{training.iterations}, batches of {training.batch_size}",
        "learning rate": f"{training.learning_rate:g}",
        "seeds": ", ".join(str(seed) for seed in sorted({r.run.seed for r in comparison.results})),
        "commit": ", ".join(_distinct(infos, "commit")),
        "hardware": "; ".join(_distinct(infos, "hardware")),
    }


def _distinct(infos: Sequence[dict[str, Any]], key: str) -> list[str]:
    return sorted({str(info[key]) for info in infos if info.get(key)})


def _run_note(comparison: Comparison) -> str:
    text = (
        "every run's folder holds run.json (job, commit, seed, hardware), server/rounds.jsonl, every site's models "
        f"and scores.json; {DASH}: trained in several attempts"
    )
    share = added_share(comparison)
    text += f"; scoring added {100 * share:.0f}% to the training" if share is not None else ""
    known = facts(comparison)
    if ", " in known["commit"]:
        text += "; NOT all runs are of one commit"
    return text + (f"; {known['hardware']}" if known["hardware"] else "")


def _score_note(comparison: Comparison) -> str:
    known = facts(comparison)
    many = ", " in known["seeds"]
    text = (
        f"mean ± sample standard deviation over seeds {known['seeds']}" if many else f"seed {known['seeds']}"
    )
    text += f"; rounds: {known['rounds']}, {known['size']}; every site's best model on validation, "
    text += "scored on its test videos at the original resolution"
    text += f"; {comparison.remark}" if comparison.remark else ""
    failed: dict[str, list[int]] = {}
    for result in comparison.results:
        if result.scores is None:
            failed.setdefault(result.run.variant.label, []).append(result.run.seed)
    return text + "".join(
        f"; {label}: {_missing(comparison, label, seeds)}" for label, seeds in failed.items()
    )


def _missing(comparison: Comparison, label: str, seeds: Sequence[int]) -> str:
    reason = next(r.reason for r in comparison.of(label) if r.scores is None)
    all_of_them = len(seeds) == len(comparison.of(label))
    return reason if all_of_them else f"without seed {', '.join(map(str, seeds))} ({reason})"


def _grid(title: str, comparison: Comparison, columns: Sequence[Column], note: str) -> Grid:
    drawn = [_column(comparison, column) for column in columns]
    rows = tuple(
        (Cell(label), *(cells[place] for cells in drawn)) for place, label in enumerate(comparison.labels)
    )
    return Grid(title, ("Method", *(column[0] for column in columns)), rows, 1, note)


def _column(comparison: Comparison, column: Column) -> list[Cell]:
    """Write a column's cells and mark its best two."""
    _, value, better, digits, factor = column
    found = [mean_and_deviation([value(r) for r in comparison.of(label)]) for label in comparison.labels]
    known = {round(mean * factor, digits) for mean, _ in found if not math.isnan(mean)}
    ranked = sorted(known, reverse=bool(better)) if better is not None and len(found) > 1 else []
    marks = dict(zip(ranked, ("best", "second"), strict=False))
    cells = []
    for mean, deviation in found:
        text = number(mean * factor, digits)
        if not math.isnan(deviation) and better is not None:
            text += f" ± {number(deviation * factor, digits)}"
        cells.append(Cell(text, "" if math.isnan(mean) else marks.get(round(mean * factor, digits), "")))
    return cells


def _seconds(seconds: dict[str, Any], key: str) -> str:
    value = seconds.get(key)
    return DASH if value is None else number(value, 0)
