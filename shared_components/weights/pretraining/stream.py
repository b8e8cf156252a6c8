"""Render batches of frames on demand, without writing them to disk.

A group is B videos of F frames, which give F batches. The frames of a batch come from different videos, and the frames
of a video are seconds apart. For a task on clips, a video gives F clips; each starts one frame after the previous clip.
For a network that tracks objects, `filming` chooses clip length, frame rate and objects. A group depends only on the
seed and its number, so any process can render it and training can resume at any step.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from shared_components.core.training import round_seed
from shared_components.data.dataset import as_numbers
from shared_components.data.samples import Item, SampleSpec
from shared_components.data.targets import over_time
from shared_components.data.transforms import (
    augment,
    change_colours,
    resize_image,
    resize_target,
    sample_augmentation,
    sample_colours,
    stack_frames,
    to_tensors,
)
from shared_components.scenes.looks import numbered
from shared_components.scenes.scene import SceneFrame, render_video
from shared_components.weights.pretraining.filming import PARTS, Filming, clip_length, drawn_filming, some_objects
from shared_components.weights.pretraining.plan import Phase, Settings

RATE = 0.2  # rendered frames per second: consecutive ones show different poses
SCALES = (0.75, 2.25)  # small parts are learnt from frames that are enlarged more often than shrunk
LARGER = 1.5  # rendered size over the network's; shrinking smooths the edges
ANY = "random-*"
RESERVED = 1_000_000  # looks from this number on, and videos from `HELD_OUT` on, are never trained on
HELD_OUT = 2**31
_GROUPS = 1  # number of the random stream


@dataclass(frozen=True)
class Span:
    """A group: its phase, its first step, and the number of its batches that are used."""

    phase: Phase
    first: int
    count: int


def spans(settings: Settings) -> list[Span]:
    """List the groups of all phases; a phase's last one may be cut short."""
    found, first = [], 0
    for phase in settings.phases:
        for start in range(0, phase.steps, settings.frames):
            count = min(settings.frames, phase.steps - start)
            found.append(Span(phase, first + start, count))
        first += phase.steps
    return found


class Groups(Dataset[dict[str, Tensor]]):
    """All groups of a pre-training.

    Item `j` is {"image": uint8 (F, B, 3, H, W), of clips (F, B, T, 3, H, W), and each target: (F, B, H, W)
    or, where all frames of clips have targets, (F, B, T, H, W)}. With `objects` clips have 2 to `spec.frames` frames,
    and labels are of that many objects at most; 0: of parts and things.
    """

    def __init__(self, settings: Settings, spec: SampleSpec, *, objects: int | None = None) -> None:
        self.settings, self.spec, self.objects = settings, spec, objects
        self.follows = objects is not None
        self.spans = spans(settings)

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        span, batch = self.spans[number], self.settings.batch
        generator = torch.Generator().manual_seed(round_seed(self.settings.seed, _GROUPS, number))
        spec = replace(self.spec, frames=clip_length(self.spec.frames, generator)) if self.follows else self.spec
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
        augmentation = sample_augmentation(generator, width=images.shape[2], smallest=SCALES[0], largest=SCALES[1])
        if float(torch.rand((), generator=generator)) < self.settings.moved:
            images, targets = augment(images, targets, augmentation)
        images, targets = _shrunk(images, targets, phase.height, phase.width)
        if self.objects:
            targets["label"] = some_objects(targets["label"], self.objects, generator)
        return to_tensors(change_colours(images, sample_colours(generator, self.settings.colour)), targets)


def filming_of(spec: SampleSpec) -> Filming:
    """Return how a task's videos are rendered."""
    return replace(PARTS, rate=RATE if spec.frames == 1 else 1 / spec.interval)


def targets_of(clip: Sequence[SceneFrame], spec: SampleSpec, how: Filming = PARTS) -> dict[str, np.ndarray]:
    """Return the targets of a rendered clip by name, in the form of `samples.Item`."""
    labelled = clip if spec.targets_of == "all" else clip[-1:]
    known = {"label": how.ids(labelled), "depth": [frame.depth for frame in labelled]}
    return {name: over_time(known[name]) for name in spec.targets}


def batches(
    settings: Settings,
    spec: SampleSpec,
    *,
    begin: int = 0,
    workers: int = 0,
    objects: int | None = None,
    device: torch.device | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Yield the batches from step `begin` on, in the form of `data.dataset.batches`; `objects` as in `Groups`.

    With `workers` other processes render ahead; the batches are the same. Batches lie on `device`, by default the
    processor.
    """
    groups = Groups(settings, spec, objects=objects)
    left = [number for number, span in enumerate(groups.spans) if span.first + span.count > begin]
    more = _in_processes() if workers else {}
    loader = DataLoader(groups, batch_size=None, sampler=left, num_workers=workers, **more)
    for number, group in zip(left, loader, strict=True):
        span = groups.spans[number]
        for f in range(max(begin - span.first, 0), span.count):  # copied as bytes
            yield as_numbers({name: value[f].to(device) for name, value in group.items()})


def held_out(
    look: str, number: int, *, size: tuple[int, int], spec: SampleSpec, count: int, how: Filming | None = None
) -> list[Item]:
    """Render samples of a held-out video, at the network's size."""
    items = []
    how = how or filming_of(spec)
    for index, clip in enumerate(_film(look, HELD_OUT + number, size, count, spec, how)):
        images, found = _shrunk(stack_frames([frame.image for frame in clip]), targets_of(clip, spec, how), *size)
        items.append(Item(images, found, f"{look}-{index}"))
    return items


def _film(
    look: str, seed: int, size: tuple[int, int], count: int, spec: SampleSpec, how: Filming
) -> Iterator[tuple[SceneFrame, ...]]:
    """Render a video for a network of this (height, width), and yield the frames of each sample, oldest first."""
    height, width = (round(LARGER * side) for side in size)
    frames = count + spec.frames - 1
    clip: deque[SceneFrame] = deque(maxlen=spec.frames)
    film = render_video(look, seed, frames=frames, rate=how.rate, things=how.things, height=height, width=width)
    for frame in film:
        clip.append(frame)
        if len(clip) == spec.frames:
            yield tuple(clip)


def _shrunk(
    images: np.ndarray, targets: Mapping[str, np.ndarray], height: int, width: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    small = stack_frames([resize_image(image, height, width) for image in images])
    return small, {name: resize_target(target, height, width) for name, target in targets.items()}


def _in_processes() -> dict[str, Any]:
    """Return the loader's options: a clean process for workers, since OpenCV's threads do not survive a fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return {"prefetch_factor": 2, "multiprocessing_context": context, "worker_init_fn": _begin_worker}


def _begin_worker(number: int) -> None:
    cv2.setNumThreads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the training process
