"""How far a site is within its task: in a simulator a file that the server reads, elsewhere lines of the site's log."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from shared_components.atomic import write_text
from shared_components.board import PAUSE
from shared_components.progress import Step

FILE = "step.json"
_EVERY = 0.5  # seconds between two files

logger = logging.getLogger(__name__)


class StepFile:
    """A listener that keeps the newest step in the site's folder.

    Args:
        folder: The site's, in the run.
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


class StepLog:
    """A listener that writes a line of the site's log now and then.

    Args:
        title: Begins each line, such as ``round 2/4``.
        now: Clock, in seconds.
    """

    def __init__(self, title: str, now: Callable[[], float] = time.monotonic) -> None:
        self._title, self._now, self._said = title, now, now()

    def __call__(self, step: Step) -> None:
        if self._now() - self._said >= PAUSE:
            self._said = self._now()
            logger.info("%s  %s", self._title, step)


def read_step(folder: Path) -> Step | None:
    """Return the newest step of a site; None where it has told none yet."""
    try:
        return Step(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(folder: Path) -> None:
    """Remove what an earlier task of the site has told."""
    (folder / FILE).unlink(missing_ok=True)
