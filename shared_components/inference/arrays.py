"""Segment NumPy arrays with a trained model: masks and class probabilities."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.core.evaluation import network_input
from shared_components.core.prompted_streams import Prompted
from shared_components.core.task import current
from shared_components.core.trained_model import Trained
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.out_of_distribution import Likeness, Watch
from shared_components.inference.predict import Predictor, Streaming, shown_frames
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Prediction:
    """Segmentation of one frame.

    Attributes:
        mask: Class ids, uint8 (H, W), at the frame's size.
        probabilities: Class probabilities, float32 (C, H, W); the mask is their argmax. They are enlarged from the
            network's resolution by nearest neighbour. A calibrated model uses temperature scaling, see
            `core.calibration`.
        classes: Class names by id, background first.
        frame: Input frame, uint8 RGB (H, W, 3).
        name: Name of the frame in its video or folder, such as ``frame_000012``.
        seconds: Time since the first frame; None without a frame rate.
        likeness: Function that returns the out-of-distribution score; None for a model without calibration.
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
        """Warning if this frame, or the video so far, is unlike the training data; else empty.

        For a single frame it is computed on access, which takes about a tenth of the prediction's time.
        """
        likeness = self.likeness()
        return likeness.warning if likeness else ""


class Model:
    """A trained segmentation model.

    Attributes:
        classes: Class names by id, background first.
        size: Input size of the network, (height, width); frames are resized to it.

    Raises InferenceError: the model was not trained for segmentation, or needs boxes; or the precision is unknown.
    """

    def __init__(
        self, trained: Trained, *, precision: str = "float32", path: Path | None = None, device: str = "auto"
    ) -> None:
        card = trained.task.card
        if card.kind != "segmentation":
            raise InferenceError(f"model {path} was trained for {card.kind}, not segmentation; use `surgfl segment`")
        if provides(trained.network, Prompted):
            raise InferenceError(f"model {path} needs boxes in the first frame; use `surgfl segment --box`")
        self.classes, self.size = card.outputs, trained.size
        self._trained, self._task, self._precision = trained, trained.task, precision
        self._temperature = 1.0 if trained.calibration is None else trained.calibration.facts.temperature
        self._network = trained.network.to(machine.device(device)).eval()
        self._predictor(self._network)  # checks the precision

    def segment(self, frame: Array) -> Prediction:
        """Segment one frame, uint8 RGB (H, W, 3); a clip model treats it as a whole clip.

        Raises InferenceError: the frame has another type, shape or range.
        """
        check_frame(frame)
        spec = self._task.spec
        single = self._network if spec.frames == 1 else Streaming(self._network, 1, spec.padding)
        prediction = self._predicted(self._predictor(single), network_input(frame[None], *self.size), frame)
        return replace(prediction, likeness=partial(self._likeness_of, frame))

    def _likeness_of(self, frame: Array) -> Likeness | None:
        watch = Watch(self._trained)
        watch.add(frame)
        return watch.likeness()

    def segment_video(self, source: str | Path, *, every: int = 1) -> Iterator[Prediction]:
        """Yield the segmentation of every n-th frame, with one frame in memory.

        Args:
            source: A video that FFmpeg can decode, a folder of images with its sub-folders, or one image.
            every: Keep every n-th frame.

        Raises InferenceError: immediately if the source is missing or unreadable; while iterating, if a frame is.
        """
        height, width = self.size
        stream = FrameStream(source, height=height, width=width, every=every)
        for entry in stream.inventory.left_out if stream.inventory else ():
            logger.warning("left out: %s", entry)
        predictor = self._predictor(shown_frames(self._network, self._task, stream))
        return self._stream(predictor, stream)

    def _stream(self, predictor: Predictor, stream: FrameStream) -> Iterator[Prediction]:
        watch = Watch(self._trained, stream.rate)
        for item in stream:
            shot = item["shot"]
            watch.add(shot.image)
            prediction = self._predicted(predictor, item["image"], shot.image, shot.sequence)
            seconds = None if shot.seconds is None else float(shot.seconds)
            likeness = partial(_value, watch.likeness())
            yield replace(prediction, name=shot.path, seconds=seconds, likeness=likeness)

    def _predictor(self, network: nn.Module) -> Predictor:
        return Predictor(network, self._task, precision=self._precision)

    def _predicted(self, predictor: Predictor, image: Tensor, frame: Array, sequence: str = "") -> Prediction:
        outputs, mask = predictor(image, frame.shape[:2], sequence=sequence)
        shares = (current(outputs, 4)[0].float() / self._temperature).softmax(0).cpu().numpy()  # (C, h, w)
        return Prediction(mask, _enlarged(shares, frame.shape[:2]), self.classes, frame)


def _value(likeness: Likeness | None) -> Likeness | None:
    return likeness


def check_frame(frame: object) -> None:
    """Raise InferenceError unless the frame is uint8 RGB (H, W, 3); the message explains the conversion."""
    expected = "frames are NumPy arrays of type uint8, RGB, with shape (H, W, 3)"
    if not isinstance(frame, np.ndarray):
        raise InferenceError(f"the frame is a {type(frame).__name__}; {expected}: convert it with numpy.asarray")
    if frame.ndim == 4:
        raise InferenceError(f"the frame has the shape {frame.shape}; {expected}: pass the frames one by one")
    if frame.ndim == 2 or (frame.ndim == 3 and frame.shape[-1] == 1):
        raise InferenceError(f"the frame has the shape {frame.shape}; {expected}: repeat the grey channel three times")
    if frame.ndim != 3 or frame.shape[-1] != 3 or not frame.size:
        other = "remove alpha with frame[..., :3]" if frame.shape[-1:] == (4,) else "move the channels to the end"
        raise InferenceError(f"the frame has the shape {frame.shape}; {expected}: {other}")
    if frame.dtype != np.uint8:
        low, high = frame.min(), frame.max()
        scaled = "(255 * frame).round()" if 0 <= low and high <= 1 else "frame after scaling it to 0 to 255"
        raise InferenceError(
            f"the frame has type {frame.dtype} and values from {low:g} to {high:g}; {expected}: "
            f"convert {scaled} with astype('uint8')"
        )


def _enlarged(shares: Array, size: tuple[int, int]) -> Array:
    """Enlarge probabilities (C, h, w) to (height, width) by nearest neighbour."""
    if shares.shape[1:] == tuple(size):
        return shares
    height, width = size
    channels_last = np.ascontiguousarray(np.moveaxis(shares, 0, -1))
    large = cv2.resize(channels_last, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.ascontiguousarray(np.moveaxis(large, -1, 0))
