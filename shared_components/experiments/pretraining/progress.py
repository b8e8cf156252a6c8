"""What a person reads while a network is pre-trained: steps, how fast they go, and what is said between."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from typing import TextIO

from shared_components.common.progress import heard, report_progress
from shared_components.common.progress_display import Board
from shared_components.experiments.pretraining.plan import Settings
from shared_components.federation.progress import duration

WINDOW = 50  # steps that the speed is taken over


class Progress:
    """Counts steps and says how fast they go; as a context while there are any.

    Args:
        settings: of the pre-training.
        out: where it is written.
    """

    def __init__(self, settings: Settings, out: TextIO) -> None:
        self._settings, self._board = settings, Board(out)
        self._open = ExitStack()
        self._times: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # when a step ended, its pixels
        self._last = time.monotonic()

    def __enter__(self) -> Progress:
        self._open.enter_context(self._board)
        self._open.enter_context(heard(self._board.hear))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def step(self, done: int, loss: float) -> None:
        """Take note of a step, and tell of it."""
        now = time.monotonic()
        phase = self._settings.phase_of(done - 1)
        self._times.append((now - self._last, phase.height * phase.width))
        self._last = now
        report_progress("step", done, self._settings.steps, self.note(done, loss))

    def pause(self) -> None:
        """Leave out of the speed what happened since the last step."""
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._board.say(text)

    @property
    def pictures_per_second(self) -> float:
        """Of the last steps."""
        return self._settings.batch * len(self._times) / max(sum(seconds for seconds, _ in self._times), 1e-9)

    def note(self, done: int, loss: float) -> str:
        """Return loss, speed and time left."""
        speed = f"{self.pictures_per_second:.1f} pictures/s"
        return f"loss {loss:.3f}  {speed}  about {duration(self._seconds_left(done))} left"

    def _seconds_left(self, done: int) -> float:
        """Estimate by pixels: a later phase's steps take longer."""
        pixels, first = 0, 0
        for phase in self._settings.phases:
            pixels += phase.height * phase.width * max(0, first + phase.steps - max(done, first))
            first += phase.steps
        return pixels * sum(s for s, _ in self._times) / max(sum(p for _, p in self._times), 1)
