"""Predict the frames of a stream and write the results; a clip network remembers earlier frames."""

import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shared_components.common.progress import report_progress, speed
from shared_components.core.task import Answer, Task
from shared_components.core.training_settings import PRECISIONS
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream, Shot
from shared_components.inference.objects import Objects
from shared_components.inference.results import PredictionFolder
from shared_components.networks.protocols import provides
from shared_components.networks.sam2_frames import EMPTY

SLACK = 0.1
"""Relative tolerance of a clip's frame interval (our choice): at 30000/1001 or 24 frames per second, for example, no
frame lies exactly 0.2 s before another."""
AHEAD = 3  # number of prefetched frames, in addition to one per prediction thread


class Remembers(Protocol):
    """A clip network that can run on a stream."""

    def begin_stream(self, stride: int, padding: str) -> Any:
        """Return the initial memory of a stream, see `Streaming`."""

    def remember(self, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Predict the next frame (B, 3, H, W), and return the outputs and the new memory."""


class Streaming(nn.Module):
    """Runs a clip network frame by frame, with a memory of earlier frames.

    `stride` is the number of stream frames between two frames of a clip; `padding` replaces frames before the first,
    see `samples.Padding`. `objects` are tracked from their boxes in the first frame. Raises InferenceError unless the
    network satisfies `Remembers`.
    """

    def __init__(
        self, network: nn.Module, stride: int, padding: str = "first", *, objects: Objects | None = None
    ) -> None:
        super().__init__()
        if not provides(network, Remembers):
            raise InferenceError(
                f"{type(network).__name__} takes clips but has no memory for streams; use a model of single frames"
            )
        self.network, self.stride = network, stride
        prompts = {} if objects is None else {"boxes": objects.boxes}
        self._begin = partial(network.begin_stream, stride=stride, padding=padding, **prompts)
        self._memory = self._begin()
        self._objects = objects
        self._visible: list[bool] | None = None  # whether each object is visible in the first frame

    def forward(self, image: Tensor) -> Tensor:
        """Predict the stream's next frame (1, 3, H, W); logits of objects are merged by class."""
        outputs, self._memory = self.network.remember(image, self._memory)
        if self._objects is None:
            return outputs
        if self._visible is None:
            self._visible = (outputs[0, 1:] > 0).flatten(1).any(1).tolist()
        # maximum over a class's objects: (1, 1 + N, H, W) -> (1, C, H, W)
        classes = torch.full_like(outputs[:, :1], EMPTY).repeat(1, len(self._objects.classes), 1, 1)
        classes[:, 0] = outputs[:, 0]
        for number, c in enumerate(self._objects.ids, 1):
            classes[:, c] = torch.maximum(classes[:, c], outputs[:, number])
        return classes

    def missed(self) -> Iterator[str]:
        """Yield a message for each box without a visible object, and for the classes without a box."""
        if self._objects is None:
            return
        for box, visible in zip(self._objects.given, self._visible or (), strict=False):
            if not visible:
                yield f"box {box}: no object was found in the first frame, so its mask is empty there"
        if names := self._objects.without_box:
            yield f"classes without a box, whose masks are empty: {', '.join(names)}"

    def forget(self) -> None:
        """Reset the memory for a new stream."""
        self._memory = self._begin()


def shown_frames(network: nn.Module, task: Task, stream: FrameStream, objects: Objects | None = None) -> nn.Module:
    """Return the network for a stream: a `Streaming` network for clips or objects, else the network itself.

    Raises InferenceError: the stream's frame rate is unknown or does not fit the interval of the training clips; or the
    clip network has no memory, or needs whole videos.
    """
    single = task.spec.frames == 1
    if task.spec.targets_of == "video":
        raise InferenceError(
            f"the model predicts one label for {task.spec.frames} frames of a whole video; list the videos under "
            "'split' in a site.yaml, and use the bundle's evaluate.yaml, whose metrics.csv has a row per video"
        )
    if single and objects is None:
        return network
    stride = 1 if single or stream.total == 1 else _stride(task, stream)
    return Streaming(network, stride, task.spec.padding, objects=objects)


def missed(network: nn.Module) -> Iterator[str]:
    """Yield messages about objects that were not found, see `Streaming.missed`."""
    return network.missed() if isinstance(network, Streaming) else iter(())


def _stride(task: Task, stream: FrameStream) -> int:
    frames, interval = task.spec.frames, task.spec.interval
    clip = f"the model needs {frames} frames {interval:g} s apart"
    if stream.rate is None:
        raise InferenceError(f"{clip}, but the images of {stream.source} have no frame rate; set --video-rate")
    stride = max(1, round(stream.rate * Fraction(interval)))
    if abs(stride / float(stream.rate) - interval) > SLACK * interval:
        lower = " or a lower --every" if stream.every > 1 else ""
        raise InferenceError(
            f"{clip}, but {stream.source} is read at {float(stream.rate):g} frames per second, so the nearest interval "
            f"is {stride / float(stream.rate):g} s; give a video with a higher frame rate{lower}, or another model"
        )
    return stride


class Predictor:
    """Predicts frames with a trained network and its task; sets the network to evaluation mode.

    `at_once` frames can be predicted in parallel, one per thread. On a CPU this is faster than several threads for one
    frame. A network with a memory predicts one frame at a time. `network` comes from `shown_frames`; `precision` is
    `float32`, or `bf16` for bfloat16 autocast.
    """

    def __init__(self, network: nn.Module, task: Task, *, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise InferenceError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}")
        self._network, self._task = network.eval(), task
        self._mixed = precision == "bf16"
        self._sequence = ""
        self._device = next(network.parameters(), torch.empty(0)).device  # a compiled network has no parameters
        serial = isinstance(network, Streaming) or self._device.type != "cpu"
        self.at_once = 1 if serial else torch.get_num_threads()

    def __call__(self, image: Tensor, size: tuple[int, int], *, sequence: str = "") -> tuple[Tensor, Answer]:
        """Return the task's outputs, and the prediction at a (height, width), for an image (1, 3, H, W) in [0, 1].

        A new sequence resets the memory of a clip network.
        """
        if sequence != self._sequence and isinstance(self._network, Streaming):
            self._network.forget()
        self._sequence = sequence
        # fixed seed: a task's random masks are the same for every frame
        batch = self._task.add_randomness({"image": image.to(self._device)}, torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._mixed):
            outputs = self._task.predict(self._network, batch)
        return outputs, self._task.postprocess(outputs, batch, [size])[0]


class FrameCount:
    """Counts predicted frames, and reports speed and remaining time; `total` may be too small."""

    def __init__(self, total: int | None) -> None:
        self.count, self._total, self._began = 0, total, time.monotonic()

    @property
    def seconds(self) -> float:
        """Elapsed seconds."""
        return max(time.monotonic() - self._began, 1e-9)

    def step(self) -> None:
        """Count one frame."""
        self.count += 1
        per_second = self.count / self.seconds
        total = None if self._total is None or self._total < self.count else self._total
        left = None if total is None else (total - self.count) / per_second
        report_progress("frame", self.count, total, speed(per_second, "frames", left))


def predict_all(predictor: Predictor, stream: FrameStream, folder: PredictionFolder) -> FrameCount:
    """Write the predictions of all frames, with a few frames in memory; return their number and speed.

    One thread reads, `Predictor.at_once` threads predict, and this thread writes. Ctrl-C ends a live stream.

    Raises InferenceError: a frame cannot be read, or the results cannot be written; no results remain.
    """
    frames = FrameCount(stream.total)
    with folder:
        interruptible = stream.live.until_interrupted() if stream.live else nullcontext()
        with interruptible, closing(_predictions(predictor, stream)) as predictions:
            for shot, answer in predictions:
                folder.add(shot, answer)
                frames.step()
        if stream.live:
            folder.facts |= {"dropped": stream.live.dropped, "broke_off": stream.live.problem}
    return frames


def _predictions(predictor: Predictor, stream: FrameStream) -> Generator[tuple[Shot, Answer]]:
    """Yield frames and predictions in order; an error is raised at its frame."""
    items, waiting = iter(stream), deque[Future[tuple[Shot, Answer] | None]]()
    threads = torch.get_num_threads() if predictor.at_once == 1 else 1  # per prediction thread

    def predict(read: Future[dict[str, Any] | None]) -> tuple[Shot, Answer] | None:
        if (item := read.result()) is None:
            return None
        shot = item["shot"]
        return shot, predictor(item["image"], shot.image.shape[:2], sequence=shot.sequence)[1]

    with (
        ThreadPoolExecutor(1) as reader,
        ThreadPoolExecutor(predictor.at_once, initializer=torch.set_num_threads, initargs=(threads,)) as network,
    ):
        while True:
            while len(waiting) < predictor.at_once + AHEAD:
                waiting.append(network.submit(predict, reader.submit(next, items, None)))
            if (prediction := waiting.popleft().result()) is None:
                return
            yield prediction
