"""Find stretches of a video with masks in doubt: the mirrored frame gives a different mask.

A network that knows an instrument finds it in the mirrored frame as well. A network that takes tissue for an instrument
often does so in only one of both frames. This needs no calibration and no threshold of the network's certainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import cv2
import numpy as np
import torch

from shared_components.core.evaluation import network_input
from shared_components.core.task import current
from shared_components.core.trained_model import Trained
from shared_components.inference.frames import Shot
from shared_components.inference.visible import Stretch, Stretches, clock

PART = "doubtful masks"
LIMIT = 0.04
"""Share of the picture that may change between background and foreground, measured in docs/results/pvt_fpn.md."""
FEWEST = 2
"""Number of doubtful frames in a row that are a stretch; one frame is enough if fewer than `FEW` were looked at."""
FEW = 4
_NAMED = 5  # stretches in the output of a command


class DoubtWatch:
    """Looks at one frame a second, as `unlike.Watch` does, and compares its mask with the mask of the mirrored frame.

    Only models of segmentation that predict single frames are looked at.

    Args:
        model: Its own network predicts the mirrored frame, whatever backend predicts the others.
        size: (height, width) of the network's input.
        rate: Frames per second; None: every frame is looked at.
    """

    def __init__(self, model: Trained, size: tuple[int, int], rate: Fraction | None = None) -> None:
        card, spec = model.task.card, model.task.spec
        self._model, self._size = model, size
        self._able = card.kind == "segmentation" and spec.frames == 1 and model.task.prompting is None
        self._step = 1 if rate is None else max(1, round(rate))
        self._stretches = Stretches(None if rate is None else self._step / rate)
        self._count = self._looked = 0

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        """Take the next frame and its mask of class ids, uint8 (H, W); look at one a second."""
        due, self._count = self._count % self._step == 0, self._count + 1
        if self._able and due:
            share = self.changed(shot.image, mask)
            self._looked += 1
            self._stretches.add(shot, {PART: 100 * share if share > LIMIT else 0.0})

    def found(self) -> list[Stretch]:
        """Return the stretches so far, in order."""
        fewest = 1 if self._looked < FEW else FEWEST
        return [stretch for stretch in self._stretches.all() if stretch.frames >= fewest]

    def changed(self, image: np.ndarray, mask: np.ndarray) -> float:
        """Return the share of the picture that is foreground in only one of both masks."""
        height, width = self._size
        mirrored = network_input(np.ascontiguousarray(image[:, ::-1])[None], height, width)
        network = self._model.network
        with torch.no_grad():
            outputs = self._model.task.predict(network, {"image": mirrored.to(next(network.parameters()).device)})
        other = current(outputs, 4)[0].argmax(0).cpu().numpy()[:, ::-1]
        own = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
        return float(((own > 0) != (other > 0)).mean())


def warnings(stretches: Sequence[Stretch]) -> Iterator[str]:
    """Yield a line for each of the first stretches, and how many more there are."""
    for stretch in stretches[:_NAMED]:
        frames = stretch.first if stretch.first == stretch.last else f"{stretch.first} to {stretch.last}"
        if stretch.begin is not None and stretch.end is not None:
            frames = f"{clock(stretch.begin)} to {clock(stretch.end)}, {frames}"
        yield f"Masks in doubt ({frames}): mirrored frames have others in up to {stretch.largest:.0f} % of the picture."
    if len(stretches) > _NAMED:
        yield f"More stretches with masks in doubt: {len(stretches) - _NAMED}, see intervals.csv."
