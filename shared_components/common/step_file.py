"""Progress of another process on this machine, by a file that it writes."""

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
    """A progress listener that writes the newest step into a folder, at most twice a second; ``now`` is the clock."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = folder / FILE, now
        self._what, self._written = "", -_EVERY

    def __call__(self, step: Step) -> None:
        if step.what == self._what and self._now() - self._written < _EVERY:
            return
        self._what, self._written = step.what, self._now()
        write_text(self._path, json.dumps(asdict(step)))


def read_step(folder: Path) -> Step | None:
    """Return the newest step of a folder; None before the first."""
    try:
        return Step(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)
