"""Settings of a pre-training, its phases, and the learning rate of each step."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from shared_components.common.arguments import between, one_of
from shared_components.core.bundle import Bundle
from shared_components.core.task import Task, make_task
from shared_components.core.training import check_frames
from shared_components.core.training_settings import PRECISIONS
from shared_components.data.classes import CLASS_MAPS
from shared_components.networks.bundle_config import build_network, check_size
from shared_components.scenes.layouts import TARGETS
from shared_components.scenes.looks import look_named, numbered

CLASSES = CLASS_MAPS["parts"]
MOST_FRAMES, MOST_OBJECTS = 8, 16  # of a clip
SMALLEST = 64  # pixels of the renderer's smallest frame


@dataclass(frozen=True)
class Phase:
    """A number of steps at one size in pixels."""

    height: int
    width: int
    steps: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.steps}"


@dataclass(frozen=True)
class Settings:
    """All settings that determine the weights; a ValueError names one that is out of range."""

    bundle: str
    task: str
    phases: tuple[Phase, ...]  # sizes in turn; one schedule of the learning rate covers all their steps
    seed: int = 2022  # of weights, scenes, augmentation and dropout
    batch: int = 8  # samples of a batch, each of another video
    frames: int = 10  # samples of a video; as many batches in turn show the same videos
    learning_rate: float = 1e-3  # the highest one
    weight_decay: float = 0.05
    warmup: float = 0.05  # share of the steps in which the learning rate rises
    average: float = 0.999  # decay of the weights' moving average per step
    moved: float = 0.8  # share of the frames that are flipped, scaled and cropped
    colour: float = 0.6  # strength of changed colours
    precision: str = "float32"
    start: str = "random"  # kind and hash of the initial weights
    clip: int = 2  # frames at most; this and `objects`: of a network that is prompted with boxes
    objects: int = 3  # of a clip, at most; 0: its image encoder learns every pixel's class
    numbers: tuple[tuple[str, float], ...] = ()  # of the task, instead of the bundle's
    looks: tuple[str, ...] = ()  # of the scenes, in turn; family-*: a new one for every video; none: random-*

    def __post_init__(self) -> None:
        where = "pretrain"
        for name in ("batch", "frames"):
            between(where, name, getattr(self, name), 1, whole=True)
        between(where, "clip", self.clip, 1, MOST_FRAMES, whole=True)
        between(where, "objects", self.objects, 0, MOST_OBJECTS, whole=True)
        between(where, "seed", self.seed, 0, 2**63 - 1, whole=True)
        between(where, "learning_rate", self.learning_rate, 0, ends="()")
        between(where, "weight_decay", self.weight_decay, 0)
        for name in ("warmup", "moved", "colour"):
            between(where, name, getattr(self, name), 0, 1)
        between(where, "average", self.average, 0, 1, ends="[)")
        one_of(where, "precision", self.precision, PRECISIONS)
        for look in self.looks:
            look_named(numbered(look, 0))
        if not self.phases:
            raise ValueError("no size; give height, width and steps such as --size 96x128:6000")
        for phase in self.phases:
            between(where, f"steps of {phase}", phase.steps, 1, whole=True)

    @property
    def steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the last phase, at which the network is used."""
        return self.phases[-1].height, self.phases[-1].width

    def phase_of(self, step: int) -> Phase:
        """Return the phase of a step counted from 0."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise IndexError(step)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step from 0: linear warm-up, then half a cosine down to a hundredth."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    def as_values(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self) | {
            "phases": [str(phase) for phase in self.phases],
            "looks": list(self.looks),
            "numbers": dict(self.numbers),
        }


def read_sizes(texts: Sequence[str]) -> tuple[Phase, ...]:
    """Read ``96x128:6000`` as 6000 steps at 96x128 pixels (height x width); ValueError for another form."""
    phases = []
    for text in texts:
        parts = re.fullmatch(r"(\d+)x(\d+):(\d+)", text, re.ASCII)
        if parts is None:
            raise ValueError(f"--size is {text!r}; give height, width and steps such as 96x128:6000")
        phases.append(Phase(*map(int, parts.groups())))
    return tuple(phases)


def task_for(bundle: Bundle, kind: str, numbers: Mapping[str, float] | None = None) -> Task:
    """Build the task; ValueError where the bundle does not learn it or rendered frames have no such target."""
    one_of(f"bundle {bundle.name}", "task", kind, bundle.tasks)
    if kind not in TARGETS:
        raise ValueError(f"rendered scenes have no labels for {kind!r}; use one of {', '.join(TARGETS)}")
    return make_task(kind, {**bundle.tasks[kind], **(numbers or {})}, classes=CLASSES)


def build(bundle: Bundle, task: Task, settings: Settings) -> nn.Module:
    """Build the network without dropout.

    Raises:
        ValueError: The network or the renderer does not take a size, or the network does not take the task's clips.
    """
    encoders = {} if task.prompting is None else {"trained_encoders": True}  # fixed wherever the weights are used
    network = build_network(bundle.network, out_channels=task.channels, **encoders)
    check_frames(network, task)
    for phase in settings.phases:
        check_size(network, phase.height, phase.width, least=SMALLEST)
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # no scene comes twice, so nothing can be memorised
    return network
