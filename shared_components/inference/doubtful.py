"""Find intervals of a video with doubtful masks, by comparison with the mask of the mirrored frame.

A network finds a familiar instrument in the mirrored frame as well. If it mistakes tissue for an instrument, it often
does so in only one of the two frames. This needs no calibration and no confidence threshold.
"""

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
"""Maximum share of pixels that change between background and foreground, measured in docs/results/pvt_fpn.md."""
FEWEST = 2  # minimum number of consecutive doubtful frames; one frame is enough if fewer than `FEW` frames were checked
FEW = 4
_MOST_LINES = 5  # maximum number of intervals in a command's output


class DoubtWatch:
    """Compares the mask of one frame per second with the mask of the mirrored frame; without a rate, of every frame.

    Only segmentation models of single frames are checked. `size` is (height, width) of the network's input.
    """

    def __init__(self, model: Trained, size: tuple[int, int], rate: Fraction | None = None) -> None:
        card, spec = model.task.card, model.task.spec
        self._model, self._size = model, size
        self._supported = card.kind == "segmentation" and spec.frames == 1 and model.task.prompting is None
        self._step = 1 if rate is None else max(1, round(rate))
        self._stretches = Stretches(None if rate is None else self._step / rate)
        self._count = self._checked = 0

    def add(self, shot: Shot, mask: np.ndarray) -> None:
        """Add the next frame and its mask of class ids, uint8 (H, W)."""
        is_sampled, self._count = self._count % self._step == 0, self._count + 1
        if self._supported and is_sampled:
            share = self.changed(shot.image, mask)
            self._checked += 1
            self._stretches.add(shot, {PART: 100 * share if share > LIMIT else 0.0})

    def intervals(self) -> list[Stretch]:
        """Return the doubtful intervals so far, in order."""
        fewest = 1 if self._checked < FEW else FEWEST
        return [stretch for stretch in self._stretches.all() if stretch.frames >= fewest]

    def changed(self, image: np.ndarray, mask: np.ndarray) -> float:
        """Return the share of pixels that are foreground in only one of the two masks."""
        height, width = self._size
        mirrored = network_input(np.ascontiguousarray(image[:, ::-1])[None], height, width)
        network = self._model.network
        with torch.no_grad():
            outputs = self._model.task.predict(network, {"image": mirrored.to(next(network.parameters()).device)})
        other = current(outputs, 4)[0].argmax(0).cpu().numpy()[:, ::-1]
        own = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
        return float(((own > 0) != (other > 0)).mean())


def warnings(stretches: Sequence[Stretch]) -> Iterator[str]:
    """Yield a line for each of the first intervals, and the number of further intervals."""
    for stretch in stretches[:_MOST_LINES]:
        frames = stretch.first if stretch.first == stretch.last else f"{stretch.first} to {stretch.last}"
        if stretch.begin is not None and stretch.end is not None:
            frames = f"{clock(stretch.begin)} to {clock(stretch.end)}, {frames}"
        yield f"Doubtful masks ({frames}): mirrored frames differ in up to {stretch.largest:.0f} % of the pixels."
    if len(stretches) > _MOST_LINES:
        yield f"Further intervals with doubtful masks: {len(stretches) - _MOST_LINES}, see intervals.csv."
