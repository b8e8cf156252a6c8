"""The papers' tables: by metric and site, by cost, by ablation; the best in bold, the second underlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any

from shared_components.core.card import DASH, Metric, fixed
from shared_components.core.initial_weights import said
from shared_components.experiments.comparison.results import Comparison, Result, contest, mean_and_deviation
from shared_components.reporting.groups import Group

BESIDE, EDGES_BESIDE = 2, 4  # metrics beside each other, as in PFedSIS's Table I; with two columns each
_ARROWS = {True: "↑", False: "↓"}


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


@dataclass(frozen=True)
class Column:
    """A heading and what it shows of a run; ``metric`` ranks the rows and tells the deviation, None neither."""

    heading: str
    value: Callable[[Result], float]
    digits: int
    factor: float = 1.0
    metric: Metric | None = None


def all_grids(comparison: Comparison, *, grouped: bool = False) -> list[Grid]:
    """Return the preset's own table first, then all the others; tables of scores hold one task each.

    Args:
        comparison: The results.
        grouped: Two metrics beside each other, as in the papers; else a table per metric.
    """
    rest = [run_grid(comparison)]
    if comparison.layout != "costs":
        rest.insert(0, cost_grid(comparison))
    own = own_grids(comparison) if comparison.layout != "scores" else []
    scores, contests = [], []
    for group in comparison.groups:
        plain = [score_grid(comparison, group, metric) for metric in group.metrics]
        scores += _paper_grids(comparison, group) if grouped else plain
        contests.append(contest_grid(comparison, group))
    return [*own, *(scores or [empty_grid(comparison)]), *rest[:-1], *contests, rest[-1]]


def own_grids(comparison: Comparison) -> list[Grid]:
    """Return what the preset is about: its costs, or of every task the ablation, the site outside or one metric."""
    if comparison.layout == "costs":
        return [cost_grid(comparison)]
    if comparison.layout == "ablation":
        return [ablation_grid(comparison, group) for group in comparison.groups]
    if comparison.layout == "held-out":
        return [held_out_grid(comparison, group) for group in comparison.groups]
    grids = [score_grid(comparison, group, group.first) for group in comparison.groups]
    return grids or [empty_grid(comparison)]


def empty_grid(comparison: Comparison) -> Grid:
    """Name the rows where no run has a result, and why."""
    rows = tuple((Cell(label),) for label in comparison.labels)
    return Grid(comparison.title, ("Method",), rows, 1, _score_note(comparison))


def score_grid(comparison: Comparison, group: Group, metric: Metric) -> Grid:
    """Tabulate one metric: average, every site, worst site, and out of the federation."""
    columns = [*_site_columns(comparison, group, metric), *_edge_columns(comparison, group, metric)]
    arrow = "higher" if metric.higher_is_better else "lower"
    title = f"{_title(comparison, group)}: {metric.heading}, {arrow} is better"
    return _ticked(comparison, _grid(title, comparison, columns, _score_note(comparison)))


def _title(comparison: Comparison, group: Group) -> str:
    """Name the task where there are several."""
    return f"{comparison.title}; {group.title}" if len(comparison.groups) > 1 else comparison.title


def _paper_grids(comparison: Comparison, group: Group) -> list[Grid]:
    """Tabulate as PFedSIS's Table I: two metrics beside each other; worst and unseen sites in tables below."""
    side_by_side = partial(_side_by_side, comparison, group)
    title = _title(comparison, group)
    grids = [side_by_side(title, pair, _site_columns) for pair in _some(group.metrics, BESIDE)]
    headings = [column.heading for column in _edge_columns(comparison, group, group.first)]
    title += f": {' and '.join(heading.lower() for heading in headings)}"
    return [*grids, *(side_by_side(title, four, _edge_columns) for four in _some(group.metrics, EDGES_BESIDE))]


def _some(metrics: Sequence[Metric], count: int) -> list[Sequence[Metric]]:
    return [metrics[i : i + count] for i in range(0, len(metrics), count)]


def _side_by_side(
    comparison: Comparison,
    group: Group,
    title: str,
    metrics: Sequence[Metric],
    columns: Callable[[Comparison, Group, Metric], list[Column]],
) -> Grid:
    found = {metric: columns(comparison, group, metric) for metric in metrics}
    every = [column for part in found.values() for column in part]
    grid = _ticked(comparison, _grid(title, comparison, every, _score_note(comparison)))
    heads = tuple((f"{m.heading} {_ARROWS[m.higher_is_better]}", len(part)) for m, part in found.items())
    return replace(grid, groups=heads)


