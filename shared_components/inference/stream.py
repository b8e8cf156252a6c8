"""Run a network of clips on a stream of frames: every frame is encoded once, and earlier ones are remembered."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from shared_components.core.task import Task
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream

SLACK = 0.1
"""Relative tolerance of a clip's interval in a stream (ours): 30000/1001 and 24 frames a second, among others, have no
frame exactly 0.2 s ago."""


@runtime_checkable
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

    Args:
        network: Of clips; InferenceError where it is not `Remembers`.
        stride: Frames of the stream from one frame of a clip to the next.
        padding: Replaces frames before the beginning, see `clips.PADDINGS`.
    """

    def __init__(self, network: nn.Module, stride: int, padding: str = "first") -> None:
        super().__init__()
        if not isinstance(network, Remembers):
            raise InferenceError(
                f"{type(network).__name__} takes clips and remembers no frames: it cannot be shown a stream; give a "
                "model of single frames"
            )
        self.network, self.stride = network, stride
        self._begin = partial(network.begin_stream, stride, padding)
        self._memory = self._begin()

    def forward(self, image: Tensor) -> Tensor:
        """Predict the stream's next frame (1, 3, H, W)."""
        outputs, self._memory = self.network.remember(image, self._memory)
        return outputs

    def forget(self) -> None:
        """Begin a new stream."""
        self._memory = self._begin()


def shown_frames(network: nn.Module, task: Task, stream: FrameStream) -> nn.Module:
    """Return the network for a stream's frames: of clips a `Streaming` one, else the network itself.

    Raises:
        InferenceError: The stream's rate is unknown or has no frames at the interval of the learnt clips; or a network
            of clips cannot remember.
    """
    if task.spec.frames == 1:
        return network
    return Streaming(network, 1 if stream.total == 1 else _stride(task, stream), task.spec.padding)


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
