"""Training objectives of a pre-training: the task itself or, for a network with box prompts, object tracking and depth.

With 0 objects, the image encoder of such a network learns the class of each pixel, since it learns slowly from boxes.
"""

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

DEPTH_EVERY = 4  # one of so many steps trains depth
JITTER = 0.1  # maximum shift of a box's side, as a fraction of its length


@dataclass(frozen=True)
class Following:
    """Segmentation prompted by a randomly shifted box in the first frame that shows an object."""

    task: Task
    objects: int

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add "boxes" (B, T, N, 4) to a batch with labels (B, T, H, W), or (B, H, W) for single frames."""
        H, W = batch["image"].shape[-2:]
        boxes = first_boxes(class_boxes(of_clips(batch["label"]), self.objects + 1))
        return {**batch, "boxes": jittered(boxes, generator, amount=JITTER, size=(H, W))}

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        return self.task.predict(network, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.task.loss(outputs, batch)


class PixelClasses(nn.Module):
    """Image encoder of a prompted network with an extra layer that classifies each pixel."""

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
    """Objective of `PixelClasses`, with the weights of `losses.segmentation_loss`."""

    weights: Mapping[str, float]

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        return network(batch["image"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Compare logits (B*T, C, H/s, W/s) with the labels at the centres of cells of s x s pixels."""
        H, W = batch["label"].shape[-2:]
        cell = H // outputs.shape[-2]
        label = batch["label"].reshape(-1, H, W)[:, cell // 2 :: cell, cell // 2 :: cell]
        return segmentation_loss(outputs, label, **self.weights)


Lesson = tuple[Task | Following | Seeing, nn.Module]


def first_boxes(boxes: Tensor) -> Tensor:
    """Replace all but the first box of each object in boxes (B, T, N, 4) by NaN."""
    seen = ~boxes.isnan().any(-1)  # (B, T, N)
    return boxes.where((seen & (seen.cumsum(1) == 1))[..., None], torch.nan)


def lessons_for(bundle: Bundle, task: Task, network: nn.Module, *, objects: int) -> list[Lesson]:
    """List the objectives of consecutive steps with networks that share their tensors.

    Raise ValueError if the task of a prompted network is not segmentation.
    """
    if task.prompting is None:
        return [(task, network)]
    if task.card.kind != "segmentation":
        raise ValueError(
            f"bundle {bundle.name}: a network with box prompts learns {task.card.kind} along with segmentation; set "
            "--task segmentation"
        )
    lessons: list[Lesson] = [(Following(task, objects), network)]
    if not objects:
        weights = task.weights  # type: ignore[attr-defined]
        lessons = [(Seeing(weights), PixelClasses(network, len(CLASSES) + len(THINGS)))]
    if (depth := _depth_of(bundle)) is not None:
        lessons = lessons * (DEPTH_EVERY - 1) + [(depth, network.sharing(depth.channels))]  # type: ignore[operator]
    return lessons


def layers_of(lessons: Sequence[Lesson]) -> list[nn.Module]:
    """List the layers that train with the network and are dropped at the end."""
    return [network.layer for _, network in lessons[:1] if isinstance(network, PixelClasses)]


def spec_of(bundle: Bundle, task: Task, *, clip: int) -> SampleSpec:
    """Return the samples to render for all objectives; only prompted networks need clips of `clip` frames."""
    if task.prompting is None:
        return task.spec
    targets = ("label",) if _depth_of(bundle) is None else ("label", "depth")
    return replace(task.spec, targets=targets, frames=clip)


def _depth_of(bundle: Bundle) -> Task | None:
    if "depth" not in bundle.tasks:
        return None
    return make_task("depth", bundle.tasks["depth"], classes=CLASSES)
