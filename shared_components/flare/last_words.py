"""Let the outcome of a job be the last thing its process prints, below FLARE's own closing lines."""

from __future__ import annotations

import atexit
import sys
from multiprocessing import util

_said: list[str] = []


def say(text: str) -> None:
    """Print this line when the process ends, whether a main process or a child of multiprocessing."""
    if not _said:
        atexit.register(_print)
        util.Finalize(None, _print, exitpriority=-100)
    _said[:] = [text]


def _print() -> None:
    if _said:
        print(_said.pop(), file=sys.stderr, flush=True)
