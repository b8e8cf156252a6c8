"""Choose clip length, frame rate and prompted objects of the videos for a network that tracks objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared_components.scenes.anatomy import THINGS
from shared_components.scenes.layouts import scene_ids
from shared_components.scenes.scene import SceneFrame

Array = np.ndarray
PACES = (0.35, 2.0)  # of a clip's interval: its videos show slow and fast motion
SMALLEST = 6  # pixels of an object that is chosen


def parts_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return the labels of parts, one class each for all instruments."""
    return [frame.parts for frame in frames]


def scene_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return the labels of parts and things."""
    return [scene_ids(frame) for frame in frames]


def single_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return labels that tell single instruments apart, with the same number in every frame, and things."""
    names = sorted({tool for frame in frames for tool in frame.tools})
    found = []
    for frame in frames:
        numbers = np.array([0, *(len(THINGS) + 1 + names.index(tool) for tool in frame.tools)], np.uint8)
        found.append(np.where(frame.instances > 0, numbers[frame.instances], frame.things))
    return found


@dataclass(frozen=True)
class Filming:
    """How a video is rendered: frames per second, things on the tissue, and the label of some frames (T times H, W)."""

    rate: float = 1.0
    things: tuple[str, ...] = ()
    ids: Callable[[Sequence[SceneFrame]], list[Array]] = parts_of


PARTS = Filming()
_THINGS = tuple(THINGS)
KINDS = (((), parts_of), (_THINGS, scene_of), (_THINGS, single_of))


def drawn_filming(interval: float, generator: torch.Generator, *, objects: int) -> Filming:
    """Draw a video's kind of objects and its pace, around an interval in seconds (0: one second).

    Without objects the label is of parts and things, as `scene_of`.
    """
    low, high = np.log(PACES)
    pace = float(np.exp(low + (high - low) * float(torch.rand((), generator=generator))))
    things, ids = KINDS[int(torch.randint(len(KINDS), (), generator=generator))] if objects else (_THINGS, scene_of)
    return Filming(1 / (pace * (interval or 1.0)), things, ids)


def clip_length(most: int, generator: torch.Generator) -> int:
    """Draw a clip's number of frames, from 2 to `most`; 1 if that is the most."""
    return min(most, 2 + int(torch.randint(max(1, most - 1), (), generator=generator)))


def some_objects(label: Array, most: int, generator: torch.Generator) -> Array:
    """Keep 1 to `most` objects of labels (H, W) or (T, H, W), drawn at random, as 1, 2, ...; see `chosen`."""
    order = (torch.randperm(255, generator=generator) + 1).tolist()
    return chosen(label, 1 + int(torch.randint(most, (), generator=generator)), order)


def chosen(label: Array, most: int, order: Sequence[int] = range(1, 256)) -> Array:
    """Keep up to `most` objects of labels (H, W) or (T, H, W), as 1, 2, ...; all else is background.

    Taken are those of the first frame, by their ids' `order`, since boxes are given there; then those of later ones.
    """
    first = label if label.ndim == 2 else label[0]
    counts = [np.bincount(one.ravel(), minlength=256) for one in (first, label)]
    there = [one for count in counts for one in order if count[one] >= SMALLEST]
    new = np.zeros(256, label.dtype)
    for number, one in enumerate(list(dict.fromkeys(there))[:most], start=1):
        new[one] = number
    return new[label]
