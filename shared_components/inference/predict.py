"""Predict the frames of a stream and write the results."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from shared_components.common.progress import report_progress, speed
from shared_components.core.task import Answer, Task
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.results import PredictionFolder
from shared_components.inference.stream import Streaming
from shared_components.networks.bundle_config import PRECISIONS


class Predictor:
    """A trained network with its task.

    Args:
        network: In evaluation mode from now on; of `stream.shown_frames` where it takes clips.
        task: What it has learnt.
        precision: `bf16` runs the network under bfloat16 autocast.

    Raises:
        InferenceError: The precision is unknown.
    """

    def __init__(self, network: nn.Module, task: Task, *, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise InferenceError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}")
        self._network, self._task = network.eval(), task
        self._mixed = precision == "bf16"
        self._sequence = ""

    def __call__(self, image: Tensor, size: tuple[int, int], *, sequence: str = "") -> tuple[Tensor, Answer]:
        """Return the network's outputs in the task's terms, and the prediction.

        Args:
            image: (1, 3, H, W) in [0, 1] of the network's size.
            size: (height, width) of the prediction.
            sequence: The frame's; a network of clips forgets earlier frames where the sequence changes.
        """
        if sequence != self._sequence and isinstance(self._network, Streaming):
            self._network.forget()
        self._sequence = sequence
        device = next(self._network.parameters()).device
        # a task's random masks are the same for every frame
        drawn = self._task.add_randomness({"image": image.to(device)}, torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._mixed):
            outputs = self._task.predict(self._network, drawn)
        return outputs, self._task.postprocess(outputs, drawn, [size])[0]


class FrameCount:
    """Counts predicted frames, and reports them with the speed and the time left.

    Args:
        total: How many there will be; None: unknown. A container may announce too few.
    """

    def __init__(self, total: int | None) -> None:
        self.count = 0
        self._total, self._began = total, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return max(time.monotonic() - self._began, 1e-9)

    def step(self) -> None:
        """Count one frame."""
        self.count += 1
        per_second = self.count / self.seconds
        total = None if self._total is None or self._total < self.count else self._total
        left = None if total is None else (total - self.count) / per_second
        report_progress("frame", self.count, total, speed(per_second, "frames", left))


def predict_all(predictor: Predictor, stream: FrameStream, folder: PredictionFolder) -> FrameCount:
    """Write the predictions of all frames, with one frame in memory at a time; return how many and how fast.

    Raises:
        InferenceError: A frame cannot be read, or the results cannot be written; none of them remain.
    """
    frames = FrameCount(stream.total)
    with folder:
        for item in stream:
            shot = item["shot"]
            _, answer = predictor(item["image"], shot.image.shape[:2], sequence=shot.sequence)
            folder.add(shot, answer)
            frames.step()
    return frames
