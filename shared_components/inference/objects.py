"""Box prompts of the objects that a network tracks from a video's first frame.

SurgFed's network was trained only with boxes. A mask of the first frame is converted to a box around each id; its
outline is not used. Clicks are not supported, since a click has no box size.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.core.prompted_streams import Prompted
from shared_components.core.prompts import class_boxes
from shared_components.core.task import Task
from shared_components.data.files.images import DataError, read_ids
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.networks.bundle_config import check_size
from shared_components.networks.protocols import provides

FORM = "left,top,width,height in pixels of the frame, such as 10,20,100,80, or shaft=10,20,100,80 with a class"
MOST = 255  # maximum number of ids in a mask


@dataclass(frozen=True)
class Box:
    """A box from the command line: an optional class name, and pixels of the frame."""

    name: str
    left: float
    top: float
    width: float
    height: float

    def __str__(self) -> str:
        numbers = ",".join(f"{number:g}" for number in (self.left, self.top, self.width, self.height))
        return f"{self.name}={numbers}" if self.name else numbers


@dataclass(frozen=True)
class Objects:
    """The objects to track through a stream."""

    given: tuple[Box, ...]  # the user's boxes in pixels of the first frame
    boxes: Tensor  # left, top, right and bottom in pixels of the network's input, (N, 4)
    classes: tuple[str, ...]  # of the masks, background first: the model's, or `object 1`, ... for boxes without names
    ids: tuple[int, ...]  # class id of each box

    @property
    def without_box(self) -> list[str]:
        """Return the classes without a box."""
        return [name for number, name in enumerate(self.classes) if number and number not in self.ids]


def objects_in(
    network: nn.Module, task: Task, stream: FrameStream, *, boxes: object = None, first_mask: str | Path | None = None
) -> Objects | None:
    """Return the objects to track; None if the network takes no boxes, and for depth, whose box is the whole frame.

    Args:
        network, task, stream: The model's network and task, and the frames to predict.
        boxes: Boxes in the format `FORM`, as a list or separated by semicolons; boxes with the same class are
            merged. Either all boxes name a class or none.
        first_mask: Mask of the first frame with the model's ids; each id becomes a box.

    Raises InferenceError: boxes are missing, unsupported by the network, or do not fit the model or the frame; or the
    network does not support the stream's size.
    """
    texts = _texts(boxes)
    if not provides(network, Prompted) or task.card.kind != "segmentation":
        if texts or first_mask is not None:
            kind = task.card.kind
            output = "its classes in each frame" if kind == "segmentation" else f"{kind} of the whole frame"
            raise InferenceError(
                f"the model takes no boxes, since {type(network).__name__} predicts {output}; remove boxes and first "
                "mask"
            )
        if provides(network, Prompted):
            _check_size(network, stream)
        return None
    _check_stream(network, stream, texts, first_mask)
    height, width, _ = stream.first().image.shape
    if first_mask is None:
        frame_boxes = [_box(text, width, height) for text in texts]
    else:
        frame_boxes = _boxes_of_mask(Path(first_mask), task.card.outputs, (height, width))
    classes, ids = _named(frame_boxes, task.card.outputs)
    scale = torch.tensor([stream.width / width, stream.height / height] * 2)
    corners = [[b.left, b.top, b.left + b.width, b.top + b.height] for b in frame_boxes]
    return Objects(tuple(frame_boxes), torch.tensor(corners) * scale, classes, ids)


def task_of(objects: Objects | None, task: Task) -> Task:
    """Return the task, with the classes of the objects if there are objects."""
    return task if objects is None else cast(Task, replace(cast(Any, task), classes=objects.classes))


def recorded(objects: Objects | None) -> dict[str, Any]:
    """Return the entry of the record: the boxes as given by the user."""
    return {} if objects is None else {"boxes": [str(box) for box in objects.given]}


def _check_stream(network: nn.Module, stream: FrameStream, texts: Sequence[str], first_mask: str | Path | None) -> None:
    if texts and first_mask is not None:
        raise InferenceError("both boxes and a first mask are given; give only one of them")
    if not texts and first_mask is None:
        raise InferenceError(
            "the model tracks objects from the video's first frame, but no object is given; give a box for each, "
            f"{FORM}, or a mask of the first frame"
        )
    if len(texts) > MOST:
        raise InferenceError(f"{len(texts)} boxes are given, but a mask has {MOST} ids; give fewer boxes")
    if stream.sequences > 1:
        raise InferenceError(
            f"boxes belong to one video's first frame, but {stream.source} has {stream.sequences} folders of images; "
            "give one of the folders"
        )
    _check_size(network, stream)


def _check_size(network: nn.Module, stream: FrameStream) -> None:
    try:
        check_size(network, stream.height, stream.width)
    except ValueError as error:
        raise InferenceError(str(error)) from None


def _texts(boxes: object) -> list[str]:
    """Return one string per box from a string with semicolons, four numbers, or a list of them."""
    if boxes is None:
        return []
    if isinstance(boxes, str):
        return [text.strip() for text in boxes.split(";") if text.strip()]
    if not isinstance(boxes, list | tuple):
        return [str(boxes)]
    if boxes and not any(isinstance(box, str | list | tuple) for box in boxes):
        return [",".join(map(str, boxes))]
    return [text for box in boxes for text in _texts(box)]


def _box(text: str, width: int, height: int) -> Box:
    """Parse a box, and check that it lies in a frame of this size."""
    name, named, numbers = text.rpartition("=")
    try:
        left, top, wide, high = (float(number) for number in numbers.split(","))
        if not all(map(math.isfinite, (left, top, wide, high))) or (named and not name.strip()):
            raise ValueError
    except ValueError:
        raise InferenceError(f"box {text!r} cannot be read; give {FORM}") from None
    if wide <= 0 or high <= 0:
        raise InferenceError(f"box {text!r} is empty, {wide:g} wide and {high:g} high; give {FORM}")
    if left < 0 or top < 0 or left + wide > width or top + high > height:
        raise InferenceError(
            f"box {text!r} exceeds the first frame, which is {width} wide and {height} high; give {FORM}"
        )
    return Box(name.strip(), left, top, wide, high)


def _boxes_of_mask(path: Path, classes: Sequence[str], size: tuple[int, int]) -> list[Box]:
    """Return a box around each class in a mask of the first frame of `size` (height, width)."""
    try:
        mask = read_ids(path)
    except DataError as error:
        remedy = error.what_to_do if path.is_file() else "give the file of a mask of the first frame"
        raise InferenceError(f"first mask {path} cannot be used ({error.what}); {remedy}") from None
    if mask.shape != size:
        raise InferenceError(
            f"first mask {path} is {mask.shape[1]}x{mask.shape[0]}, but the first frame is {size[1]}x{size[0]}; "
            "give a mask of the first frame"
        )
    known = ", ".join(f"{number} {name}" for number, name in enumerate(classes))
    if foreign := sorted(set(np.unique(mask).tolist()) - set(range(len(classes)))):
        raise InferenceError(f"first mask {path} has id {foreign[0]}, but the model's ids are {known}; use these ids")
    boxes = class_boxes(torch.from_numpy(mask)[None], len(classes))[0].tolist()  # (1, H, W) -> (1, N, 4) -> N rows
    rows = [(name, row) for name, row in zip(classes[1:], boxes, strict=True) if not math.isnan(row[0])]
    if not rows:
        raise InferenceError(f"first mask {path} contains no object; give a mask with some of the ids {known}")
    return [Box(name, left, top, right - left, bottom - top) for name, (left, top, right, bottom) in rows]


def _named(boxes: Iterable[Box], outputs: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the classes of the masks, and the class id of each box."""
    names = [box.name for box in boxes]
    if not any(names):
        numbers = range(1, len(names) + 1)
        return (outputs[0], *(f"object {number}" for number in numbers)), tuple(numbers)
    if not all(names):
        bare = next(str(box) for box in boxes if not box.name)
        raise InferenceError(f"box {bare!r} has no class, but other boxes have; name a class in all boxes or in none")
    known = list(outputs[1:])
    if unknown := [name for name in names if name not in known]:
        raise InferenceError(
            f"box {unknown[0]!r} is not a class of the model; use one of {', '.join(known)}, or no class in any box"
        )
    return tuple(outputs), tuple(known.index(name) + 1 for name in names)
