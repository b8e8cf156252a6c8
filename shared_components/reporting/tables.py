"""Tables of a run's numbers, the same in the terminal, in Markdown and on the report's page.

Numbers stand as recorded, in their metrics' units. A dash stands for a number that does not exist: an output
that no frame shows and no prediction claims is counted as empty, not scored.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared_components.common.sanitise import one_line
from shared_components.core.card import DASH, Metric
from shared_components.reporting.glossary import policy_remark, remarks
from shared_components.reporting.groups import Group
from shared_components.reporting.records import Run, load_run, mean, score

LONGEST_CELL = 200  # characters


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

    def __post_init__(self) -> None:
        """Put every text on one line: names of classes and metrics are the sites' own."""
        for name in ("title", "note"):
            object.__setattr__(self, name, one_line(getattr(self, name)))
        object.__setattr__(self, "head", tuple(one_line(cell, LONGEST_CELL) for cell in self.head))
        rows = tuple(tuple(one_line(cell, LONGEST_CELL) for cell in row) for row in self.rows)
        object.__setattr__(self, "rows", rows)

    grouped: bool = False


def demo_text(run: Path | Run, *, evaluations: dict[str, dict[str, Any]] | None = None) -> str:
    """Give the tables that end a run in the terminal: validation, then the test split if evaluated, by task."""
    records = run if isinstance(run, Run) else load_run(run, evaluations=evaluations)
    tables = []
    for group in records.groups:
        shown = [progress_table(records, group)]
        if tested := records.evaluations_of(group):
            shown.append(scores_table(tested, group, title=evaluation_title(records)))
        if len(records.beside) > 1:
            shown.append(beside_table(records, group))
        named = len(records.groups) > 1
        tables += [replace(t, title=f"{group.title}: {t.title}") if named else t for t in shown]
    return "\n\n".join(as_text(table) for table in tables)


def progress_table(run: Run, group: Group) -> Table:
    """Tabulate the selecting metric on validation: before the first training, and of the last model by output."""
    metric = group.first
    rows = [(site, _progress(run, site, group)) for site in group.sites]
    columns = list(zip(*(values for _, values in rows), strict=True))
    if len(rows) > 1:
        rows.append(("mean over sites", [mean(list(column)) for column in columns]))
        rows.append(("worst site", [metric.worst(column) for column in columns]))
    heads = [f"last {name}" for name in group.outputs]
    head = ("site", *(("first mean", *heads, "last mean", "best mean") if heads else ("first", "last", "best")))
    edge = "lowest" if metric.higher_is_better else "highest"
    note = (
        f"first: the model as received in the first round{_DRAWN if run.draws else ''}; "
        + (f"worst site: the {edge} of the sites, column by column; " if len(group.sites) > 1 else "")
        + f"{DASH}: no frame {'with the class' if heads else 'to score'}, or no report"
    )
    texts = [(name, *(metric.plain_text(value) for value in values)) for name, values in rows]
    return Table(f"{metric.plain_heading} on the validation split", head, tuple(texts), note=note)


_DRAWN = " that the site was drawn in"


def scores_table(by_site: Mapping[str, dict[str, Any]], group: Group, *, title: str) -> Table:
    """Tabulate every metric by site and output, with the counts of empty frames, then mean and worst site.

    Args:
        by_site: the score records, by site of the group.
        group: what the sites learn; without outputs a site has one row, and there is nothing to be empty.
        title: says which frames were scored.
    """
    rows = [(site, name, record) for site, record in by_site.items() for name in group.names]
    texts = [(site, name, *_scores(record, name, group), _empty(record, name)) for site, name, record in rows]
    if len(by_site) > 1:
        texts += [("mean over sites", name, *_means(by_site, name, group), "") for name in group.names]
        texts += [("worst site", name, *_worst(by_site, name, group), "") for name in group.names]
    head = ("site", "class", *(metric.plain_heading for metric in group.metrics), _EMPTY_HEAD)
    notes = [*remarks(group.metrics), *([_EMPTY_NOTE] if group.outputs else [])]
    if len(by_site) > 1:
        notes.append("Worst site: the worst of the sites, column by column")
    if said := policy_remark(by_site.values()):
        notes.append(said)
    if group.outputs:
        return Table(title, head, tuple(texts), labels=2, note=". ".join(notes), grouped=True)
    bare = tuple((row[0], *row[2:-1]) for row in texts)
    return Table(title, (head[0], *head[2:-1]), bare, note=". ".join(notes))


