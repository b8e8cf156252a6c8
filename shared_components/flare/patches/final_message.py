"""Print the outcome of a job as the last line of its process, below FLARE's own closing lines."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from shared_components.common.sanitise import printable

_said: list[tuple[str, Callable[[], None]]] = []
_leave = os._exit


def say(text: str, *, first: Callable[[], None] = lambda: None) -> None:
    """Print this line when the process ends, after calling ``first``.

    A simulator's server is a child of multiprocessing, and FLARE calls `os._exit` while threads are still running:
    neither runs `atexit` handlers, so that `os._exit` has to print, too.
    """
    if not _said:
        atexit.register(_print)
        os._exit = _print_and_leave
    _said[:] = [(printable(text), first)]


def _print_and_leave(status: int) -> NoReturn:
    _print()
    _leave(status)


def _print() -> None:
    if _said:
        text, first = _said.pop()
        first()
        print(text, file=sys.stderr, flush=True)