def _site_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    sites = [_column_of(metric, site, methodcaller("value", metric, site)) for site in group.sites]
    return [_column_of(metric, "Average", methodcaller("average", group, metric)), *sites]


def _edge_columns(comparison: Comparison, group: Group, metric: Metric) -> list[Column]:
    columns = [_column_of(metric, "Worst site", methodcaller("worst", group, metric))]
    alone = len(comparison.groups) == 1
    if any(result.run.held_out and (alone or result.out_of(group)) for result in comparison.results):
        columns.append(_column_of(metric, "Out of federation", methodcaller("held_out", group, metric)))
    return columns


def _column_of(metric: Metric, heading: str, value: Callable[[Result], float]) -> Column:
    return Column(heading, value, metric.digits, metric.factor, metric)


def ablation_grid(comparison: Comparison, group: Group) -> Grid:
    """Tabulate the averages of all metrics beside the ticks of what is switched on."""
    columns = [_column_of(m, m.heading, methodcaller("average", group, m)) for m in group.metrics]
    note = "averages over the sites; " + _score_note(comparison)
    return _ticked(comparison, _grid(_title(comparison, group), comparison, columns, note))


def held_out_grid(comparison: Comparison, group: Group) -> Grid:
    """Tabulate all metrics at the site where nobody trained, as FedST's Tables 3 and 8 do."""
    columns = [_column_of(m, m.heading, methodcaller("held_out", group, m)) for m in group.metrics]
    note = "the model that a hospital outside the federation gets, on its test videos; " + _score_note(comparison)
    merged = any(map(_merged, comparison.results))
    note += "; that site knows fewer classes, which are the models' merged" if merged else ""
    title = f"{_title(comparison, group)}: out of federation"
    return _ticked(comparison, _grid(title, comparison, columns, note))


def _merged(result: Result) -> bool:
    return bool(((result.scores or {}).get("held_out") or {}).get("merged"))


def _ticked(comparison: Comparison, grid: Grid) -> Grid:
    """Add the rows' ticks after their names, where the preset has any."""
    names = comparison.tick_names
    rows = []
    for label, row in zip(comparison.labels, grid.rows, strict=True):
        ticks = comparison.of(label)[0].run.variant.ticks or (False,) * len(names)
        rows.append((row[0], *(Cell("✓" if on else "") for on in ticks), *row[1:]))
    head = (grid.head[0], *names, *grid.head[1:])
    return replace(grid, head=head, rows=tuple(rows), labels=1 + len(names))


def cost_grid(comparison: Comparison) -> Grid:
    """Tabulate what a method costs: time of a frame, parameters, bytes and seconds of a round."""
    columns = [
        Column("Inference ms/frame", methodcaller("cost", "ms_frame"), 2),
        Column("Frames/s of a video", methodcaller("cost", "frames_per_second"), 2),
        Column("Parameters, site (K)", methodcaller("cost", "parameters_site"), 3, 1e-3),
        Column("Parameters, server (K)", methodcaller("cost", "parameters_server"), 1, 1e-3),
        Column("Up MB/round", methodcaller("cost", "bytes_up"), 1, 1e-6),
        Column("Down MB/round", methodcaller("cost", "bytes_down"), 1, 1e-6),
        Column("Slowest site s/round", methodcaller("cost", "seconds_round_slowest"), 2),
        Column("Server s/round", methodcaller("cost", "seconds_aggregation"), 3),
    ]
    note = (
        "means over seeds; inference is of a whole sample, such as a clip, frames per second are those of a video that "
        "is segmented frame by frame; MB of one site; a site's seconds include the validation of the model it "
        "received; parameters at the server are those it trains itself, for all sites together; times of a machine "
        "that may have worked on other runs at the same time (--jobs 1 avoids that)"
    )
    title = comparison.title if comparison.layout == "costs" else "Cost"
    return _grid(title, comparison, columns, note)


def contest_grid(comparison: Comparison, group: Group) -> Grid:
    """Tabulate whether the best two differ, metric by metric."""
    found = [result for metric in group.metrics if (result := contest(comparison, group, metric))]
    rows = []
    for one in found:
        p_values = [one.untested or fixed(p, 4) for p in (one.t_test, one.wilcoxon)]
        difference = one.metric.text(one.difference)
        texts = (one.metric.heading, one.best, one.second, difference, str(one.seeds), *p_values)
        rows.append(tuple(map(Cell, texts)))
    head = ("Metric", "Best", "Second", "Difference", "Seeds", "Paired t-test p", "Wilcoxon p")
    note = (
        "two-sided, paired by seed, whose value is the mean over sites: sites of one federation share models, and "
        "frames of one video scenes, so that neither are repetitions. Wilcoxon's p cannot be below 2 / 2^seeds, which "
        "is 0.25 of three; seeds share sites, and say nothing of other hospitals"
    )
    title = "Do the best two differ?" + (f" {group.title}" if len(comparison.groups) > 1 else "")
    return Grid(title, head, tuple(rows), 3, note)


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


