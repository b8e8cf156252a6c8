"""Files that a crash leaves old or new, never half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Give a path beside ``path`` to write to, and rename it when the block ends well.

    The folder is made. Whatever happens, nothing stays beside.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text, see :func:`atomically`."""
    with atomically(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, see :func:`atomically`."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
