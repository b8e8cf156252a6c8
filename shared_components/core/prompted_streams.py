"""Score prompted networks on streams: consecutive frames of a split in one video, with a memory of constant size.

A stream begins with the boxes of its first frame, made from the ground truth by the task's evaluation prompts: the
SurgFed paper "provides only the first frame's bounding box". A class that is absent in the first frame is predicted
empty in the whole stream, and scored so.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shared_components.core.task import Batch, Task, last_target
from shared_components.data.samples import Item, Sample, read_sample
from shared_components.data.targets import maps_of
from shared_components.data.transforms import resize_target
from shared_components.networks.protocols import provides


class Prompted(Protocol):
    """A network with box prompts; `networks.sam2_video.Sam2Clips` documents the shapes."""

    takes_boxes: bool

    def begin_stream(self, boxes: Tensor | None = None, *, stride: int = 1, padding: str = "first") -> Any: ...

    def remember(self, image: Tensor, memory: Any, boxes: Tensor | None = None) -> tuple[Tensor, Any]:
        """Predict the next frame (1, 3, H, W), with or without new boxes; return the outputs and the new memory."""


def prompted(network: nn.Module) -> Prompted:
    """Return the network as `Prompted`, or raise ValueError if it takes no boxes."""
    if not provides(network, Prompted):
        raise ValueError(
            f"{type(network).__name__} takes no boxes; write prompts: none for it in 'tasks', or choose a bundle with "
            "box prompts, such as surgfed"
        )
    return network


class Tracking(nn.Module):
    """Prompted network that takes single frames and remembers its stream, which begins with boxes (1, 1, N, 4)."""

    def __init__(self, network: Prompted, boxes: Tensor, stride: int, padding: str) -> None:
        super().__init__()
        self._network = network
        self._memory = network.begin_stream(boxes[:, 0], stride=stride, padding=padding)

    def forward(self, image: Tensor, boxes: Tensor | None = None) -> Tensor:
        """Predict the stream's next frame (1, 3, H, W), which may have boxes (1, 1, N, 4)."""
        outputs, self._memory = self._network.remember(image, self._memory, None if boxes is None else boxes[:, 0])
        return outputs


def streams_of(chosen: Sequence[Sample]) -> list[range]:
    """Divide samples into streams, as ranges of their numbers.

    A stream begins with a new video, and with a clip that contains only its own frame, after a gap or without history.
    """
    begins = [
        number
        for number, sample in enumerate(chosen)
        if number == 0
        or sample.video != chosen[number - 1].video
        or (len(sample.images) > 1 and set(sample.images) == {sample.images[-1]})
    ]
    return [range(begin, end) for begin, end in pairwise([*begins, len(chosen)])]


def unseen_at_first(task: Task, chosen: Sequence[Sample]) -> list[Sample]:
    """Return the first frames of streams without any box, in which nothing is tracked."""
    if task.prompting is None:
        return []
    firsts = [chosen[stream.start].current for stream in streams_of(chosen)]
    return [sample for sample in firsts if bool(_boxes(task, read_sample(sample)).isnan().all())]


def stride_of(stream: Sequence[Sample]) -> int:
    """Return a stream's frames from one frame of a clip to the next; 1 if clips have frames between the stream's."""
    places = {sample.images[-1]: place for place, sample in enumerate(stream)}
    steps = [place - places.get(s.images[-2], place) for place, s in enumerate(stream) if len(s.images) > 1]
    return max(steps, default=0) or 1


def stream_batches(
    task: Task, chosen: Sequence[Sample], read: Callable[[int], Item], prepare: Callable[[Item], Tensor], stream: range
) -> Iterator[tuple[Batch, list[Item]]]:
    """Yield a stream's frames as batches of one; the first has "boxes" and "stride"; ``prepare`` makes the input."""
    assert task.prompting is not None
    stride = stride_of([chosen[number] for number in stream])
    prompted_frames = set(task.prompting.evaluation.frames(len(stream)))
    for place, number in enumerate(stream):
        item = read(number)
        image = prepare(item)
        batch = {"image": image}
        if place in prompted_frames:
            size = (image.shape[-2], image.shape[-1])
            batch["boxes"] = task.prompting.in_stream(_boxes(task, item, size), image, number)
        if place == 0:
            batch["stride"] = torch.tensor(stride)
        yield batch, [item]


def _boxes(task: Task, item: Item, size: tuple[int, int] | None = None) -> Tensor:
    """Return the boxes (1, 1, N, 4) of a sample's current frame, in pixels at ``size`` or at its original size."""
    targets = {name: last_target(item, name) for name in maps_of(item.targets)}
    if size is not None:
        targets = {name: resize_target(target, *size) for name, target in targets.items()}
    return task.boxes({name: torch.from_numpy(target)[None, None] for name, target in targets.items()})
