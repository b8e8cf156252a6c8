"""Write a comparison as CSV, Markdown, LaTeX and one HTML page; each file appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path

from shared_components.common.atomic import write_json, write_text
from shared_components.common.sanitise import table_cells
from shared_components.experiments.comparison.page import as_page
from shared_components.experiments.comparison.results import Comparison, Result, mean_and_deviation
from shared_components.experiments.comparison.tables import Cell, Grid, all_grids
from shared_components.reporting.groups import Group


def write_all(comparison: Comparison, out: Path) -> list[Path]:
    """Write every form into a folder and return the files."""
    plain, grouped = all_grids(comparison), all_grids(comparison, grouped=True)
    texts = {
        "summary.csv": summary_csv(comparison),
        "scores.csv": scores_csv(comparison),
        "costs.csv": costs_csv(comparison),
        "tables.md": "\n\n".join(as_markdown(grid) for grid in plain) + "\n",
        "tables.tex": _LATEX_HEAD + "\n\n".join(as_latex(grid) for grid in grouped) + "\n",
        "index.html": as_page(comparison, grouped),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    write_json(out / RECORD, {"title": comparison.title})
    return [out / name for name in texts]


FILES = ("summary.csv", "scores.csv", "costs.csv", "tables.md", "tables.tex", "index.html")
RECORD = "comparison.json"
"""Says whose tables a folder holds; older versions did not write it."""


def refuse_foreign(out: Path) -> None:
    """Refuse a folder whose files of our names nobody but a person can have written.

    Raises:
        ValueError: There is such a file.
    """
    found = [name for name in FILES if (out / name).exists()]
    if found and not (out / RECORD).is_file() and not (out / "runs").is_dir():
        raise ValueError(f"{out}: holds {found[0]!r} and no comparison of surgfl; give another --out, or move it away")


def set_aside(out: Path, title: str) -> Path | None:
    """Move the tables of another comparison, whose runs are of the same folder, into one of their own.

    Returns:
        That folder; None where there are no such tables.
    """
    if not (out / RECORD).is_file() or (before := json.loads((out / RECORD).read_text())["title"]) == title:
        return None
    aside = out / "earlier" / re.sub(r"[^A-Za-z0-9]+", "-", before).strip("-").lower()
    aside.mkdir(parents=True, exist_ok=True)
    for name in (*FILES, RECORD):
        if (out / name).is_file():
            os.replace(out / name, aside / name)
    return aside


def summary_csv(comparison: Comparison) -> str:
    """Write one line per row, task, site and metric: mean and sample standard deviation over seeds.

    Sites are also ``average``, ``worst site`` and ``out of federation``; values as recorded, not scaled.
    """
    head = ("label", "method", "task", "site", "metric", "mean", "deviation", "seeds")
    rows = [
        row
        for label in comparison.labels
        for group in comparison.groups
        for row in _summary_rows(comparison, label, group)
    ]
    return _csv(head, rows)


def _summary_rows(comparison: Comparison, label: str, group: Group) -> Iterator[tuple]:
    results = comparison.of(label)
    for metric in group.metrics:
        places: dict[str, Callable[[Result], float]] = {
            "average": methodcaller("average", group, metric),
            **{site: methodcaller("value", metric, site) for site in group.sites},
            "worst site": methodcaller("worst", group, metric),
            "out of federation": methodcaller("held_out", group, metric),
        }
        for place, value in places.items():
            values = [number for result in results if not math.isnan(number := value(result))]
            if values:
                mean, deviation = mean_and_deviation(values)
                spread = "" if math.isnan(deviation) else deviation
                who = (label, results[0].run.variant.method, group.task)
                yield *who, place, metric.name, mean, spread, len(values)


def scores_csv(comparison: Comparison) -> str:
    """Write one line per run, site, metric and output; ``out of federation`` is a site, too."""
    head = ("label", "method", "seed", "site", "metric", "class", "value", "run")
    rows = [row for result in comparison.results for row in _score_rows(result, comparison.groups)]
    return _csv(head, rows)


def costs_csv(comparison: Comparison) -> str:
    """Write one line per run with its costs."""
    names = sorted({name for r in comparison.results for name in (r.scores or {}).get("costs", {})})
    rows = [
        (*_who(result), *(result.scores["costs"][name] for name in names), str(result.folder))
        for result in comparison.results
        if result.scores
    ]
    return _csv(("label", "method", "seed", *names, "run"), rows)


def _score_rows(result: Result, groups: Sequence[Group]) -> Iterator[tuple]:
    scores = result.scores or {"sites": {}}
    for group in groups:
        places = {site: scores["sites"].get(site, {}) for site in group.sites}
        if result.out_of(group):
            places["out of federation"] = scores["held_out"]
        for site, record in places.items():
            for metric in group.metrics:
                for name, value in record.get(metric.name, {}).items():
                    if value is not None:
                        yield *_who(result), site, metric.name, name, value, str(result.folder)


def _who(result: Result) -> tuple[str, str, int]:
    return result.run.variant.label, result.run.variant.method, result.run.seed


def _csv(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(head)
    table.writerows(map(table_cells, rows))
    return text.getvalue()


def as_markdown(grid: Grid) -> str:
    """Write GitHub-flavoured Markdown: the best bold, the second in italics (Markdown cannot underline)."""

    def cell(value: Cell) -> str:
        text = value.text.replace("|", "\\|").replace("*", "\\*")
        return {"best": f"**{text}**", "second": f"*{text}*"}.get(value.mark, text)

    ruler = ["---" if i < grid.labels else "---:" for i in range(len(grid.head))]
    lines = [_row(grid.head), _row(ruler), *(_row([cell(value) for value in row]) for row in grid.rows)]
    note = ["", f"*{grid.note}.*"] if grid.note else []
    return "\n".join([f"**{grid.title}**".replace("(* ", "(\\* "), "", *lines, *note])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_latex(grid: Grid) -> str:
    """Write a table that needs the package booktabs and nothing else."""

    def cell(value: Cell) -> str:
        text = latex_text(value.text)
        return {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}"}.get(value.mark, text)

    columns = "l" * grid.labels + "r" * (len(grid.head) - grid.labels)
    body = [" & ".join(map(cell, row)) + " \\\\" for row in grid.rows]
    head = " & ".join(map(latex_text, grid.head)) + " \\\\"
    lines = ["\\begin{table*}", "\\centering\\footnotesize", f"\\caption{{{latex_text(grid.title)}}}"]
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", *_latex_groups(grid)]
    lines += [head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
    note = [f"\n\\smallskip {latex_text(grid.note)}."] if grid.note else []
    return "\n".join([*lines, *note, "\\end{table*}"])


def _latex_groups(grid: Grid) -> list[str]:
    """Write the headings over several columns, each with a rule below it."""
    cells, rules, first = [""] * grid.labels, [], grid.labels + 1
    for name, count in grid.groups:
        cells.append(f"\\multicolumn{{{count}}}{{c}}{{{latex_text(name)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [" & ".join(cells) + " \\\\", " ".join(rules)] if grid.groups else []


_LATEX_HEAD = "% Needs \\usepackage{booktabs} and UTF-8.\n\n"
_LATEX = {
    "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "✓": "$\\surd$", "–": "--",
    "↑": "$\\uparrow$", "↓": "$\\downarrow$",
    "<": "$<$", ">": "$>$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Escape what LaTeX reads as a command."""
    return "".join(_LATEX.get(character, character) for character in text)
