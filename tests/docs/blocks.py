"""Find every block of code in a document: fenced ones, and indented ones, which have no language and so no rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<marks>`{3,}|~{3,})\s*(?P<language>\S*)\s*(?P<note>.*)$")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One block; ``note`` is what follows the language: the path of a file, or a word for the rule."""

    document: str
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {f'{self.language} {self.note}'.strip() or 'an indented block'}"


def blocks_of(path: Path, name: str) -> list[Block]:
    """Return a document's blocks in order; ``name`` is what the document is called in errors."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Block(name, start + 1, *rest) for start, *rest in _found(lines)]


def prose_of(path: Path) -> str:
    """Return a document without its blocks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    inside = {n for start, _, _, text in _found(lines) for n in range(start, start + text.count("\n") + 2)}
    return "\n".join(line for number, line in enumerate(lines) if number not in inside)


def commands_in(prose: str) -> list[str]:
    """Return the code spans that are commands of ours: `surgfl ...`."""
    return [span for span in INLINE.findall(prose) if span.startswith("surgfl ")]


def _found(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence:
            end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == fence["marks"])
            yield number, fence["language"], fence["note"].strip(), _joined(lines[number + 1 : end])
            number = end
        elif _is_indented(lines, number):
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield number, "", "", _joined(lines[number:end])
            number = end
        number += 1


def _is_indented(lines: list[str], number: int) -> bool:
    return lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip())


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
