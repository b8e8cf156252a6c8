"""How far another process of this machine is: a file that it writes and somebody reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from shared_components.common.atomic import write_text
from shared_components.common.progress import Step

FILE = "step.json"
_EVERY = 0.5  # seconds between two files


class StepFile:
    """A listener that keeps the newest step in a folder.

    Args:
        folder: A site's in the run, or a comparison's run's.
        now: Clock, in seconds.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = folder / FILE, now
        self._what, self._written = "", -_EVERY

    def __call__(self, step: Step) -> None:
        if step.what == self._what and self._now() - self._written < _EVERY:
            return
        self._what, self._written = step.what, self._now()
        write_text(self._path, json.dumps(asdict(step)))


def read_step(folder: Path) -> Step | None:
    """Return the newest step of a folder; None where none was told yet."""
    try:
        return Step(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(folder: Path) -> None:
    """Remove what was told earlier."""
    (folder / FILE).unlink(missing_ok=True)
