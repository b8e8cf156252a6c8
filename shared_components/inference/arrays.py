"""A trained model of segmentation in Python: arrays in; masks and probabilities out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.evaluation import network_input
from shared_components.core.streams import Prompted
from shared_components.core.task import current
from shared_components.core.trained_model import Trained
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Predictor, Streaming, shown_frames

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model sees in one frame.

    Attributes:
        mask: Class ids, uint8 (H, W), at the frame's own size.
        probabilities: Of every class, float32 (C, H, W), with a sum of 1 at each pixel; the mask is the class of the
            largest. The network's own are coarser: each is repeated over the pixels nearest to it.
        classes: Names by id, background first.
        frame: What was predicted, uint8 RGB (H, W, 3).
        name: Of the frame in its video or folder, such as ``frame_000012``.
        seconds: Since the first frame; None where there is no rate.
    """

    mask: Array
    probabilities: Array
    classes: tuple[str, ...]
    frame: Array
    name: str = ""
    seconds: float | None = None


class Model:
    """A trained model of segmentation, ready to predict.

    Attributes:
        classes: Names by id, background first.
        size: (height, width) that frames are resized to for the network.

    Raises:
        InferenceError: It has learnt something else than segmentation, or follows boxes; or there is no such precision.
    """

    def __init__(
        self, trained: Trained, *, precision: str = "float32", path: Path | None = None, device: str = "auto"
    ) -> None:
        card = trained.task.card
        if card.kind != "segmentation":
            raise InferenceError(f"model {path} has learnt {card.kind}, and not segmentation; use `surgfl segment`")
        if isinstance(trained.network, Prompted):
            raise InferenceError(f"model {path} follows boxes of a first frame; use `surgfl segment --box`")
        self.classes, self.size = card.outputs, trained.size
        self._task, self._precision = trained.task, precision
        self._network = trained.network.to(machine.device(device)).eval()
        self._predictor(self._network)  # refuses a precision

    def segment(self, frame: Array) -> Prediction:
        """Predict one frame, uint8 RGB (H, W, 3); a model of clips takes it for a whole clip.

        Raises:
            InferenceError: It is of another type, shape or range.
        """
        check_frame(frame)
        spec = self._task.spec
        single = self._network if spec.frames == 1 else Streaming(self._network, 1, spec.padding)
        return self._predicted(self._predictor(single), network_input(frame[None], *self.size), frame)

    def segment_video(self, source: str | Path, *, every: int = 1) -> Iterator[Prediction]:
        """Yield the prediction of every n-th frame, one at a time in memory.

        Args:
            source: A video that FFmpeg decodes, a folder of images with its sub-folders, or one image.
            every: Keep every n-th frame.

        Raises:
            InferenceError: At once where it is missing or cannot be read; later, at a frame that cannot be.
        """
        height, width = self.size
        stream = FrameStream(source, height=height, width=width, every=every)
        predictor = self._predictor(shown_frames(self._network, self._task, stream))
        return self._stream(predictor, stream)

    def _stream(self, predictor: Predictor, stream: FrameStream) -> Iterator[Prediction]:
        for item in stream:
            shot = item["shot"]
            seconds = None if shot.seconds is None else float(shot.seconds)
            yield self._predicted(predictor, item["image"], shot.image, shot.path, seconds, shot.sequence)

    def _predictor(self, network: nn.Module) -> Predictor:
        return Predictor(network, self._task, precision=self._precision)

    def _predicted(
        self,
        predictor: Predictor,
        image: Tensor,
        frame: Array,
        name: str = "",
        seconds: float | None = None,
        sequence: str = "",
    ) -> Prediction:
        outputs, mask = predictor(image, frame.shape[:2], sequence=sequence)
        shares = current(outputs, 4)[0].float().softmax(0).cpu().numpy()  # (C, h, w)
        return Prediction(mask, _enlarged(shares, frame.shape[:2]), self.classes, frame, name, seconds)


def check_frame(frame: object) -> None:
    """Refuse what is no uint8 RGB frame (H, W, 3), by an InferenceError that says how to make it one."""
    due = "a frame is a numpy array of uint8, RGB, of the shape (H, W, 3)"
    if not isinstance(frame, np.ndarray):
        raise InferenceError(f"the frame is a {type(frame).__name__}; {due}: convert it with numpy.asarray")
    if frame.ndim == 4:
        raise InferenceError(f"the frame has the shape {frame.shape}; {due}: give the frames of a batch one by one")
    if frame.ndim == 2 or (frame.ndim == 3 and frame.shape[-1] == 1):
        raise InferenceError(f"the frame has the shape {frame.shape}; {due}: repeat a grey one three times")
    if frame.ndim != 3 or frame.shape[-1] != 3 or not frame.size:
        other = "leave out alpha by frame[..., :3]" if frame.shape[-1:] == (4,) else "move the channels to the end"
        raise InferenceError(f"the frame has the shape {frame.shape}; {due}: {other}")
    if frame.dtype != np.uint8:
        low, high = frame.min(), frame.max()
        scaled = "(255 * frame).round()" if 0 <= low and high <= 1 else "frame after scaling it to 0 to 255"
        raise InferenceError(
            f"the frame is of {frame.dtype}, from {low:g} to {high:g}; {due}: convert {scaled} with astype('uint8')"
        )


def _enlarged(shares: Array, size: tuple[int, int]) -> Array:
    """Repeat shares (C, h, w) over the nearest pixels of another (height, width), as masks are enlarged."""
    if shares.shape[1:] == tuple(size):
        return shares
    height, width = size
    channels_last = np.ascontiguousarray(np.moveaxis(shares, 0, -1))
    large = cv2.resize(channels_last, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.ascontiguousarray(np.moveaxis(large, -1, 0))
