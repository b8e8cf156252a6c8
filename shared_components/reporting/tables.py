"""A table of texts, and its forms: text for a terminal, Markdown, LaTeX and CSV; `parts.html.j2` writes its HTML."""

import csv
import io
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared_components.common.sanitise import one_line, table_cells

LONGEST_CELL, LONGEST_NOTE = 200, 10_000  # characters; a comparison's note names every row without a result


@dataclass(frozen=True)
class Table:
    """Rows of text; names of classes, metrics and sites are other parties', so that every text is put on one line."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1  # so many first columns are names, set left; all others are numbers, set right
    note: str = ""
    grouped: bool = False  # neighbouring rows with the same first cell belong together
    groups: tuple[tuple[str, int], ...] = ()  # headings over columns of numbers: (text, how many columns)
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)  # "best" or "second" by (row, column) from 0

    def __post_init__(self) -> None:
        """Put every text on one line."""
        head, *rows = (tuple(one_line(cell, LONGEST_CELL) for cell in row) for row in (self.head, *self.rows))
        texts = {"title": one_line(self.title), "head": head, "rows": tuple(rows)}
        for name, value in {**texts, "note": one_line(self.note, LONGEST_NOTE)}.items():
            object.__setattr__(self, name, value)


def as_text(table: Table) -> str:
    """Align the columns for a terminal."""
    widths = [max(map(_width, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (_padded(cell, widths[i], right=i >= table.labels) for i, cell in enumerate(row))
        return "  ".join(cells).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    note = (f"({table.note})",) if table.note else ()
    return "\n".join((table.title, "", line(table.head), ruler, *map(line, table.rows), *note))


def as_markdown(table: Table) -> str:
    """Write GitHub-flavoured Markdown: the best bold, the second in italics (Markdown cannot underline)."""

    def escaped(text: str) -> str:
        return text.replace("|", "\\|").replace("*", "\\*")

    ruler = ["---" if i < table.labels else "---:" for i in range(len(table.head))]
    rows = [map(escaped, table.head), ruler, *_marked(table, escaped, best="**%s**", second="*%s*")]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    note = ("", f"*{escaped(table.note)}.*") if table.note else ()
    return "\n".join((f"**{escaped(table.title)}**", "", *lines, *note))


def as_latex(table: Table) -> str:
    """Write a table that needs the package booktabs and nothing else."""
    columns = "l" * table.labels + "r" * (len(table.head) - table.labels)
    head, *body = (
        " & ".join(row) + " \\\\"
        for row in (
            map(latex_text, table.head),
            *_marked(table, latex_text, best="\\textbf{%s}", second="\\underline{%s}"),
        )
    )
    lines = ["\\begin{table*}", "\\centering\\footnotesize", f"\\caption{{{latex_text(table.title)}}}"]
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", *_latex_groups(table)]
    lines += [head, "\\midrule", *body, "\\bottomrule", "\\end{tabular}"]
    note = [f"\n\\smallskip {latex_text(table.note)}."] if table.note else []
    return "\n".join([*lines, *note, "\\end{table*}"])


def as_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write values in full, in which a spreadsheet finds no formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *map(table_cells, rows)])
    return text.getvalue()


_LATEX = str.maketrans({
    "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "✓": "$\\surd$", "–": "--",
    "↑": "$\\uparrow$", "↓": "$\\downarrow$", "<": "$<$", ">": "$>$",
})  # fmt: skip


def latex_text(text: str) -> str:
    """Escape what LaTeX reads as a command."""
    return text.translate(_LATEX)


def _marked(table: Table, escape: Callable[[str], str], **patterns: str) -> list[list[str]]:
    """Escape the cells of all rows, and put each that is marked into the pattern of its mark."""
    return [
        [patterns.get(table.marks.get((i, j), ""), "%s") % escape(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def _latex_groups(table: Table) -> list[str]:
    """Write the headings over several columns, each with a rule below it."""
    cells, rules, first = [""] * table.labels, [], table.labels + 1
    for name, count in table.groups:
        cells.append(f"\\multicolumn{{{count}}}{{c}}{{{latex_text(name)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + count - 1}}}")
        first += count
    return [" & ".join(cells) + " \\\\", " ".join(rules)] if table.groups else []


def _width(text: str) -> int:
    """Count terminal columns: wide East Asian characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def listed(texts: Iterable[str]) -> str:
    """Join texts as in a sentence: "a", "a and b", "a, b and c"."""
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
