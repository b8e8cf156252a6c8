"""Define the interface of tasks: labels, loss, metrics and pictures.

A bundle lists its kinds of task with their settings (`tasks:` in train.yaml); site.yaml names the site's task.
"""

import importlib
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, get_type_hints

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from shared_components.common.drawing.sheets import Sheet
from shared_components.common.schema import check_values
from shared_components.core.card import Card, Metric
from shared_components.core.prompting import Prompting
from shared_components.data.samples import Item, Padding, SampleSpec, TargetsOf
from shared_components.data.targets import of_last_frame

Frames = Annotated[int, Meta(ge=1, le=1024)]  # frames of a clip
Interval = Annotated[float, Meta(ge=0, le=3600)]  # seconds between two frames
FEATURES = "features/"  # prefix of a batch's features, see `feature_cache`; they are in the order of their names

Array = np.ndarray
Batch = Mapping[str, Tensor]
Answer = Any  # prediction for one sample, at the sample's size
Scores = dict[str, Any]  # {metric: {output: value or None, ..., "mean": value or None}, "frames": count, ...}


class Task(Protocol):
    """Interface of the tasks in ``shared_components/tasks``, which have no state.

    ``make_task(card.kind, numbers, classes=card.outputs)`` rebuilds a task. The first metric is for model selection.
    ``channels`` is the network's number of output channels. ``definitions`` are the metrics' definitions, saved with
    the scores. With ``prompting``, a network is scored on streams, see `prompted_streams`. A task may declare
    ``recordable``, see `recorded_steps.recordable`.
    """

    @property
    def card(self) -> Card: ...
    @property
    def metrics(self) -> tuple[Metric, ...]: ...
    @property
    def spec(self) -> SampleSpec: ...
    @property
    def channels(self) -> int: ...
    @property
    def definitions(self) -> Mapping[str, str]: ...
    @property
    def prompting(self) -> Prompting | None: ...

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add random inputs to a batch, such as masked patches or training prompts; most tasks add nothing."""

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the boxes (B, T, N, 4) of the N objects in targets (B, T, H, W), see `prompts.class_boxes`."""

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs for a batch in the task's unit (logits, millimetres, pixels)."""

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the scalar training loss."""

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Answer]:
        """Return one prediction per sample, at the given (height, width)."""

    def score(self, answer: Answer, item: Item, *, quick: bool) -> Any:
        """Score one sample; ``quick`` leaves out slow metrics."""

    def rows(self, score: Any) -> list[dict[str, Any]]:
        """Return the score of one sample as table rows; NaN marks values that do not count."""

    def summarise(self, scores: Sequence[Any]) -> Scores:
        """Return the summary of all scores, without metrics that were not measured."""

    def per_video(self, scores: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Return the metrics by video if the task averages and compares videos, else an empty mapping."""

    def charts(self, scores: Sequence[Any]) -> Mapping[str, Array]:
        """Return charts of all scores by name, such as timelines of videos; may be empty."""

    def files(self, answer: Answer, image: Array) -> dict[str, Array]:
        """Return the images of a prediction by output folder; ``overlays`` is for viewing."""

    def visible(self, answer: Answer) -> dict[str, float]:
        """Return the area of each class in percent of the image; empty for tasks without pixel-wise classes."""

    def sheet(self, answer: Answer, item: Item) -> Sheet:
        """Draw frame, truth, prediction and errors, if the task has them."""


