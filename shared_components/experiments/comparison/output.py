"""Write a comparison as CSV, Markdown, LaTeX and one HTML page; each file appears whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path

from shared_components.common.atomic import write_bytes, write_json, write_text
from shared_components.common.drawing.pictures import encoded
from shared_components.experiments.comparison.charts import panels
from shared_components.experiments.comparison.grid import LAYOUTS, grid
from shared_components.experiments.comparison.pictures import OUTSIDE, Gallery, gallery
from shared_components.experiments.comparison.results import Comparison, Result, facts, mean_and_deviation
from shared_components.experiments.comparison.tables import all_tables
from shared_components.experiments.comparison.verdict import verdict
from shared_components.reporting.figures import Panel
from shared_components.reporting.records import Group
from shared_components.reporting.report import TEMPLATES
from shared_components.reporting.tables import Table, as_csv, as_latex, as_markdown

FILES = ("summary.csv", "scores.csv", "costs.csv", "tables.md", "tables.tex", "index.html")
GRID = "grid.png"  # of a preset of pictures
RECORD = "comparison.json"
"""Names the comparison whose tables a folder holds; older versions did not write it."""
_LATEX_HEAD = "% Needs \\usepackage{booktabs} and UTF-8.\n\n"


def write_all(comparison: Comparison, out: Path) -> list[Path]:
    """Write every form into a folder and return the files."""
    plain, grouped = all_tables(comparison), all_tables(comparison, grouped=True)
    texts = (
        summary_csv(comparison),
        scores_csv(comparison),
        costs_csv(comparison),
        "\n\n".join(map(as_markdown, plain)) + "\n",
        _LATEX_HEAD + "\n\n".join(map(as_latex, grouped)) + "\n",
        as_page(comparison, grouped),
    )
    files = [out / name for name in FILES]
    for file, text in zip(files, texts, strict=True):
        write_text(file, text)
    if comparison.layout in LAYOUTS and (drawn := grid(comparison)) is not None:
        files.append(out / GRID)
        write_bytes(files[-1], encoded(drawn, ".png"))
    write_json(out / RECORD, {"title": comparison.title})
    return files


def refuse_foreign(out: Path) -> None:
    """Refuse a folder that holds a file with the name of an output that no comparison has written.

    Raises:
        ValueError: There is such a file.
    """
    found = [name for name in FILES if (out / name).exists()]
    if found and not (out / RECORD).is_file() and not (out / "runs").is_dir():
        raise ValueError(f"{out}: holds {found[0]!r} and no comparison of surgfl; give another --out, or move it away")


def set_aside(out: Path, title: str) -> Path | None:
    """Move the tables of another comparison in the same folder, if there are any, into a folder and return that."""
    if not (out / RECORD).is_file() or (before := json.loads((out / RECORD).read_text("utf-8"))["title"]) == title:
        return None
    aside = out / "earlier" / re.sub(r"[^A-Za-z0-9]+", "-", before).strip("-").lower()
    aside.mkdir(parents=True, exist_ok=True)
    for name in (*FILES, GRID, RECORD):
        if (out / name).is_file():
            os.replace(out / name, aside / name)
    return aside


def summary_csv(comparison: Comparison) -> str:
    """Write one line per row, task, site and metric: mean and sample standard deviation over seeds.

    Sites are also ``average``, ``worst site`` and ``out of federation``; values as recorded, not scaled.
    """
    head = ("label", "method", "task", "site", "metric", "mean", "deviation", "seeds")
    rows = (
        row
        for label in comparison.labels
        for group in comparison.groups
        for row in _summary_rows(comparison.of(label), group)
    )
    return as_csv(head, rows)


def _summary_rows(results: Sequence[Result], group: Group) -> Iterator[tuple]:
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
    """Write one line per run, site, metric and output; ``out of federation`` is a site, too."""
    head = ("label", "method", "seed", "site", "metric", "class", "value", "run")
    return as_csv(head, (row for result in comparison.results for row in _score_rows(result, comparison.groups)))


def _score_rows(result: Result, groups: Sequence[Group]) -> Iterator[tuple]:
    scores = result.scores or {"sites": {}}
    for group in groups:
        places = {site: scores["sites"].get(site, {}) for site in group.sites}
        if result.out_of(group):
            places[OUTSIDE] = scores["held_out"]
        for site, record in places.items():
            for metric in group.metrics:
                for name, value in record.get(metric.name, {}).items():
                    if value is not None:
                        yield *_who(result), site, metric.name, name, value, str(result.folder)


def costs_csv(comparison: Comparison) -> str:
    """Write one line per run with its costs."""
    done = [result for result in comparison.results if (result.scores or {}).get("costs")]
    names = sorted({name for r in done for name in (r.scores or {}).get("costs", {})})
    rows = ((*_who(r), *((r.scores or {})["costs"][name] for name in names), str(r.folder)) for r in done)
    return as_csv(("label", "method", "seed", *names, "run"), rows)


def _who(result: Result) -> tuple[str, str, int]:
    return result.run.variant.label, result.run.variant.method, result.run.seed


def as_page(comparison: Comparison, tables: Sequence[Table]) -> str:
    """Write pictures, charts and tables of all tasks."""
    failed = [result for result in comparison.results if result.scores is None]
    parts = [(group, gallery(comparison, group), panels(comparison, group)) for group in comparison.groups]
    return TEMPLATES.get_template("comparison.html.j2").render(
        title=comparison.title,
        verdicts=[_verdict(comparison, group) for group in comparison.groups],
        tables=tables,
        split=comparison.split,
        models=comparison.models,
        parts=parts,
        links=list(_links(parts, bool(failed))),
        failed=failed,
        facts=facts(comparison),
        done=len(comparison.results) - len(failed),
        runs=len(comparison.results),
    )


def _verdict(comparison: Comparison, group: Group) -> str:
    sentence = verdict(comparison, group)
    return f"{group.title}: {sentence}" if sentence and len(comparison.groups) > 1 else sentence


def _links(parts: Sequence[tuple[Group, Gallery | None, list[Panel]]], failed: bool) -> Iterator[tuple[str, str]]:
    """Yield the page's parts as anchors and names: of several tasks the tasks, of one its charts."""
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
