"""Render batches of frames on demand, without writing them to disk.

A group is B videos of F frames, which give F batches. The frames of a batch come from different videos, and the frames
of a video are seconds apart. For a task on clips, a video gives F clips; each starts one frame after the previous clip.
For a network that tracks objects, clip length, frame rate and objects are random. A group depends only on the seed and
its number, so any process can render it and training can resume at any step.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from shared_components.core.training import round_seed
from shared_components.data import transforms
from shared_components.data.collate import as_numbers
from shared_components.data.samples import Item, SampleSpec
from shared_components.data.targets import over_time
from shared_components.data.transforms import stack_frames, to_tensors
from shared_components.scenes.anatomy import THINGS
from shared_components.scenes.layouts import scene_ids
from shared_components.scenes.looks import numbered
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.weights.pretraining.plan import Phase, Settings

Array = np.ndarray
RATE = 0.2  # rendered frames per second, for different poses in consecutive frames
SCALES = (0.75, 2.25)  # frames are enlarged more often than shrunk, for small parts
LARGER = 1.5  # rendered size relative to the network's input; shrinking smooths the edges
ANY = "random-*"
RESERVED = 1_000_000  # looks from this number on, and videos from `HELD_OUT` on, are never used for training
HELD_OUT = 2**31
PACES = (0.35, 2.0)  # range of the frame interval relative to the clip's interval, for slow and fast motion
SMALLEST_OBJECT = 6  # pixels
_GROUPS = 1  # number of the random stream


def parts_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return labels of parts, with the same classes for all instruments."""
    return [frame.parts for frame in frames]


def scene_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return labels of parts and things."""
    return [scene_ids(frame) for frame in frames]


def single_of(frames: Sequence[SceneFrame]) -> list[Array]:
    """Return labels of single instruments, with the same number in each frame, and things."""
    names = sorted({tool for frame in frames for tool in frame.tools})
    labels = []
    for frame in frames:
        numbers = np.array([0, *(len(THINGS) + 1 + names.index(tool) for tool in frame.tools)], np.uint8)
        labels.append(np.where(frame.instances > 0, numbers[frame.instances], frame.things))
    return labels


@dataclass(frozen=True)
class Filming:
    """Rendering of a video: frames per second, things on the tissue, and labels (T times H, W)."""

    rate: float = 1.0
    things: tuple[str, ...] = ()
    ids: Callable[[Sequence[SceneFrame]], list[Array]] = parts_of


PARTS = Filming()
_THINGS = tuple(THINGS)
KINDS = (((), parts_of), (_THINGS, scene_of), (_THINGS, single_of))


def drawn_filming(interval: float, generator: torch.Generator, *, objects: int) -> Filming:
    """Draw a video's kind of objects and its pace, around an interval in seconds (0: one second).

    With 0 objects, the labels are parts and things, as `scene_of`.
    """
    low, high = np.log(PACES)
    pace = float(np.exp(low + (high - low) * float(torch.rand((), generator=generator))))
    things, ids = KINDS[int(torch.randint(len(KINDS), (), generator=generator))] if objects else (_THINGS, scene_of)
    return Filming(1 / (pace * (interval or 1.0)), things, ids)


def clip_length(most: int, generator: torch.Generator) -> int:
    """Draw the number of frames of a clip, from 2 to `most`; 1 if `most` is 1."""
    return min(most, 2 + int(torch.randint(max(1, most - 1), (), generator=generator)))


def random_objects(label: Array, most: int, generator: torch.Generator) -> Array:
    """Keep 1 to `most` random objects of labels (H, W) or (T, H, W) as 1, 2, ...; see `renumbered`."""
    order = (torch.randperm(255, generator=generator) + 1).tolist()
    return renumbered(label, 1 + int(torch.randint(most, (), generator=generator)), order)


def renumbered(label: Array, most: int, order: Sequence[int] = range(1, 256)) -> Array:
    """Keep up to `most` objects of labels (H, W) or (T, H, W) as 1, 2, ...; everything else is background.

    Objects of the first frame, which has the boxes, come first in the order of ids, then objects of later frames.
    """
    first = label if label.ndim == 2 else label[0]
    counts = [np.bincount(labels.ravel(), minlength=256) for labels in (first, label)]
    ids = dict.fromkeys(number for count in counts for number in order if count[number] >= SMALLEST_OBJECT)
    new = np.zeros(256, label.dtype)
    for number, old in enumerate(list(ids)[:most], start=1):
        new[old] = number
    return new[label]


@dataclass(frozen=True)
class Span:
    """A group: its phase, its first step, and the number of its batches."""

    phase: Phase
    first: int
    count: int


def spans(settings: Settings) -> list[Span]:
    """List the groups of all phases; the last group of a phase may be shorter."""
    groups, first = [], 0
    for phase in settings.phases:
        for start in range(0, phase.steps, settings.frames):
            groups.append(Span(phase, first + start, min(settings.frames, phase.steps - start)))
        first += phase.steps
    return groups


class Groups(Dataset[dict[str, Tensor]]):
    """All groups of a pre-training.

    Item `j` contains "image", uint8 (F, B, 3, H, W) or (F, B, T, 3, H, W) for clips, and each target, (F, B, H, W) or,
    if all frames of clips have targets, (F, B, T, H, W). With `objects`, clips have 2 to `spec.frames` frames and at
    most so many labelled objects; with 0 objects, labels are parts and things.
    """

    def __init__(self, settings: Settings, spec: SampleSpec, *, objects: int | None = None) -> None:
        self.settings, self.spec, self.objects = settings, spec, objects
        self.spans = spans(settings)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        span, batch, spec = self.spans[number], self.settings.batch, self.spec
        generator = torch.Generator().manual_seed(round_seed(self.settings.seed, _GROUPS, number))
        if self.objects is not None:
            spec = replace(spec, frames=clip_length(spec.frames, generator))
        videos = [self._video(span, number * batch + slot, spec, generator) for slot in range(batch)]
        return {
            name: torch.stack([torch.stack([video[f][name] for video in videos]) for f in range(span.count)])
            for name in videos[0][0]
        }

    def _video(self, span: Span, number: int, spec: SampleSpec, generator: torch.Generator) -> list[dict[str, Tensor]]:
        seed, look = torch.randint(HELD_OUT, (2,), generator=generator).tolist()
        looks = self.settings.looks or (ANY,)
        name = numbered(looks[number % len(looks)], look % RESERVED)
        how = filming_of(spec)
        if self.objects is not None:
            how = drawn_filming(spec.interval, generator, objects=self.objects)
        clips = _film(name, seed, (span.phase.height, span.phase.width), self.settings.frames, spec, how)
        return [self._sample(clip, span.phase, generator, how) for clip in islice(clips, span.count)]

    def _sample(
        self, clip: Sequence[SceneFrame], phase: Phase, generator: torch.Generator, how: Filming = PARTS
    ) -> dict[str, Tensor]:
        images, targets = stack_frames([frame.image for frame in clip]), targets_of(clip, self.spec, how)
        width, (smallest, largest) = images.shape[2], SCALES
        augmentation = transforms.sample_augmentation(generator, width=width, smallest=smallest, largest=largest)
        if float(torch.rand((), generator=generator)) < self.settings.moved:
            images, targets = transforms.augment(images, targets, augmentation)
        images, targets = _shrunk(images, targets, phase.height, phase.width)
        if self.objects:
            targets["label"] = random_objects(targets["label"], self.objects, generator)
        colours = transforms.sample_colours(generator, self.settings.colour)
        return to_tensors(transforms.change_colours(images, colours), targets)


def filming_of(spec: SampleSpec) -> Filming:
    """Return the rendering of a task's videos."""
    return replace(PARTS, rate=RATE if spec.frames == 1 else 1 / spec.interval)


