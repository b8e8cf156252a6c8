"""A trained model of segmentation in Python: arrays in; masks and probabilities out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
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
from shared_components.inference.unlike import Likeness, Watch
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model sees in one frame.

    Attributes:
        mask: Class ids, uint8 (H, W), at the frame's own size.
        probabilities: Of every class, float32 (C, H, W), with a sum of 1 at each pixel; the mask is the class of the
            largest. The network's own are coarser: each is repeated over the pixels nearest to it. Of weights with a
            calibration their temperature is fitted, see `core.calibration`.
        classes: Names by id, background first.
        frame: What was predicted, uint8 RGB (H, W, 3).
        name: Of the frame in its video or folder, such as ``frame_000012``.
        seconds: Since the first frame; None where there is no rate.
        likeness: Returns how unlike what the model has learnt it is; None of weights without a calibration.
    """

    mask: Array
    probabilities: Array
    classes: tuple[str, ...]
    frame: Array
    name: str = ""
    seconds: float | None = None
    likeness: Callable[[], Likeness | None] = field(default=lambda: None, repr=False)

    @property
    def warning(self) -> str:
        """A sentence, where this frame, or the video so far, is unlike what the model has learnt; else empty.

        Of a single frame it is computed when it is asked for, by a tenth of the work of the prediction.
        """
        found = self.likeness()
        return found.warning if found else ""


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
        if provides(trained.network, Prompted):
            raise InferenceError(f"model {path} follows boxes of a first frame; use `surgfl segment --box`")
        self.classes, self.size = card.outputs, trained.size
        self._trained, self._task, self._precision = trained, trained.task, precision
        self._temperature = 1.0 if trained.calibration is None else trained.calibration.facts.temperature
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
        return self._predicted(
            self._predictor(single), network_input(frame[None], *self.size), frame, partial(self._look, frame)
        )

    def _look(self, frame: Array) -> Likeness | None:
        watch = Watch(self._trained)
        watch.add(frame)
        return watch.found()

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
        for one in stream.inventory.left_out if stream.inventory else ():
            logger.warning("left out: %s", one)
        predictor = self._predictor(shown_frames(self._network, self._task, stream))
        return self._stream(predictor, stream)

    def _stream(self, predictor: Predictor, stream: FrameStream) -> Iterator[Prediction]:
        watch = Watch(self._trained, stream.rate)
        for item in stream:
            shot = item["shot"]
            watch.add(shot.image)
            found = watch.found()
            seconds = None if shot.seconds is None else float(shot.seconds)
            yield self._predicted(
                predictor, item["image"], shot.image, partial(_same, found), shot.path, seconds, shot.sequence
            )

    def _predictor(self, network: nn.Module) -> Predictor:
        return Predictor(network, self._task, precision=self._precision)

    def _predicted(
        self,
        predictor: Predictor,
        image: Tensor,
        frame: Array,
        likeness: Callable[[], Likeness | None],
        name: str = "",
        seconds: float | None = None,
        sequence: str = "",
    ) -> Prediction:
        outputs, mask = predictor(image, frame.shape[:2], sequence=sequence)
        shares = (current(outputs, 4)[0].float() / self._temperature).softmax(0).cpu().numpy()  # (C, h, w)
        return Prediction(mask, _enlarged(shares, frame.shape[:2]), self.classes, frame, name, seconds, likeness)


def _same(found: Likeness | None) -> Likeness | None:
    return found


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
