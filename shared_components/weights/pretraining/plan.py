"""Settings of a pre-training, its phases, and the learning rate of each step."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta
from torch import nn

from shared_components.common.arguments import one_of
from shared_components.common.schema import check_values, kinds_of
from shared_components.core.bundle import Bundle
from shared_components.core.task import Task, make_task
from shared_components.core.training import check_frames
from shared_components.core.training_settings import Precision
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.networks.bundle_config import build_network, check_size
from shared_components.scenes.layouts import TARGETS
from shared_components.scenes.looks import look_named, numbered

CLASSES = CLASS_MAPS["parts"]
SMALLEST = 64  # pixels of the renderer's smallest frame
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Phase:
    """Number of steps at an input size in pixels."""

    height: int
    width: int
    steps: Count

    def __post_init__(self) -> None:
        check_values(kinds_of(Phase), vars(self), f"phase {self}")

    def __str__(self) -> str:
        return f"{self.height}x{self.width}:{self.steps}"


@dataclass(frozen=True)
class Settings:
    """Settings that determine the weights; a value out of its range raises ValueError."""

    bundle: str
    task: str
    phases: tuple[Phase, ...]  # in order; one learning-rate schedule covers all steps
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 2022  # of weights, scenes, augmentation and dropout
    batch: Count = 8  # samples per batch, each from another video
    frames: Count = 10  # samples per video; as many consecutive batches show the same videos
    learning_rate: Annotated[float, Meta(gt=0, le=1000.0)] = 1e-3  # maximum
    weight_decay: Annotated[float, Meta(ge=0, le=1000.0)] = 0.05
    warmup: Fraction = 0.05  # fraction of the steps with rising learning rate
    average: Annotated[float, Meta(ge=0, lt=1)] = 0.999  # decay of the weights' moving average per step
    moved: Fraction = 0.8  # fraction of frames that are flipped, scaled and cropped
    colour: Fraction = 0.6  # strength of colour augmentation
    precision: Precision = "float32"
    start: str = "random"  # kind and hash of the initial weights
    clip: Annotated[int, Meta(ge=1, le=8)] = 2  # maximum frames; `clip` and `objects` are for box-prompted networks
    objects: Annotated[int, Meta(ge=0, le=16)] = 3  # maximum per clip; 0: the image encoder learns the class of pixels
    numbers: tuple[tuple[str, float], ...] = ()  # task settings that replace the bundle's
    looks: tuple[str, ...] = ()  # in turn; family-*: a new look per video; empty: random-*

    def __post_init__(self) -> None:
        check_values(kinds_of(Settings), vars(self), "pretrain")
        for look in self.looks:
            look_named(numbered(look, 0))
        if not self.phases:
            raise ValueError("no size; give height, width and steps such as --size 96x128:6000")

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the last phase and of the shipped network."""
        return self.phases[-1].height, self.phases[-1].width

    def phase_of(self, step: int) -> Phase:
        """Return the phase of a step, from 0."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise IndexError(step)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0: linear warm-up, then a cosine to one hundredth."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    def as_values(self) -> dict[str, Any]:
        phases, looks = [str(phase) for phase in self.phases], list(self.looks)
        return asdict(self) | {"phases": phases, "looks": looks, "numbers": dict(self.numbers)}


def read_sizes(texts: Sequence[str]) -> tuple[Phase, ...]:
    """Parse ``96x128:6000`` as 6000 steps at 96x128 pixels (height x width); raise ValueError for other forms."""
    phases = []
    for text in texts:
        parts = re.fullmatch(r"(\d+)x(\d+):(\d+)", text, re.ASCII)
        if parts is None:
            raise ValueError(f"--size is {text!r}; give height, width and steps such as 96x128:6000")
        phases.append(Phase(*map(int, parts.groups())))
    return tuple(phases)


def task_for(bundle: Bundle, kind: str, numbers: Mapping[str, float] | None = None) -> Task:
    """Build the task; raise ValueError if the bundle does not learn it or rendered frames have no such target."""
    one_of(f"bundle {bundle.name}", "task", kind, bundle.tasks)
    if kind not in TARGETS:
        raise ValueError(f"rendered scenes have no labels for {kind!r}; use one of {', '.join(TARGETS)}")
    return make_task(kind, {**bundle.tasks[kind], **(numbers or {})}, classes=CLASSES)


def build(bundle: Bundle, task: Task, settings: Settings) -> nn.Module:
    """Build the network without dropout; raise ValueError for unsuitable sizes or clips."""
    encoders = {} if task.prompting is None else {"trained_encoders": True}  # frozen when the weights are used
    network = build_network(bundle.network, out_channels=task.channels, **encoders)
    check_frames(network, task)
    for phase in settings.phases:
        check_size(network, phase.height, phase.width, least=SMALLEST)
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # each scene is new, so nothing can be memorised
    return network
