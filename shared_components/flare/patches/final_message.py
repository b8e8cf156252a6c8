"""Print the outcome of a job as the last line of its process, below FLARE's own closing lines."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from shared_components.common.sanitise import printable

_messages: list[tuple[str, Callable[[], None]]] = []
_exit = os._exit


def say(text: str, *, first: Callable[[], None] = lambda: None) -> None:
    """Print this line when the process ends, after calling ``first``.

    A simulator's server is a child of multiprocessing, and FLARE calls `os._exit` while threads are still running.
    Neither runs `atexit` handlers, so `os._exit` also prints the line.
    """
    if not _messages:
        atexit.register(_print)
        os._exit = _print_and_exit
    _messages[:] = [(printable(text), first)]


def _print_and_exit(status: int) -> NoReturn:
    _print()
    _exit(status)


def _print() -> None:
    if _messages:
        text, first = _messages.pop()
        first()
        print(text, file=sys.stderr, flush=True)