def module_names(folder: str) -> list[str]:
    """List the files of a folder of plug-ins: ``tasks`` or ``methods``."""
    package = importlib.import_module(f"shared_components.{folder}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def build_by_name(folder: str, name: str, **arguments: Any) -> Any:
    """Call ``build`` of a file in ``tasks`` or ``methods``; check its arguments first; ValueError."""
    what = folder.removesuffix("s")
    if name not in (known := module_names(folder)):
        raise ValueError(f"{what} {name!r} does not exist; use one of {', '.join(known)}")
    build = importlib.import_module(f"shared_components.{folder}.{name}").build
    check_values(get_type_hints(build, include_extras=True), arguments, name)
    try:
        return build(**arguments)
    except TypeError as error:
        raise ValueError(f"{what} {name!r}: {error}") from error


def make_task(kind: str, numbers: Mapping[str, Any] | None = None, *, classes: Sequence[str] = ()) -> Task:
    """Build a task by kind; ``classes`` are the site's, background first; ValueError for a wrong kind or setting."""
    return build_by_name("tasks", kind, classes=tuple(classes), **(numbers or {}))


def check_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError for kinds and settings that are wrong for every site."""
    for kind, numbers in tasks.items():
        make_task(kind, numbers, classes=("background", "object"))


def choose_task(tasks: Mapping[str, Mapping[str, Any]], wanted: str, *, classes: Sequence[str], who: str) -> Task:
    """Build the task that a site (``who``) wants, by default the bundle's first; ValueError if the bundle lacks it."""
    kind = wanted or next(iter(tasks))
    if kind not in tasks:
        raise ValueError(
            f"{who}: the task is {kind!r}, but this bundle learns {', '.join(tasks)}; correct 'task' in site.yaml, "
            "or choose a job with another bundle"
        )
    return make_task(kind, tasks[kind], classes=classes)


def sample_spec(
    kind: str,
    targets: tuple[str, ...],
    *,
    frames: Frames,
    interval: Interval,
    padding: Padding = "first",
    targets_of: TargetsOf = "last",
    random_frames: bool = False,
) -> SampleSpec:
    """Return what a ``kind`` of task requires of the data; ValueError if a clip has no interval.

    Args:
        kind: Kind of task, for errors.
        targets: Names of the targets.
        frames: Number of frames in a sample.
        interval: Seconds between two frames of a sample.
        padding: Frame used before the start of the video: ``first`` or ``current``.
        targets_of: Frames with targets: ``last`` or ``all`` of a clip; ``video``: one target per video; ``sequence``:
            every frame of a whole video.
        random_frames: With ``video``, sample frames at random in training.
    """
    if frames != 1 and not interval and targets_of != "video":
        raise ValueError(f"{kind}: a clip of {frames} frames needs 'interval', the seconds between two of them")
    return SampleSpec(targets, frames, float(interval), padding, targets_of, random_frames)


def outputs_of(network: nn.Module, batch: Batch) -> Tensor:
    """Run a network on the images of a batch, and on its boxes and features if there are any."""
    inputs = [batch[name] for name in ("image", "boxes") if name in batch]
    maps = [value.float() for name, value in sorted(batch.items()) if name.startswith(FEATURES)]
    return network(*inputs, features=tuple(maps)) if maps else network(*inputs)


def same_frames(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (N, C, H, W) and targets (N, H, W) of the frames that have both.

    Outputs are (B, T, C, H, W) for clips or (B, C, H, W) for the current frame; targets are (B, T, H, W) or (B, H, W).
    If both contain all frames, all frames are returned, otherwise the current frames.
    """
    if outputs.dim() == 5 and target.dim() == 4:
        return outputs.flatten(0, 1), target.flatten(0, 1)  # (B, T, ...) -> (B*T, ...)
    return current(outputs, 4), current(target, 3)


def current(values: Tensor, dimensions: int) -> Tensor:
    """Return the current (last) frame of clips (B, T, ...); values with ``dimensions`` axes are returned unchanged."""
    return values[:, -1] if values.dim() > dimensions else values


def last_frame(item: Item) -> Array:
    """Return the labelled frame of a sample: uint8 (H, W, 3)."""
    return item.images[-1]


def last_target(item: Item, name: str) -> Array:
    """Return the target of the last frame, on which a sample is scored: each labelled frame is last exactly once."""
    return of_last_frame(name, item.targets[name])


def checkpoint_header(
    bundle: str,
    method: str,
    task: Task,
    numbers: Mapping[str, Any],
    *,
    size: tuple[int, int],
    network: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the header of a checkpoint, which is required to use its weights.

    ``numbers`` are the task's settings from bundle and job, ``size`` is the (height, width) of the network's input, and
    ``network`` contains the network's arguments that differ from the bundle, see `bundle.Bundle.chosen`.
    """
    card = task.card
    notes = {
        "bundle": bundle, "method": method, "task": card.kind, "outputs": ",".join(card.outputs),
        "height": str(size[0]), "width": str(size[1]), "frames": str(card.frames), "numbers": json.dumps(dict(numbers)),
    }  # fmt: skip
    if network:
        notes["network"] = json.dumps(dict(network))
    return notes | ({"classes": notes["outputs"]} if card.kind == "segmentation" else {})


class WithoutBoxes:
    """Base of tasks without box prompts and without pixel-wise classes."""

    prompting: Prompting | None = None

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no box prompts")

    def visible(self, answer: Answer) -> dict[str, float]:
        return {}


class OneOutput(WithoutBoxes):
    """Base of tasks without named classes, whose score is one number per metric."""

    metrics: tuple[Metric, ...]

    def rows(self, score: dict[str, float]) -> list[dict[str, float]]:
        return [score]

    def summarise(self, scores: Sequence[dict[str, float]]) -> Scores:
        """Return ``{metric: {"mean": mean or None}, ..., "frames": count}``, without NaN; ValueError without frames."""
        if not scores:
            raise ValueError("no frames to summarise; the split has no frames")
        means: Scores = {}
        for metric in self.metrics:
            known = [score[metric.name] for score in scores if not math.isnan(score[metric.name])]
            means[metric.name] = {"mean": math.fsum(known) / len(known) if known else None}
        return {**means, "frames": len(scores)}

    def per_video(self, scores: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        return {}

    def charts(self, scores: Sequence[Any]) -> Mapping[str, Array]:
        return {}
