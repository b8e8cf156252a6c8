"""Say of a video, while it is predicted, whether it is unlike what the model has learnt, see `core.calibration`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from shared_components.core.calibration import FRAMES, described, seen
from shared_components.core.trained_model import Trained

logger = logging.getLogger(__name__)
MOST = 32
"""Frames of a video that are remembered, evenly spread; a second apart at first."""


@dataclass(frozen=True)
class Likeness:
    """How unlike so many frames are; above the limit, `warning` is a sentence, else empty."""

    score: float
    limit: float
    frames: int

    @property
    def warning(self) -> str:
        """For people."""
        if self.score <= self.limit:
            return ""
        numbers = f"score {self.score:.1f}, limit {self.limit:.1f}"
        return f"Unlike what this model has learnt ({numbers}): the masks may be wrong."


class Watch:
    """Looks at a few frames of a video, a second apart and less often later on; at none without a calibration.

    Args:
        model: Its own network describes the frames, whatever backend predicts.
        rate: Frames per second; None: every frame counts as a second.
        early: Log the warning as soon as there are `calibration.FRAMES` frames, since a live stream may never end.
    """

    def __init__(self, model: Trained, rate: Fraction | None = None, *, early: bool = False) -> None:
        self._model, self._early = model, early
        self._step = 1 if rate is None else max(1, round(rate))
        self._count = 0
        self._kept: list[Tensor] = []
        self._found: Likeness | None = None

    def add(self, frame: np.ndarray) -> None:
        """Look at the next frame, uint8 RGB (H, W, 3), if it is the turn of one."""
        due, self._count = self._count % self._step == 0, self._count + 1
        calibration = self._model.calibration
        if calibration is None or not due:
            return
        self._kept.append(described(self._model.network, seen(frame))[0])
        if len(self._kept) == MOST:
            self._kept, self._step = self._kept[::2], 2 * self._step
        frames = len(self._kept)
        self._found = Likeness(calibration.score(torch.stack(self._kept)), calibration.limit(frames), frames)
        if self._early and frames == FRAMES:
            self._early = False
            if self._found.warning:
                logger.warning("%s", self._found.warning)

    def found(self) -> Likeness | None:
        """Return what was found so far; None where nothing was looked at."""
        return self._found
