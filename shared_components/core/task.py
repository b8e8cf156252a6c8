"""What is learned at a site: what a label means, the loss, the metrics, and how a prediction is shown.

A bundle lists the kinds of task that its network can learn and the numbers of their losses (`tasks:` in train.yaml); a
site names the one that it has (`task:` in site.yaml). One file per kind in ``shared_components/tasks``, found by
listing.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of, true_or_false
from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.prompting import Prompting
from shared_components.data.samples import PADDINGS, TARGETS_OF, Item, SampleSpec
from shared_components.data.targets import of_last_frame

MOST_FRAMES, LONGEST_INTERVAL = 1024, 3600  # of a clip; seconds
FEATURES = "features/"  # begins the names of a batch's features, see `feature_cache`; their order is that of the names

Array = np.ndarray
Batch = Mapping[str, Tensor]
Answer = Any  # a task's prediction for one sample, at the sample's own size
Scores = dict[str, Any]  # {metric: {output: value or None, ..., "mean": value or None}, "frames": count, ...}


class Task(Protocol):
    """What every file of ``shared_components/tasks`` builds. Tasks keep no state.

    Attributes:
        card: What is learned; ``make_task(card.kind, numbers, classes=card.outputs)`` builds the task again.
        metrics: The first selects the best model.
        spec: What the data must yield.
        channels: Of the network's last layer.
        definitions: How each number is defined, written beside the numbers.
        prompting: How its network is prompted with boxes; None: it is not. With prompts a network is scored on streams
            of whole videos, see `streams`.
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
        """Add random inputs to a batch, such as hidden patches, or the boxes of training prompts made from its targets.

        Most tasks add nothing.
        """
        ...

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the boxes (B, T, N, 4) of the N objects in targets (B, T, H, W), see `prompts.class_boxes`."""
        ...

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs for a batch, in the task's own terms (logits, millimetres, pixels)."""
        ...

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the scalar that training minimises."""
        ...

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Answer]:
        """Return one prediction per sample, at the (height, width) asked for."""
        ...

    def score(self, answer: Answer, item: Item, *, quick: bool) -> Any:
        """Score one sample; ``quick`` leaves out what takes long."""
        ...

    def rows(self, score: Any) -> list[dict[str, Any]]:
        """Return one sample's score as rows of a table; a value that is not counted is NaN."""
        ...

    def summarise(self, scores: Sequence[Any]) -> Scores:
        """Return the numbers of a record; a metric of ``metrics`` that was not measured is left out."""
        ...

    def per_video(self, scores: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        """Return each video's numbers, where they are what is averaged and compared; else nothing."""
        ...

    def charts(self, scores: Sequence[Any]) -> Mapping[str, Array]:
        """Return pictures of all scores by name, such as courses of videos; nothing where there are none."""
        ...

    def files(self, answer: Answer, image: Array) -> dict[str, Array]:
        """Return a prediction as PNGs by the folder that each is of: what it is, and ``overlays`` to look at."""
        ...

    def visible(self, answer: Answer) -> dict[str, float]:
        """Return how much of the picture each named thing takes, in percent; nothing where a task names none."""
        ...

    def sheet(self, answer: Answer, item: Item) -> Sheet:
        """Draw frame, truth, prediction and errors, as far as there are such."""
        ...


def task_kinds() -> list[str]:
    """List the kinds of task by listing the folder; adding a file there is all that a new kind needs."""
    import shared_components.tasks as folder

    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def make_task(kind: str, numbers: Mapping[str, Any] | None = None, *, classes: Sequence[str] = ()) -> Task:
    """Build a task.

    Args:
        kind: A file of ``shared_components/tasks``.
        numbers: Keyword arguments of that file's ``build``.
        classes: The site's class names, background first; empty where it has none.

    Raises:
        ValueError: There is no such kind, or a number is wrong or unknown.
    """
    if kind not in task_kinds():
        raise ValueError(f"task {kind!r} does not exist; there are {', '.join(task_kinds())}")
    build = importlib.import_module(f"shared_components.tasks.{kind}").build
    try:
        return build(classes=tuple(classes), **(numbers or {}))
    except TypeError as error:
        raise ValueError(f"task {kind!r}: {error}") from error


def check_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError, of one sentence, for kinds and numbers that are wrong whatever site has the task."""
    for kind, numbers in tasks.items():
        make_task(kind, numbers, classes=("background", "object"))


def choose_task(tasks: Mapping[str, Mapping[str, Any]], wanted: str, *, classes: Sequence[str], who: str) -> Task:
    """Build the task that a site has (``wanted``, by default the bundle's first) and a bundle can learn.

    ``who`` names the site in the sentence.

    Raises:
        ValueError: The bundle does not learn this kind.
    """
    kind = wanted or next(iter(tasks))
    if kind not in tasks:
        raise ValueError(
            f"{who}: the task is {kind!r}, and this bundle learns {', '.join(tasks)}; correct 'task' in site.yaml, "
            "or choose a job with another bundle"
        )
    return make_task(kind, tasks[kind], classes=classes)


def sample_spec(
    kind: str,
    targets: tuple[str, ...],
    *,
    frames: object,
    interval: object,
    padding: object = "first",
    targets_of: object = "last",
    random_frames: object = False,
) -> SampleSpec:
    """Return what a kind of task requires of the data, see `samples.SampleSpec`.

    Args:
        kind: Kind of task, for errors.
        targets: Names of the targets.
        frames: Number of frames in a sample.
        interval: Seconds between two frames of a sample.
        padding: Frame used before the start of the video: ``first`` or ``current``.
        targets_of: Frames with targets: ``last`` or ``all`` of a clip; ``video``: one target per video; ``sequence``:
            every frame of a whole video.
        random_frames: With ``video``, sample frames at random in training.

    Raises:
        ValueError: A number is out of its range, a clip has no interval, or ``padding`` or ``targets_of`` is unknown.
    """
    between(kind, "frames", frames, 1, MOST_FRAMES, whole=True)
    between(kind, "interval", interval, 0, LONGEST_INTERVAL)
    one_of(kind, "padding", padding, PADDINGS)
    one_of(kind, "targets_of", targets_of, TARGETS_OF)
    true_or_false(kind, "random_frames", random_frames)
    if frames != 1 and not interval and targets_of != "video":
        raise ValueError(f"{kind}: a clip of {frames} frames needs 'interval', the seconds between two of them")
    return SampleSpec(targets, int(frames), float(interval), str(padding), str(targets_of), bool(random_frames))  # type: ignore[call-overload, arg-type]  # checked above


def outputs_of(network: nn.Module, batch: Batch) -> Tensor:
    """Run a network on a batch's images, with its boxes and features where it has any."""
    inputs = [batch["image"], *([batch["boxes"]] if "boxes" in batch else [])]
    maps = [value.float() for name, value in sorted(batch.items()) if name.startswith(FEATURES)]
    return network(*inputs, features=tuple(maps)) if maps else network(*inputs)


def same_frames(outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (N, C, H, W) and targets (N, H, W) of the frames of clips that have both.

    Outputs of clips are (B, T, C, H, W), of the current frame alone (B, C, H, W); targets likewise (B, T, H, W) or
    (B, H, W). All frames count where both have all, else the current one.
    """
    if outputs.dim() == 5 and target.dim() == 4:
        return outputs.flatten(0, 1), target.flatten(0, 1)  # (B, T, ...) -> (B*T, ...)
    return current(outputs, 4), current(target, 3)


def current(values: Tensor, dimensions: int) -> Tensor:
    """Return the current, last frame of clips (B, T, ...), which have one dimension more than pictures."""
    return values[:, -1] if values.dim() > dimensions else values


def last_frame(item: Item) -> Array:
    """Return the frame that a sample's labels belong to: uint8 (H, W, 3)."""
    return item.images[-1]


def last_target(item: Item, name: str) -> Array:
    """Return that frame's target, by which a sample is scored: every labelled frame is once the last one."""
    return of_last_frame(name, item.targets[name])


def checkpoint_notes(
    bundle: str,
    method: str,
    task: Task,
    numbers: Mapping[str, Any],
    *,
    size: tuple[int, int],
    network: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the header of a checkpoint, without which its weights cannot be used.

    Args:
        numbers: The task's, of bundle and job: units of the network's outputs, its clips.
        size: (height, width) of the network's input.
        network: Arguments of the network that are not the bundle's own, see `bundle.Bundle.chosen`.
    """
    card = task.card
    notes = {
        "bundle": bundle,
        "method": method,
        "task": card.kind,
        "outputs": ",".join(card.outputs),
        "height": str(size[0]),
        "width": str(size[1]),
        "frames": str(card.frames),
        "numbers": json.dumps(dict(numbers)),
        **({"network": json.dumps(dict(network))} if network else {}),
    }
    return notes | ({"classes": notes["outputs"]} if card.kind == "segmentation" else {})


class OneOutput:
    """What tasks of one output, without named classes, have in common: a score is a number per metric."""

    metrics: tuple[Metric, ...]
    prompting: Prompting | None = None

    def boxes(self, targets: Mapping[str, Tensor]) -> Tensor:
        """Return no boxes: a task that prompts its network has its own."""
        raise NotImplementedError(f"{type(self).__name__} prompts no network")

    def rows(self, score: dict[str, float]) -> list[dict[str, float]]:
        return [score]

    def summarise(self, scores: Sequence[dict[str, float]]) -> Scores:
        """Return ``{metric: {"mean": mean or None}, ..., "frames": count}``; NaN is not counted.

        Raises ValueError where there are no frames.
        """
        if not scores:
            raise ValueError("no frames to summarise; the split has no frames")
        found: Scores = {}
        for metric in self.metrics:
            known = [score[metric.name] for score in scores if not math.isnan(score[metric.name])]
            found[metric.name] = {"mean": math.fsum(known) / len(known) if known else None}
        return {**found, "frames": len(scores)}

    def per_video(self, scores: Sequence[Any]) -> Mapping[str, Mapping[str, float]]:
        return {}

    def charts(self, scores: Sequence[Any]) -> Mapping[str, Array]:
        return {}

    def visible(self, answer: Answer) -> dict[str, float]:
        return {}