def facts(comparison: Comparison) -> dict[str, str]:
    """Return sizes, seeds, commits and machines of the runs; where rows differ, what each has, in their order."""
    run = comparison.results[0].run
    rows = [comparison.of(label)[0].run for label in comparison.labels]
    trainings = [row.settings() for row in rows]
    infos = [result.info for result in comparison.results if result.info]
    return {
        "rounds": _each(row.rounds for row in rows),
        "size": _each(f"{one.height}x{one.width}" for one in trainings),
        "local steps": _each(f"{one.iterations}, batches of {one.batch_size}" for one in trainings),
        "learning rate": _each(f"{one.learning_rate:g}" for one in trainings),
        "start": ", ".join(sorted({said(info["start"]) for info in infos if "start" in info})) or run.start,
        "seeds": ", ".join(str(seed) for seed in sorted({r.run.seed for r in comparison.results})),
        "commit": ", ".join(_distinct(infos, "commit")),
        "hardware": "; ".join(_distinct(infos, "hardware")),
    }


def _each(values: Iterable[object]) -> str:
    return " / ".join(dict.fromkeys(map(str, values)))


def _distinct(infos: Sequence[dict[str, Any]], key: str) -> list[str]:
    return sorted({str(info[key]) for info in infos if info.get(key)})


def _run_note(comparison: Comparison) -> str:
    text = (
        "every run's folder holds run.json (job, commit, seed, hardware), server/rounds.jsonl, every site's models "
        f"and scores.json; training s: all rounds, {DASH}: trained in several attempts; scoring s: afterwards, every "
        "site's best model on its test videos"
    )
    known = facts(comparison)
    if ", " in known["commit"]:
        text += "; NOT all runs are of one commit"
    return text + (f"; {known['hardware']}" if known["hardware"] else "")


def _score_note(comparison: Comparison) -> str:
    known = facts(comparison)
    many = ", " in known["seeds"]
    text = f"mean ± sample standard deviation over seeds {known['seeds']}" if many else f"seed {known['seeds']}"
    text += f"; rounds: {known['rounds']}, {known['size']}, start: {known['start']}; "
    text += "every site's best model on validation, scored on its test videos at the original resolution"
    text += f"; {comparison.remark}" if comparison.remark else ""
    failed: dict[str, list[int]] = {}
    for result in comparison.results:
        if result.scores is None:
            failed.setdefault(result.run.variant.label, []).append(result.run.seed)
    return text + "".join(f"; {label}: {_missing(comparison, label, seeds)}" for label, seeds in failed.items())


def _missing(comparison: Comparison, label: str, seeds: Sequence[int]) -> str:
    reason = next(r.reason for r in comparison.of(label) if r.scores is None)
    all_of_them = len(seeds) == len(comparison.of(label))
    return reason if all_of_them else f"without seed {', '.join(map(str, seeds))} ({reason})"


def _grid(title: str, comparison: Comparison, columns: Sequence[Column], note: str) -> Grid:
    drawn = [_column(comparison, column) for column in columns]
    rows = tuple((Cell(label), *(cells[place] for cells in drawn)) for place, label in enumerate(comparison.labels))
    return Grid(title, ("Method", *(column.heading for column in columns)), rows, 1, note)


def _column(comparison: Comparison, column: Column) -> list[Cell]:
    """Write a column's cells and mark its best two; where all rows with a number have the same, none."""
    metric, digits, factor = column.metric, column.digits, column.factor
    found = [mean_and_deviation([column.value(r) for r in comparison.of(label)]) for label in comparison.labels]
    known = {round(mean * factor, digits) for mean, _ in found if not math.isnan(mean)}
    ranked = sorted(known, reverse=metric.higher_is_better) if metric and len(known) > 1 else []
    marks = dict(zip(ranked, ("best", "second"), strict=False))
    cells = []
    for mean, deviation in found:
        text = fixed(mean * factor, digits)
        if metric and not math.isnan(deviation):
            text += f" ± {fixed(deviation * factor, digits)}"
        cells.append(Cell(text, "" if math.isnan(mean) else marks.get(round(mean * factor, digits), "")))
    return cells


def _seconds(seconds: dict[str, Any], key: str) -> str:
    value = seconds.get(key)
    return DASH if value is None else fixed(value, 0)
