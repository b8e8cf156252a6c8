"""What a person sees of work under way: a live bar per worker on a terminal, elsewhere a plain line now and then.

One process draws, and everything that it prints meanwhile goes through its board, so that nothing is garbled and it
is known for how long nothing was said.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from shared_components.common.progress import Step, heard
from shared_components.common.sanitise import printable

PAUSE = 8.0
"""Seconds of silence after which a plain line says how far the work is; they grow with work that takes hours."""
_LONGEST_PAUSE, _SHARE = 60.0, 75  # seconds at most, and what part of the time since the beginning
_FIRST = 2.0  # seconds of silence before the first line: a process has been silent while it began
_LOOK = 0.25  # seconds between two looks at the work

Read = Callable[[], Mapping[str, Step]]

logger = logging.getLogger(__name__)


class Board:
    """Lines that stay, and below them how far each worker is.

    Args:
        out: Where it is written; bars where this is a terminal.
        read: Returns the workers' steps by name whenever it is asked; None: what `hear` has heard.
        title: Begins plain lines and the first bar, such as ``round 2/4``.
        pause: Seconds of silence before a plain line.
        now: Clock, in seconds.

    As a context: a thread looks at the work while it is open. `say` works before and after, too.
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
        self._heard: dict[str, Step] = {}
        self._read: Read = read or (lambda: dict(self._heard))
        self._title, self._pause, self._now = title, pause, now
        self._began = self._said = now()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._bars = _Bars(self._out) if can_move(self._out) else None

    def say(self, text: str) -> None:
        """Write lines that stay; of others' words in them nothing that a terminal obeys."""
        text = printable(text)
        with self._lock:
            self._said = self._now()
            if self._bars is not None and self._bars.open:
                self._bars.say(text)
            else:
                print(text, file=self._out, flush=True)

    def hear(self, step: Step, name: str = "") -> None:
        """Take note of a step; a listener, see `progress.heard`."""
        self._heard[name] = step

    def look(self) -> None:
        """Draw the bars anew, or write a plain line if nothing was said for long."""
        with self._lock:
            if self._bars is not None:
                self._draw(self._bars)
            elif self._now() - self._said >= self._patience():
                if line := plain_line(self._title(), self._read()):
                    self.say(line)

    def _patience(self) -> float:
        """Return the pause of now: a file of a night's work need not have a line every eight seconds."""
        share = (self._now() - self._began) / _SHARE
        return max(self._pause, min(share, _LONGEST_PAUSE))

    def _draw(self, bars: _Bars) -> None:
        try:
            bars.draw(self._title(), self._read())
        except Exception:  # the work that is shown goes on
            self._bars = None
            logger.exception("the bars cannot be drawn; lines come instead")

    def __enter__(self) -> Board:
        self._began = self._now()
        self._said = self._began - max(0.0, self._pause - _FIRST)
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, name="board", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bars; what was said stays."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            if self._bars is not None:
                self._bars.close()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            self.look()


@contextmanager
def shown(out: TextIO | None = None, *, title: str = "") -> Iterator[Board]:
    """Show what this thread tells of its work while the block runs."""
    with Board(out, title=lambda: title) as board, heard(board.hear):
        yield board


def can_move(out: TextIO) -> bool:
    """Say whether lines that are written there can be written over: a terminal, and not the dumbest."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def plain_line(title: str, steps: Mapping[str, Step]) -> str:
    """Write ``round 2/4  site-1 training 12/26 loss 0.412  site-2 validating``; nothing where there is nothing."""
    parts = [f"{name} {step}" if name else str(step) for name, step in steps.items()]
    return "  ".join([*([title] if title else []), *parts])


class StepLog:
    """A listener that writes a line of a log now and then.

    Args:
        title: Begins each line, such as ``round 2/4``.
        logger: Gets them.
        now: Clock, in seconds.
    """

    def __init__(self, title: str, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._title, self._logger, self._now, self._said = title, logger, now, now()

    def __call__(self, step: Step) -> None:
        if self._now() - self._said >= PAUSE:
            self._said = self._now()
            self._logger.info("%s", plain_line(self._title, {"": step}))


class _Bars:
    """A bar per worker at the foot of a terminal, drawn with rich, which is imported when there is one."""

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
        for name in [name for name in self._tasks if name not in steps]:
            self._progress.remove_task(self._tasks.pop(name))
        for name, step in steps.items():
            shown = {
                "description": "  ".join(part for part in (title, name, step.what) if part),
                "completed": step.done if step.total else 0,
                "total": step.total or 1,  # an empty bar where nobody knows how much there is
                "count": f"{step.done}/{step.total}" if step.total else (str(step.done) if step.done else ""),
                "note": step.note,
            }
            if name in self._tasks:
                self._progress.update(self._tasks[name], **shown)
            else:
                self._tasks[name] = self._progress.add_task(**shown)
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
        console.show_cursor = lambda show=True: False  # type: ignore[method-assign]  # a killed process leaves it so
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24, complete_style="cyan", finished_style="cyan"),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            auto_refresh=False,  # whoever draws refreshes
        )
        self._progress.start()
