"""Out-of-distribution detection for a video during prediction, see `core.calibration`."""

import logging
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from shared_components.core.calibration import FRAMES, encoder_features, resized_frame
from shared_components.core.trained_model import Trained

logger = logging.getLogger(__name__)
MOST = 32  # maximum number of sampled frames per video


@dataclass(frozen=True)
class Likeness:
    """Out-of-distribution score of `frames` sampled frames, and its limit."""

    score: float
    limit: float
    frames: int

    @property
    def warning(self) -> str:
        """Warning for users; empty if the score is within the limit."""
        if self.score <= self.limit:
            return ""
        numbers = f"score {self.score:.1f}, limit {self.limit:.1f}"
        return f"Input unlike the training data ({numbers}): the masks may be wrong."


class Watch:
    """Samples one frame per second, fewer in long videos, and scores how unlike the training data they are.

    Nothing is scored if the model has no calibration.

    Args:
        model: Trained model, whose PyTorch network computes the features.
        rate: Frames per second; None: every frame is sampled.
        early: Log the warning after `calibration.FRAMES` sampled frames, since a live stream may never end.
    """

    def __init__(self, model: Trained, rate: Fraction | None = None, *, early: bool = False) -> None:
        self._model, self._early = model, early
        self._step = 1 if rate is None else max(1, round(rate))
        self._count = 0
        self._kept: list[Tensor] = []
        self._likeness: Likeness | None = None

    def add(self, frame: np.ndarray) -> None:
        """Count the next frame, uint8 RGB (H, W, 3), and score it if it is sampled."""
        is_sampled, self._count = self._count % self._step == 0, self._count + 1
        calibration = self._model.calibration
        if calibration is None or not is_sampled:
            return
        self._kept.append(encoder_features(self._model.network, resized_frame(frame))[0])
        if len(self._kept) == MOST:
            self._kept, self._step = self._kept[::2], 2 * self._step
        frames = len(self._kept)
        self._likeness = Likeness(calibration.score(torch.stack(self._kept)), calibration.limit(frames), frames)
        if self._early and frames == FRAMES:
            self._early = False
            if self._likeness.warning:
                logger.warning("%s", self._likeness.warning)

    def likeness(self) -> Likeness | None:
        """Return the score so far; None if no frame was sampled."""
        return self._likeness
