"""Write tables as text for a terminal, Markdown and CSV; `parts.html.j2` writes HTML."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared_components.common.sanitise import one_line, table_cells

LONGEST_CELL = 200  # maximum characters
LONGEST_NOTE = 10_000  # maximum characters; the note of a comparison lists every row without a result


@dataclass(frozen=True)
class Table:
    """A table of texts; each becomes one line, since names of classes, metrics and sites are untrusted."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1  # number of first columns with names, aligned left; the others are numbers, aligned right
    note: str = ""
    grouped: bool = False  # consecutive rows with the same first cell form a group
    groups: tuple[tuple[str, int], ...] = ()  # headings over columns of numbers: (text, number of columns)
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)  # "best" or "second" by (row, column) from 0
    shown: int = 0  # number of first rows that a page and a terminal show; 0: all
    rest: str = ""  # what the other rows are: "58 more sites"

    def __post_init__(self) -> None:
        """Replace line breaks in all texts."""
        head, *rows = (tuple(one_line(cell, LONGEST_CELL) for cell in row) for row in (self.head, *self.rows))
        texts = {"title": one_line(self.title), "head": head, "rows": tuple(rows)}
        for name, value in {**texts, "note": one_line(self.note, LONGEST_NOTE)}.items():
            object.__setattr__(self, name, value)


def as_text(table: Table) -> str:
    """Return text with aligned columns for a terminal; folded rows are only counted."""
    rows = table.rows[: table.shown or None]
    widths = [max(map(_width, column)) for column in zip(table.head, *rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, spaces, strict=True))
        return "  ".join(cell + s if i < table.labels else s + cell for i, (cell, s) in pairs).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    rest = (f"... and {table.rest}",) if table.rest else ()
    note = (f"({table.note})",) if table.note else ()
    return "\n".join((table.title, "", line(table.head), ruler, *map(line, rows), *rest, *note))


def as_markdown(table: Table) -> str:
    """Return GitHub-flavoured Markdown: best values bold, second-best in italics (Markdown cannot underline)."""

    def escaped(text: str) -> str:
        return text.replace("|", "\\|").replace("*", "\\*")

    ruler = ["---" if i < table.labels else "---:" for i in range(len(table.head))]
    patterns = {"best": "**%s**", "second": "*%s*"}
    rows = [
        [patterns.get(table.marks.get((i, j), ""), "%s") % escaped(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    lines = [f"| {' | '.join(row)} |" for row in (map(escaped, table.head), ruler, *rows)]
    note = ("", f"*{escaped(table.note)}.*") if table.note else ()
    return "\n".join((f"**{escaped(table.title)}**", "", *lines, *note))


def as_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV with unrounded values, safe against formulas in a spreadsheet."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *map(table_cells, rows)])
    return text.getvalue()


def _width(text: str) -> int:
    """Count terminal columns: wide East Asian characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def listed(texts: Iterable[str]) -> str:
    """Join texts for a sentence: "a", "a and b", "a, b and c"."""
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
