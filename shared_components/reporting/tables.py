"""Tables of a run's numbers, the same in the terminal, in Markdown and on the report's page.

Dice and IoU lie in [0, 1]; ASSD and HD95 are in pixels of the frame as recorded. A dash stands for a number
that does not exist: a class that no frame shows and no prediction claims is counted as empty, not scored.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.reporting.records import NAN, Run, load_run, lowest, mean, score

DASH = "–"
_METRICS = (
    ("dice", "Dice", 3),
    ("iou", "IoU", 3),
    ("assd", "ASSD px", 2),
    ("hd95", "HD95 px (medpy)", 2),
    ("hd95_monai", "HD95 px (MONAI)", 2),
)


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `labels` columns are names, the others numbers (set right).

    Where `grouped`, neighbouring rows with one name in the first column belong together.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    note: str = ""
    grouped: bool = False


def demo_text(run: Path | Run, *, evaluations: dict[str, dict[str, Any]] | None = None) -> str:
    """Give the tables that end a run in the terminal: validation, then the test split if evaluated."""
    records = run if isinstance(run, Run) else load_run(run, evaluations=evaluations)
    tables = [progress_table(records)]
    if records.evaluations:
        tables.append(scores_table(records.evaluations, records.classes, title=evaluation_title(records)))
    return "\n\n".join(as_text(table) for table in tables)


def progress_table(run: Run) -> Table:
    """Tabulate Dice on validation: before the first training, and of the last model by class."""
    rows = [(site, _progress(run, site)) for site in run.sites]
    columns = list(zip(*(values for _, values in rows), strict=True))
    if len(rows) > 1:
        rows.append(("mean over sites", [mean(list(column)) for column in columns]))
        rows.append(("worst site", [lowest(list(column)) for column in columns]))
    head = ("site", "first mean", *(f"last {name}" for name in run.classes), "last mean", "best mean")
    note = (
        "first: the model as received in round 0; worst site: the lowest of the sites, column by column; "
        f"{DASH}: no frame with the class, or no report"
    )
    texts = [(name, *(number(value, 3) for value in values)) for name, values in rows]
    return Table("Dice on the validation split", head, tuple(texts), note=note)


def scores_table(by_site: dict[str, dict[str, Any]], classes: Sequence[str], *, title: str) -> Table:
    """Tabulate every metric by site and class, with the counts of empty frames, then mean and worst site.

    Args:
        by_site: what `metrics.summarise` gave, by site.
        classes: class names without the background.
        title: says which frames were scored.
    """
    rows = [
        _score_row(site, name, metrics) for site, metrics in by_site.items() for name in (*classes, "mean")
    ]
    if len(by_site) > 1:
        rows += [_over_sites("mean over sites", name, by_site, mean, mean) for name in (*classes, "mean")]
        rows += [_over_sites("worst site", name, by_site, lowest, _highest) for name in (*classes, "mean")]
    head = (
        "site",
        "class",
        *(label for _, label, _ in _METRICS),
        "empty frames: both / truth / prediction",
    )
    note = _SCORES_NOTE + _policy_note(by_site)
    return Table(title, head, tuple(rows), labels=2, note=note, grouped=True)


_SCORES_NOTE = (
    "HD95 by medpy's definition pools the surface distances of both directions before the 95th percentile; "
    "MONAI's takes the percentile of each direction and then the larger. Empty frames: those without the "
    "class in truth and prediction (not scored), in the truth only, in the prediction only. Worst site: the "
    "worst of the sites, column by column"
)


_POLICIES = {
    "diagonal": "Dice 0 and the image diagonal as distance",
    "paper": "the released code's first-pixel policy, kept for comparison with the paper",
}


def _policy_note(by_site: dict[str, dict[str, Any]]) -> str:
    """Say what a frame scores in which only one of truth and prediction is empty."""
    policies = sorted({str(metrics["policy"]) for metrics in by_site.values() if "policy" in metrics})
    named = "; ".join(_POLICIES.get(policy, policy) for policy in policies)
    return f". Where only one of truth and prediction is empty a frame scores {named}" if named else ""


def evaluation_title(run: Run) -> str:
    """Name the frames the evaluation scored: the test split unless the records say another."""
    splits = sorted({str(record.get("split", "test")) for record in run.evaluations.values()}) or ["test"]
    return f"Scores on the {' and '.join(splits)} split, evaluated after the run"


def as_text(table: Table) -> str:
    """Align the columns for a terminal."""
    widths = [max(_width(row[i]) for row in (table.head, *table.rows)) for i in range(len(table.head))]

    def line(row: Sequence[str]) -> str:
        cells = (_pad(cell, widths[i], right=i >= table.labels) for i, cell in enumerate(row))
        return "  ".join(cells).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    note = (f"({table.note})",) if table.note else ()
    return "\n".join((table.title, "", line(table.head), ruler, *map(line, table.rows), *note))


def as_markdown(table: Table) -> str:
    """Write the table as GitHub-flavoured Markdown."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    ruler = ["---" if i < table.labels else "---:" for i in range(len(table.head))]
    note = ("", f"*{table.note}*") if table.note else ()
    return "\n".join((f"**{table.title}**", "", line(table.head), line(ruler), *map(line, table.rows), *note))


def number(value: float, digits: int) -> str:
    """Write a number, or a dash where it does not exist."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def _progress(run: Run, site: str) -> list[float]:
    scored = [row["metrics"] for _, row in sorted(run.rows[site].items()) if row.get("metrics")]
    first = score(scored[0], "dice") if scored and 0 in run.rows[site] else NAN
    last = run.last_metrics(site)
    best = max((v for m in (*scored, last) if not math.isnan(v := score(m, "dice"))), default=NAN)
    return [first, *(score(last, "dice", name) for name in run.classes), score(last, "dice"), best]


def _score_row(site: str, name: str, metrics: dict[str, Any]) -> tuple[str, ...]:
    values = (number(score(metrics, metric, name), digits) for metric, _, digits in _METRICS)
    return (site, name, *values, _empty(metrics, name))


def _empty(metrics: dict[str, Any], name: str) -> str:
    """Write the counts of empty frames of a class, e.g. "2 / 3 / 4 of 10"."""
    counts = (metrics.get("empty") or {}).get(name)
    if not isinstance(counts, dict):
        return ""
    shown = " / ".join(str(counts.get(key, DASH)) for key in ("both", "truth", "prediction"))
    return f"{shown} of {metrics['frames']}" if "frames" in metrics else shown


def _over_sites(
    label: str,
    name: str,
    by_site: dict[str, dict[str, Any]],
    overlap: Callable[[list[float]], float],
    distance: Callable[[list[float]], float],
) -> tuple[str, ...]:
    """Reduce every column over the sites; overlaps are better high, distances better low."""
    values = (
        number((overlap if metric in ("dice", "iou") else distance)(_column(by_site, metric, name)), digits)
        for metric, _, digits in _METRICS
    )
    return (label, name, *values, "")


def _column(by_site: dict[str, dict[str, Any]], metric: str, name: str) -> list[float]:
    return [score(metrics, metric, name) for metrics in by_site.values()]


def _highest(values: list[float]) -> float:
    return -lowest([-value for value in values])


def _width(text: str) -> int:
    """Count terminal columns: wide East Asian characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
