"""How far a prediction is: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tqdm import tqdm

PAUSE = 5.0
"""Seconds from one line to the next."""


class Progress:
    """Counts frames.

    Args:
        total: How many there will be, where that is known.
        say: Takes a line; not called where there is a bar.
        bar: Draw a bar; None: where standard error is a terminal.
        now: Clock, in seconds.
    """

    def __init__(
        self,
        total: int | None,
        say: Callable[[str], object],
        *,
        bar: bool | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self._total, self._say, self._now = total, say, now
        self._began = self._said = now()
        drawn = sys.stderr.isatty() if bar is None else bar
        self._bar: Any = tqdm(total=total, unit=" frames", dynamic_ncols=True) if drawn else None

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._now() - self._began

    def step(self) -> None:
        """Count one frame."""
        self.count += 1
        if self._bar is not None:
            self._bar.update()
        elif self._now() - self._said >= PAUSE:
            self._said = self._now()
            self._say(self._line())

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def _line(self) -> str:
        rate = self.count / self.seconds
        known = self._total is not None and self._total > self.count
        of = f" of {self._total:,}" if known else ""
        left = f", about {clock((self._total - self.count) / rate)} left" if known else ""  # type: ignore[operator]
        return f"{self.count:,}{of} frames, {rate:.1f} a second{left}"


def clock(seconds: Fraction | float) -> str:
    """Write a time as players do: 1:02:03, or 2:03."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
