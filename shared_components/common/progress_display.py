"""Display progress: one live bar per worker on a terminal, a plain line now and then elsewhere.

One process writes. While a board is open, everything that this process prints goes through the board, so that lines
and bars do not mix and the time since the last line is known.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, TextIO

from shared_components.common.counted import first_few
from shared_components.common.progress import Step, listening
from shared_components.common.sanitise import printable

PAUSE = 8.0
"""Seconds without output before a plain progress line; longer in work that takes hours."""
_LONGEST_PAUSE, _SHARE = 60.0, 75  # maximum seconds; fraction (1/75) of the time since the start
_FIRST = 2.0  # seconds without output before the first line: a starting process prints nothing
_INTERVAL = 0.25  # seconds between two updates
_MOST_BARS = 12  # bars of workers at a time

Read = Callable[[], Mapping[str, Step]]

logger = logging.getLogger(__name__)


class Board:
    """Permanent lines, with the progress of each worker below them.

    As a context manager it updates itself in a thread. `say` also works before and after. Bars are drawn only if
    ``out``, by default the standard output, is a terminal. ``read`` returns the workers' steps by name; by default the
    last step passed to `hear`. ``title`` returns the prefix of plain lines and of the first bar, such as ``round 2/4``.
    ``pause`` are the seconds without output before a plain line; ``now`` is the clock in seconds.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        read: Read | None = None,
        title: Callable[[], str] = lambda: "",
        pause: float = PAUSE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = sys.stdout if out is None else out
        self._last_steps: dict[str, Step] = {}
        self._read: Read = read or (lambda: self._last_steps)
        self._title, self._pause, self._now = title, pause, now
        self._began = self._last_line = now()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._bars = _Bars(self._out) if can_move(self._out) else None

    def say(self, text: str) -> None:
        """Print permanent lines, without escape sequences."""
        text = printable(text)
        with self._lock:
            self._last_line = self._now()
            if self._bars is not None and self._bars.open:
                self._bars.say(text)
            else:
                print(text, file=self._out, flush=True)

    def hear(self, step: Step) -> None:
        """Display a step; a listener for `progress.listening`."""
        self._last_steps = {"": step}

    def look(self) -> None:
        """Redraw the bars, or print a plain line if there was no output for a while."""
        with self._lock:
            if self._bars is not None:
                self._draw(self._bars)
                return
            now = self._now()  # a log of several hours needs fewer lines
            pause = max(self._pause, min((now - self._began) / _SHARE, _LONGEST_PAUSE))
            if now - self._last_line >= pause and (line := plain_line(self._title(), self._read())):
                self.say(line)

    def _draw(self, bars: _Bars) -> None:
        try:
            bars.draw(self._title(), self._read())
        except Exception:  # the work must go on
            self._bars = None
            logger.exception("the progress bars cannot be drawn; plain lines follow instead")

    def __enter__(self) -> Board:
        self._began = self._now()
        self._last_line = self._began - max(0.0, self._pause - _FIRST)
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, name="board", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bars and keep the lines."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            if self._bars is not None:
                self._bars.close()

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL):
            self.look()


@contextmanager
def show_progress(out: TextIO | None = None, *, title: str = "") -> Iterator[Board]:
    """Display the progress of this thread while the block runs."""
    with Board(out, title=lambda: title) as board, listening(board.hear):
        yield board


def can_move(out: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def plain_line(title: str, steps: Mapping[str, Step]) -> str:
    """Return ``round 2/4  site-1 training 12/26 loss 0.412``.

    The line names the first few of many sites. It is empty without steps.
    """
    parts = [f"{name} {step}" if name else str(step) for name, step in steps.items()]
    return "  ".join([*([title] if title else []), *([first_few(parts, "  ")] if parts else [])])


class StepLog:
    """A listener that logs a step every `PAUSE` seconds, after a title such as ``round 2/4``."""

    def __init__(self, title: str, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._title, self._logger, self._now, self._last_line = title, logger, now, now()

    def __call__(self, step: Step) -> None:
        if self._now() - self._last_line >= PAUSE:
            self._last_line = self._now()
            self._logger.info("%s", plain_line(self._title, {"": step}))


class _Bars:
    """Bars at the bottom of a terminal, one per worker; the first bar imports rich."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    @property
    def open(self) -> bool:
        return self._progress is not None

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def draw(self, title: str, steps: Mapping[str, Step]) -> None:
        if not self.open:
            self._begin()
        if (others := len(steps) - _MOST_BARS) > 0:
            steps, title = dict(islice(steps.items(), _MOST_BARS)), f"{title} (+ {others} more)".lstrip()
        for name in [name for name in self._tasks if name not in steps]:
            self._progress.remove_task(self._tasks.pop(name))
        for name, step in steps.items():
            fields = {
                "description": "  ".join(part for part in (title, name, step.what) if part),
                "completed": step.done if step.total else 0,
                "total": step.total or 1,  # an empty bar if the total is unknown
                "count": f"{step.done}/{step.total}" if step.total else (str(step.done) if step.done else ""),
                "note": step.note,
            }
            if name in self._tasks:
                self._progress.update(self._tasks[name], **fields)
            else:
                self._tasks[name] = self._progress.add_task(**fields)
        self._progress.refresh()

    def close(self) -> None:
        if self.open:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=self._out, force_terminal=True)
        console.show_cursor = lambda show=True: False  # type: ignore[method-assign]  # or a killed process leaves it hidden
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24, complete_style="cyan", finished_style="cyan"),
            *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "note")),
            console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
            auto_refresh=False,  # `draw` does
        )  # fmt: skip
        self._progress.start()