def beside_table(run: Run, group: Group) -> Table:
    """Tabulate the selecting metric of models beside each other, by site, on the same frames."""
    metric, names = group.first, list(run.beside)
    columns = [[score(run.beside[n].get(site, {}), metric.name) for site in group.sites] for n in names]
    rows = [(site, *values) for site, *values in zip(group.sites, *columns, strict=True)]
    if len(group.sites) > 1:
        rows.append(("mean over sites", *map(mean, columns)))
        rows.append(("worst site", *map(metric.worst, columns)))
    texts = [(name, *(metric.plain_text(value) for value in values)) for name, *values in rows]
    title = f"{metric.plain_heading}, {' | '.join(names)}: {_frames(run)}"
    return Table(title, ("site", *names), tuple(texts))


_EMPTY_HEAD = "empty frames: both / truth / prediction"
_EMPTY_NOTE = (
    "Empty frames: those without the class in truth and prediction (not scored), in the truth only, in the "
    "prediction only"
)


def evaluation_title(run: Run) -> str:
    """Name the frames the evaluation scored: the test split unless the records say another."""
    return f"Scores {_frames(run)}, evaluated after the run"


def _frames(run: Run) -> str:
    splits = sorted({str(record.get("split", "test")) for record in run.evaluations.values()}) or ["test"]
    return f"on the {' and '.join(splits)} split"


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


def _progress(run: Run, site: str, group: Group) -> list[float]:
    name = group.first.name
    scored = {r: row["metrics"] for r, row in run.rows[site].items() if row.get("metrics")}
    first = score(scored.get(run.first_round(site), {}), name)
    last = run.last_metrics(site)
    best = group.first.best(score(record, name) for record in (*scored.values(), last))
    return [first, *(score(last, name, output) for output in group.outputs), score(last, name), best]


def _scores(record: Mapping[str, Any], name: str, group: Group) -> list[str]:
    return [metric.plain_text(score(record, metric.name, name)) for metric in group.metrics]


def _empty(metrics: dict[str, Any], name: str) -> str:
    """Write the counts of empty frames of a class, e.g. "2 / 3 / 4 of 10"."""
    counts = (metrics.get("empty") or {}).get(name)
    if not isinstance(counts, dict):
        return ""
    shown = " / ".join(str(counts.get(key, DASH)) for key in ("both", "truth", "prediction"))
    return f"{shown} of {metrics['frames']}" if "frames" in metrics else shown


def _means(by_site: Mapping[str, Mapping[str, Any]], name: str, group: Group) -> list[str]:
    return _over_sites(by_site, name, group, lambda metric, values: mean(values))


def _worst(by_site: Mapping[str, Mapping[str, Any]], name: str, group: Group) -> list[str]:
    return _over_sites(by_site, name, group, lambda metric, values: metric.worst(values))


def _over_sites(
    by_site: Mapping[str, Mapping[str, Any]], name: str, group: Group, reduce: Callable[[Metric, list[float]], float]
) -> list[str]:
    """Reduce every metric's column over the sites."""
    columns = {m: [score(record, m.name, name) for record in by_site.values()] for m in group.metrics}
    return [metric.plain_text(reduce(metric, values)) for metric, values in columns.items()]


def _width(text: str) -> int:
    """Count terminal columns: wide East Asian characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
