"""Show frames to a model and write what it says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shared_components.core.task import Answer, Task
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.progress import Progress
from shared_components.inference.results import PredictionFolder
from shared_components.inference.stream import Streaming
from shared_components.networks.bundle_config import PRECISIONS


class Predictor:
    """A network with its task, ready to be asked.

    Args:
        network: In evaluation from now on; of `stream.shown_frames` where it takes clips.
        task: What it has learnt.
        precision: `bf16` runs the network under bfloat16 autocast.

    Raises:
        InferenceError: There is no such precision.
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
            sequence: Which the frame is of; what is remembered of one is forgotten in the next.
        """
        if sequence != self._sequence and isinstance(self._network, Streaming):
            self._network.forget()
        self._sequence = sequence
        where = next(self._network.parameters()).device
        # what is left to chance is the same for every frame
        drawn = self._task.add_randomness({"image": image.to(where)}, torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast(where.type, dtype=torch.bfloat16, enabled=self._mixed):
            outputs = self._task.predict(self._network, drawn)
        return outputs, self._task.postprocess(outputs, drawn, [size])[0]


def predict_all(
    predictor: Predictor, stream: FrameStream, folder: PredictionFolder, say: Callable[[str], object]
) -> Progress:
    """Write what a model says of every frame, one in memory at a time.

    Args:
        predictor: The model.
        stream: The frames.
        folder: Takes what it says.
        say: Takes a line now and then, where there is no terminal for a bar.

    Returns:
        How many frames there were, and how long that took.

    Raises:
        InferenceError: A frame cannot be read, or the results cannot be written; nothing of them is left.
    """
    progress = Progress(stream.total, say)
    try:
        with folder:
            for item in stream:
                shot = item["shot"]
                _, answer = predictor(item["image"], shot.image.shape[:2], sequence=shot.sequence)
                folder.add(shot, answer)
                progress.step()
    finally:
        progress.close()
    return progress