def targets_of(clip: Sequence[SceneFrame], spec: SampleSpec, how: Filming = PARTS) -> dict[str, Array]:
    """Return the targets of a rendered clip by name, in the form of `samples.Item`."""
    labelled = clip if spec.targets_of == "all" else clip[-1:]
    known = {"label": how.ids(labelled), "depth": [frame.depth for frame in labelled]}
    return {name: over_time(known[name]) for name in spec.targets}


def batches(
    settings: Settings,
    spec: SampleSpec,
    *,
    begin: int = 0,
    workers: int = 0,  # other processes that render ahead the same batches
    objects: int | None = None,  # as in `Groups`
    device: torch.device | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Yield the batches from step `begin` on, in the form of `data.dataset.batches`."""
    groups = Groups(settings, spec, objects=objects)
    remaining = [number for number, span in enumerate(groups.spans) if span.first + span.count > begin]
    options = _worker_options() if workers else {}
    loader = DataLoader(groups, batch_size=None, sampler=remaining, num_workers=workers, **options)
    for number, group in zip(remaining, loader, strict=True):
        span = groups.spans[number]
        for f in range(max(begin - span.first, 0), span.count):  # copied to the device as bytes
            yield as_numbers({name: value[f].to(device) for name, value in group.items()})


def held_out(
    look: str, number: int, *, size: tuple[int, int], spec: SampleSpec, count: int, how: Filming | None = None
) -> list[Item]:
    """Render `count` samples of a held-out video at the network's (height, width)."""
    how = how or filming_of(spec)
    items = []
    for index, clip in enumerate(_film(look, HELD_OUT + number, size, count, spec, how)):
        images, targets = _shrunk(stack_frames([frame.image for frame in clip]), targets_of(clip, spec, how), *size)
        items.append(Item(images, targets, f"{look}-{index}"))
    return items


def _film(
    look: str, seed: int, size: tuple[int, int], count: int, spec: SampleSpec, how: Filming
) -> Iterator[tuple[SceneFrame, ...]]:
    """Render a video for a network of this (height, width), and yield the frames of each sample, oldest first."""
    height, width = (round(LARGER * side) for side in size)
    frames = count + spec.frames - 1
    clip: deque[SceneFrame] = deque(maxlen=spec.frames)
    for frame in render_video(look, seed, frames=frames, rate=how.rate, things=how.things, height=height, width=width):
        clip.append(frame)
        if len(clip) == spec.frames:
            yield tuple(clip)


def _shrunk(images: Array, targets: Mapping[str, Array], height: int, width: int) -> tuple[Array, dict[str, Array]]:
    small = stack_frames([transforms.resize_image(image, height, width) for image in images])
    return small, {name: transforms.resize_target(target, height, width) for name, target in targets.items()}


def _worker_options() -> dict[str, Any]:
    """Return loader options for new processes, since OpenCV's threads do not survive a fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return {"prefetch_factor": 2, "multiprocessing_context": context, "worker_init_fn": _start_worker}


def _start_worker(number: int) -> None:
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process handles Ctrl-C
