"""Speed of a pre-training: steps, pictures per second and time left."""

from __future__ import annotations

import time
from collections import deque

from shared_components.common.progress import report_progress, speed
from shared_components.experiments.pretraining.plan import Settings

WINDOW = 50  # steps that the speed is averaged over


class Pace:
    """Reports steps with the speed of the last ones and the time left."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._times: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # seconds of a step, its pixels
        self._last = time.monotonic()

    def step(self, done: int, loss: float) -> None:
        """Report a step that has just ended, `done` being its number from 1."""
        now = time.monotonic()
        phase = self._settings.phase_of(done - 1)
        self._times.append((now - self._last, phase.height * phase.width))
        self._last = now
        note = f"loss {loss:.3f}  {speed(self.pictures_per_second, 'pictures', self._seconds_left(done))}"
        report_progress("step", done, self._settings.steps, note)

    def pause(self) -> None:
        """Exclude the time since the last step from the speed."""
        self._last = time.monotonic()

    @property
    def pictures_per_second(self) -> float:
        """Of the last steps."""
        return self._settings.batch * len(self._times) / max(sum(seconds for seconds, _ in self._times), 1e-9)

    def _seconds_left(self, done: int) -> float:
        """Estimate by pixels: a later phase's steps take longer."""
        pixels, first = 0, 0
        for phase in self._settings.phases:
            pixels += phase.height * phase.width * max(0, first + phase.steps - max(done, first))
            first += phase.steps
        return pixels * sum(s for s, _ in self._times) / max(sum(p for _, p in self._times), 1)
