"""Predict the frames of a stream and write the results; a network of clips remembers earlier frames."""

from __future__ import annotations

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
"""Relative tolerance of a clip's interval in a stream (ours): 30000/1001 and 24 frames a second, among others, have no
frame exactly 0.2 s ago."""
AHEAD = 3
"""Frames that are read or predicted before the one that is written, besides one for every thread of the network."""


class Remembers(Protocol):
    """A network of clips that can run on a stream."""

    def begin_stream(self, stride: int, padding: str) -> Any:
        """Return the memory before a stream's first frame, see `Streaming`."""
        ...

    def remember(self, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Predict the next frame, (B, 3, H, W), and return the outputs and the new memory."""
        ...


class Streaming(nn.Module):
    """A network of clips as a network of single frames that remembers the earlier ones.

    From one frame of a clip to the next there are `stride` frames of the stream; `padding` replaces frames before the
    beginning, see `clips.PADDINGS`; a network that follows `objects` is told of them in the first frame. An
    InferenceError names a network that is not `Remembers`.
    """

    def __init__(
        self, network: nn.Module, stride: int, padding: str = "first", *, objects: Objects | None = None
    ) -> None:
        super().__init__()
        if not provides(network, Remembers):
            raise InferenceError(
                f"{type(network).__name__} takes clips and remembers no frames: it cannot be shown a stream; give a "
                "model of single frames"
            )
        self.network, self.stride = network, stride
        told = {} if objects is None else {"boxes": objects.boxes}
        self._begin = partial(network.begin_stream, stride=stride, padding=padding, **told)
        self._memory = self._begin()
        self._objects = objects
        self._found: list[bool] | None = None  # of the objects in the first frame

    def forward(self, image: Tensor) -> Tensor:
        """Predict the stream's next frame (1, 3, H, W); of objects as logits of their classes."""
        outputs, self._memory = self.network.remember(image, self._memory)
        if self._objects is None:
            return outputs
        if self._found is None:
            self._found = (outputs[0, 1:] > 0).flatten(1).any(1).tolist()
        return _by_class(outputs, self._objects)

    def missed(self) -> Iterator[str]:
        """Say in a sentence each what of the objects cannot be seen: boxes that show none, and classes without one."""
        if self._objects is None:
            return
        for box, found in zip(self._objects.given, self._found or (), strict=False):
            if not found:
                yield f"box {box}: nothing was found of it in the first frame, and it is predicted empty there"
        if names := self._objects.without_box:
            yield f"no box in the first frame, and predicted empty: {', '.join(names)}"

    def forget(self) -> None:
        """Begin a new stream."""
        self._memory = self._begin()


def _by_class(logits: Tensor, objects: Objects) -> Tensor:
    """(1, 1 + N, H, W) of N objects -> (1, C, H, W): of each class its objects' largest, or `EMPTY` without any."""
    classes = torch.full_like(logits[:, :1], EMPTY).repeat(1, len(objects.classes), 1, 1)
    classes[:, 0] = logits[:, 0]
    for number, of in enumerate(objects.ids, 1):
        classes[:, of] = torch.maximum(classes[:, of], logits[:, number])
    return classes


def shown_frames(network: nn.Module, task: Task, stream: FrameStream, objects: Objects | None = None) -> nn.Module:
    """Return the network for a stream's frames: of clips or objects a `Streaming` one, else the network itself.

    Raises:
        InferenceError: The stream's rate is unknown or has no frames at the interval of the learnt clips; or a network
            of clips cannot remember, or looks at whole videos.
    """
    single = task.spec.frames == 1
    if task.spec.targets_of == "video":
        raise InferenceError(
            f"the model looks at {task.spec.frames} frames of a whole video and gives it one answer; list videos under "
            "'split' in a site.yaml, and use the bundle's evaluate.yaml, whose metrics.csv has a row for each"
        )
    if single and objects is None:
        return network
    stride = 1 if single or stream.total == 1 else _stride(task, stream)
    return Streaming(network, stride, task.spec.padding, objects=objects)


def missed(network: nn.Module) -> Iterator[str]:
    """Say what of the objects of a stream that was shown cannot be seen, see `Streaming.missed`."""
    return network.missed() if isinstance(network, Streaming) else iter(())


def _stride(task: Task, stream: FrameStream) -> int:
    frames, interval = task.spec.frames, task.spec.interval
    clip = f"the model looks at {frames} frames {interval:g} s apart"
    if stream.rate is None:
        raise InferenceError(f"{clip}, and the images of {stream.source} have no rate; give it with --video-rate")
    stride = max(1, round(stream.rate * Fraction(interval)))
    if abs(stride / float(stream.rate) - interval) > SLACK * interval:
        lower = " or a lower --every" if stream.every > 1 else ""
        raise InferenceError(
            f"{clip}, and {stream.source} is read at {float(stream.rate):g} frames a second, the nearest "
            f"{stride / float(stream.rate):g} s apart; give a video of a higher rate{lower}, or another model"
        )
    return stride


class Predictor:
    """A trained network with its task, in evaluation mode from now on.

    A network of clips is one of `shown_frames`. `bf16` runs it under bfloat16 autocast; an unknown precision is an
    InferenceError. `at_once` frames may be predicted by as many threads: on a processor as many as PyTorch would use
    for one frame, which takes longer since they wait for each other; 1 where frames are remembered.
    """

    def __init__(self, network: nn.Module, task: Task, *, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise InferenceError(f"precision is {precision!r}; use one of {', '.join(PRECISIONS)}")
        self._network, self._task = network.eval(), task
        self._mixed = precision == "bf16"
        self._sequence = ""
        self._device = next(network.parameters(), torch.empty(0)).device  # a compiled network shows no parameters
        one = isinstance(network, Streaming) or self._device.type != "cpu"
        self.at_once = 1 if one else torch.get_num_threads()

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
        # a task's random masks are the same for every frame
        drawn = self._task.add_randomness({"image": image.to(self._device)}, torch.Generator().manual_seed(0))
        with torch.no_grad(), torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._mixed):
            outputs = self._task.predict(self._network, drawn)
        return outputs, self._task.postprocess(outputs, drawn, [size])[0]


class FrameCount:
    """Counts predicted frames, and reports them with speed and time left; an announced total may be too small."""

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
    """Write the predictions of all frames, with a few of them in memory at a time; return how many and how fast.

    A thread reads, some predict (`Predictor.at_once`), and this one writes. Of a live stream, Ctrl-C is the end.

    Raises:
        InferenceError: A frame cannot be read, or the results cannot be written; none of them remain.
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
    """Yield the frames in order with their predictions; an error is raised in its frame's turn."""
    items, waiting = iter(stream), deque[Future[tuple[Shot, Answer] | None]]()
    threads = torch.get_num_threads() if predictor.at_once == 1 else 1  # of each thread that predicts

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
            if (found := waiting.popleft().result()) is None:
                return
            yield found
