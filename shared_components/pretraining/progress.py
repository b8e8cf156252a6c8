"""What a person reads while a network is pre-trained: a line that moves on a terminal, elsewhere one now and then."""

from __future__ import annotations

import time
from collections import deque
from typing import TextIO

from shared_components.federation.progress import duration
from shared_components.pretraining.plan import Settings

EVERY = 10.0  # seconds between two lines in a file
WINDOW = 50  # steps that the speed is taken over


class Progress:
    """Counts steps and says how fast they go.

    Args:
        settings: of the pre-training.
        out: where it is written.
    """

    def __init__(self, settings: Settings, out: TextIO) -> None:
        self._settings, self._out = settings, out
        self._terminal = out.isatty()
        self._times: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # when a step ended, its pixels
        self._said = self._last = time.monotonic()

    def step(self, done: int, loss: float) -> None:
        """Take note of a step, and say so if it is time."""
        now = time.monotonic()
        phase = self._settings.phase_of(done - 1)
        self._times.append((now - self._last, phase.height * phase.width))
        self._last = now
        if now - self._said >= (0.2 if self._terminal else EVERY):
            self._said = now
            self._write(self.line(done, loss), moving=True)

    def pause(self) -> None:
        """Leave out of the speed what happened since the last step."""
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._write(text, moving=False)

    @property
    def pictures_per_second(self) -> float:
        """Of the last steps."""
        return self._settings.batch * len(self._times) / max(sum(seconds for seconds, _ in self._times), 1e-9)

    def line(self, done: int, loss: float) -> str:
        """Return step, loss, speed and time left."""
        steps, left = self._settings.steps, duration(self._seconds_left(done))
        speed = f"{self.pictures_per_second:.1f} pictures/s"
        return f"step {done}/{steps}  loss {loss:.3f}  {speed}  about {left} left"

    def _seconds_left(self, done: int) -> float:
        """Estimate by pixels: a later phase's steps take longer."""
        pixels, first = 0, 0
        for phase in self._settings.phases:
            pixels += phase.height * phase.width * max(0, first + phase.steps - max(done, first))
            first += phase.steps
        return pixels * sum(s for s, _ in self._times) / max(sum(p for _, p in self._times), 1)

    def _write(self, text: str, *, moving: bool) -> None:
        if self._terminal:
            self._out.write(f"\r\033[K{text}" + ("" if moving else "\n"))
        else:
            self._out.write(f"{text}\n")
        self._out.flush()
