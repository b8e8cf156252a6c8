"""Training objectives of a pre-training: the task itself or, for a network with box prompts, object tracking and depth.

With 0 objects, the image encoder of such a network learns the class of every pixel, since boxes teach it slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.core.bundle import Bundle
from shared_components.core.losses import segmentation_loss
from shared_components.core.prompts import class_boxes, jittered, of_clips
from shared_components.core.task import Batch, Task, make_task
from shared_components.data.samples import SampleSpec
from shared_components.scenes.anatomy import THINGS
from shared_components.weights.pretraining.plan import CLASSES, SMALLEST

DEPTH_EVERY = 4  # steps: one of them learns depth
JITTER = 0.1  # of a box's side: by how much each of its sides is moved at most


@dataclass(frozen=True)
class Following:
    """A prompted segmentation whose objects have a box in the first frame that shows them, moved at random."""

    task: Task
    objects: int

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add "boxes" (B, T, N, 4) to a batch with labels (B, T, H, W), or (B, H, W) of single frames."""
        image = batch["image"]
        found = class_boxes(of_clips(batch["label"]), self.objects + 1)
        boxes = jittered(at_first_sight(found), generator, amount=JITTER, size=(image.shape[-2], image.shape[-1]))
        return {**batch, "boxes": boxes}

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        return self.task.predict(network, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.task.loss(outputs, batch)


class PixelClasses(nn.Module):
    """A prompted network's image encoder under a layer of its own that tells every pixel's class."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self._encode: Callable[[Tensor], Sequence[Tensor]] = network.encode  # type: ignore[assignment]
        channels = [maps.shape[2] for maps in self._encode(torch.zeros(1, 1, 3, SMALLEST, SMALLEST))]
        self.layer = nn.Conv2d(sum(channels), classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, H, W) or (B, T, 3, H, W) in 0..1 -> logits (B*T, C, H/4, W/4)."""
        clip = image if image.dim() == 5 else image[:, None]
        fine, *coarser = (maps.flatten(0, 1) for maps in self._encode(clip))  # (B, T, C, h, w) -> (B*T, C, h, w)
        larger = [F.interpolate(maps, fine.shape[-2:], mode="bilinear") for maps in coarser]
        return self.layer(torch.cat([fine, *larger], 1))


@dataclass(frozen=True)
class Seeing:
    """The class of every pixel, for `PixelClasses`; the weights are those of `losses.segmentation_loss`."""

    weights: Mapping[str, float]

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        return network(batch["image"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compare logits (B*T, C, H/s, W/s) with the labels in the middle of their cells of s x s pixels."""
        H, W = batch["label"].shape[-2:]
        cell = H // outputs.shape[-2]
        label = batch["label"].reshape(-1, H, W)[:, cell // 2 :: cell, cell // 2 :: cell]
        return segmentation_loss(outputs, label, **self.weights)


Lesson = tuple[Task | Following | Seeing, nn.Module]


def at_first_sight(boxes: Tensor) -> Tensor:
    """Keep of boxes (B, T, N, 4) the first of each object; NaN stands for none."""
    seen = ~boxes.isnan().any(-1)  # (B, T, N)
    return boxes.where((seen & (seen.cumsum(1) == 1))[..., None], torch.nan)


def lessons_for(bundle: Bundle, task: Task, network: nn.Module, *, objects: int) -> list[Lesson]:
    """List what is learnt in turn and by which network; all networks have the same tensors, whatever the objects.

    Raises:
        ValueError: The task is depth by a prompted network, which learns it along with segmentation.
    """
    if task.prompting is None:
        return [(task, network)]
    if task.card.kind != "segmentation":
        raise ValueError(
            f"bundle {bundle.name}: its network is prompted with boxes and learns {task.card.kind} along with "
            "segmentation; give --task segmentation"
        )
    lessons: list[Lesson] = [(Following(task, objects), network)]
    if not objects:
        weights = task.weights  # type: ignore[attr-defined]
        lessons = [(Seeing(weights), PixelClasses(network, len(CLASSES) + len(THINGS)))]
    if (depth := _depth_of(bundle)) is not None:
        lessons = lessons * (DEPTH_EVERY - 1) + [(depth, network.sharing(depth.channels))]  # type: ignore[operator]
    return lessons


def layers_of(lessons: Sequence[Lesson]) -> list[nn.Module]:
    """List the layers that learn beside the network and are not kept."""
    return [network.layer for _, network in lessons[:1] if isinstance(network, PixelClasses)]


def spec_of(bundle: Bundle, task: Task, *, clip: int) -> SampleSpec:
    """Return the samples to render: what all lessons need, in clips of that many frames where they follow objects."""
    if task.prompting is None:
        return task.spec
    targets = ("label",) if _depth_of(bundle) is None else ("label", "depth")
    return replace(task.spec, targets=targets, frames=clip)


def _depth_of(bundle: Bundle) -> Task | None:
    if "depth" not in bundle.tasks:
        return None
    return make_task("depth", bundle.tasks["depth"], classes=CLASSES)
