"""Write a comparison as CSV files and one HTML page; each file appears complete or not at all."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path

from shared_components.common.atomic import write_json, write_text
from shared_components.experiments.comparison.charts import panels
from shared_components.experiments.comparison.pictures import OUTSIDE, Gallery, gallery
from shared_components.experiments.comparison.results import Comparison, Result, facts, mean_and_deviation, verdict
from shared_components.experiments.comparison.tables import all_tables
from shared_components.reporting.figures import Panel
from shared_components.reporting.records import Group
from shared_components.reporting.report import TEMPLATES
from shared_components.reporting.tables import as_csv

RECORD = "comparison.json"  # title of the comparison in a folder; older versions did not write this file


def write_all(comparison: Comparison, out: Path) -> list[Path]:
    """Write all files of a comparison into a folder and return them."""
    for name, write in WRITERS.items():
        write_text(out / name, write(comparison))
    write_json(out / RECORD, {"title": comparison.title})
    return [out / name for name in WRITERS]


def refuse_foreign(out: Path) -> None:
    """Raise ValueError if a folder contains an output file's name that no comparison has written."""
    existing = [name for name in WRITERS if (out / name).exists()]
    if existing and not (out / RECORD).is_file() and not (out / "runs").is_dir():
        raise ValueError(f"{out} contains {existing[0]!r} but no comparison; choose another --out or move the file")


def set_aside(out: Path, title: str) -> Path | None:
    """Move another comparison's files to a subfolder and return it; None if there is no other comparison."""
    if not (out / RECORD).is_file() or (before := json.loads((out / RECORD).read_text("utf-8"))["title"]) == title:
        return None
    aside = out / "earlier" / re.sub(r"[^A-Za-z0-9]+", "-", before).strip("-").lower()
    aside.mkdir(parents=True, exist_ok=True)
    for name in (*WRITERS, RECORD):
        if (out / name).is_file():
            os.replace(out / name, aside / name)
    return aside


def summary_csv(comparison: Comparison) -> str:
    """Return mean and sample standard deviation over seeds of each row, site and metric, not scaled."""
    head = ("label", "method", "task", "site", "metric", "mean", "deviation", "seeds")
    labels, groups = comparison.labels, comparison.groups
    return as_csv(head, (row for label in labels for group in groups for row in _summary(comparison.of(label), group)))


def _summary(results: Sequence[Result], group: Group) -> Iterator[tuple]:
    variant = results[0].run.variant
    for metric in group.metrics:
        places: dict[str, Callable[[Result], float]] = {
            "average": methodcaller("average", group, metric),
            **{site: methodcaller("value", metric, site) for site in group.sites},
            "worst site": methodcaller("worst", group, metric),
            OUTSIDE: methodcaller("held_out", group, metric),
        }
        for place, value in places.items():
            values = [number for result in results if not math.isnan(number := value(result))]
            if values:
                mean, deviation = mean_and_deviation(values)
                spread = "" if math.isnan(deviation) else deviation
                yield variant.label, variant.method, group.task, place, metric.name, mean, spread, len(values)


def scores_csv(comparison: Comparison) -> str:
    """Return the scores of each run, site, metric and output."""
    head = ("label", "method", "seed", "site", "metric", "class", "value", "run")
    return as_csv(head, (row for result in comparison.results for row in _scores(result, comparison.groups)))


def _scores(result: Result, groups: Sequence[Group]) -> Iterator[tuple]:
    scores = result.scores or {"sites": {}}
    for group in groups:
        places = {site: scores["sites"].get(site, {}) for site in group.sites}
        if result.out_of(group):
            places[OUTSIDE] = scores["held_out"]
        for site, record in places.items():
            for metric in group.metrics:
                for name, value in record.get(metric.name, {}).items():
                    if value is not None:
                        yield *_names(result), site, metric.name, name, value, str(result.folder)


def costs_csv(comparison: Comparison) -> str:
    """Return the costs of each run."""
    costs = [(r, r.scores["costs"]) for r in comparison.results if r.scores and r.scores.get("costs")]
    names = sorted({name for _, values in costs for name in values})
    rows = ((*_names(r), *(values[name] for name in names), str(r.folder)) for r, values in costs)
    return as_csv(("label", "method", "seed", *names, "run"), rows)


def _names(result: Result) -> tuple[str, str, int]:
    return result.run.variant.label, result.run.variant.method, result.run.seed


def as_page(comparison: Comparison) -> str:
    """Return the HTML page with pictures, charts and tables of all tasks."""
    results = comparison.results
    failed = [result for result in results if result.scores is None]
    parts = [(group, gallery(comparison, group), panels(comparison, group)) for group in comparison.groups]
    verdicts = [(group, verdict(comparison, group)) for group in comparison.groups]
    return TEMPLATES.get_template("comparison.html.j2").render(
        title=comparison.title, split=comparison.split, models=comparison.models,
        verdicts=[f"{group.title}: {text}" if text and len(verdicts) > 1 else text for group, text in verdicts],
        tables=all_tables(comparison), parts=parts, links=list(_links(parts, bool(failed))), failed=failed,
        facts=facts(comparison), done=len(results) - len(failed), runs=len(results),
    )  # fmt: skip


def _links(parts: Sequence[tuple[Group, Gallery | None, list[Panel]]], failed: bool) -> Iterator[tuple[str, str]]:
    """Yield anchors and names of the page's parts: the tasks or, for a single task, its charts."""
    if failed:
        yield "missing", "Without a result"
    if len(parts) > 1:
        yield from ((f"task-{number}", group.task) for number, (group, _, _) in enumerate(parts, start=1))
    else:
        for _, pictures, charts in parts:
            names = [chart.title for chart in charts]
            names[1:1] = ["Frames"] if pictures else []
            yield from ((f"{name.lower().replace(' ', '-')}-1", name) for name in names)
    yield "tables", "Tables"


WRITERS = {"summary.csv": summary_csv, "scores.csv": scores_csv, "costs.csv": costs_csv, "index.html": as_page}
"""Functions that return the content of each output file."""
