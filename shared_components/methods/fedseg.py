"""FedSeg: Miao et al., FedSeg: Class-Heterogeneous Federated Learning for Semantic Segmentation, CVPR 2023.

Two parts: a cross-entropy whose background includes the classes that a batch does not show (BackCE), and a contrast of
pixels with all sites' class prototypes, which pulls local features towards the common ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.common.arguments import between
from shared_components.core.aggregators.mean import WeightedMean, in_site_order
from shared_components.core.losses import IGNORED, shrink_label
from shared_components.core.method import (
    About,
    Aggregation,
    Batch,
    Context,
    Extras,
    Local,
    Method,
    Models,
    Requires,
    Server,
    State,
    StatelessStart,
    Term,
    Update,
)
from shared_components.core.objectives import as_received
from shared_components.core.partition import Extra, Partition, Pieces, Role, everything
from shared_components.networks.protocols import TwoPaths, two_paths

PROTOTYPES = "prototypes"
BACKGROUND = 0  # the class of every class map that holds what a site has not labelled
EPSILON = 1e-7
WIDEST = 4096  # a prototype is a class's mean feature, not a map of the frame
LONGEST = 1 + 2**-8  # of unit length, but for bfloat16's rounding on the wire


def build(*, temperature: float = 0.07, weight: float = 1.0, anchors: int = 4096, prototype_images: int = 16) -> Method:
    """Return FedSeg.

    Args:
        temperature: Of the contrast; 0.07 as released.
        weight: Of the contrast in the loss; 1 as released, 0 leaves BackCE alone.
        anchors: Pixels of a batch that are contrasted, sampled in each step in equal numbers per class; 4096 as
            released.
        prototype_images: Training frames from which a site computes its class prototypes in each round.
    """
    between("fedseg", "temperature", temperature, 0, ends="(]")
    between("fedseg", "weight", weight, 0)
    between("fedseg", "anchors", anchors, 1, whole=True)
    between("fedseg", "prototype_images", prototype_images, 1, whole=True)
    return Method(
        name="fedseg",
        partition=everything(Role.GLOBAL),
        server=Server(aggregator=WithPrototypes()),
        local=Local(
            objective=BackgroundAndContrast(temperature, weight, anchors),
            measure=measure_prototypes,
            measure_images=prototype_images,
            extras={PROTOTYPES: Extra(check_prototypes, shapes_of_prototypes)},
        ),
        requires=Requires(kinds=("segmentation",), network=TwoPaths),
        about=About(
            label="FedSeg",
            paper="Miao et al., CVPR 2023",
            idea="For hospitals that label different classes: unlabelled classes may appear in the "
            "background, and all hospitals share class prototypes.",
            objective="cross-entropy whose background includes absent classes; contrast of pixels with all sites' "
            "prototypes",
            aggregator="sample-weighted mean; all prototypes sent to all sites",
            secure_sums="no: the server needs each site's prototypes",
        ),
    )


def background_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """BackCE: the background of a batch is class 0 together with all classes that the batch does not show.

    A pixel labelled background is scored against the sum of their probabilities, which does not penalise a class that
    another site labels and this batch counts as background. Pixels labelled 255 are background, too, if a class is
    absent, and are ignored otherwise.

    Of logits (B, C, H, W) and a label (B, H, W), int64 class ids or 255, it is the mean of -log(p + 1e-7) over the
    pixels that count; 0 if there are none.
    """
    absent = [c for c in range(logits.shape[1]) if not bool((label == c).any())]
    probability = logits.float().softmax(1)
    background = probability[:, sorted({BACKGROUND, *absent})].sum(1, keepdim=True)  # (B, 1, H, W)
    channels = torch.cat([background, probability[:, BACKGROUND + 1 :]], 1)  # (B, C, H, W); no label is absent
    if absent:
        label = torch.where(label == IGNORED, BACKGROUND, label)
    if not bool((label != IGNORED).any()):
        return logits.sum() * 0
    return F.nll_loss((channels + EPSILON).log(), label, ignore_index=IGNORED)


def pixel_contrast(
    features: Tensor, labels: Tensor, prototypes: Tensor, prototype_labels: Tensor, temperature: float
) -> Tensor:
    """Contrast pixels with prototypes: each prototype of a pixel's own class against all those of other classes.

    The share of a prototype is e^s / (e^s + sum of e^n over the prototypes n of other classes); other prototypes of the
    pixel's class are not in its denominator, or sites that agree would compete with each other.

    Features (N, D) and prototypes (M, D), one per class and site, are of length 1; labels, (N,) and (M,), are class
    ids; the temperature divides the cosines. Returns the mean of -log of the shares over the pixels whose class has a
    prototype, and over these prototypes; near 0 for perfect features and prototypes, however many sites there are.
    """
    cosines = features @ prototypes.T / temperature  # (N, D) @ (D, M) -> (N, M)
    own = labels[:, None] == prototype_labels[None]  # (N, M)
    counted = own.any(1)
    if not bool(counted.any()):
        return features.sum() * 0
    others = cosines.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)  # (N, 1)
    losses = F.softplus(others - cosines)  # -log of the shares
    each = (losses * own).sum(1)[counted] / own.sum(1)[counted]  # (N, M) -> (counted,): over a class's prototypes
    return each.mean()


def balanced_anchors(labels: Tensor, prototype_labels: Tensor, anchors: int, generator: torch.Generator) -> Tensor:
    """Sample pixels to contrast, as many of a rare class as of a frequent one, if it has them.

    Labels (N,) and prototype_labels (M,) are class ids; pixels of other classes than the prototypes' are not sampled.
    Each class has an equal share of ``anchors``, rounded down, at least one; the generator, on the CPU, is not used for
    a class with no more pixels than that. Returns indices into ``labels``, class after class.
    """
    classes = [c for c in labels.unique().tolist() if bool((prototype_labels == c).any())]
    share = max(1, anchors // max(len(classes), 1))
    chosen = [torch.zeros(0, dtype=torch.long, device=labels.device)]
    for c in classes:
        found = torch.nonzero(labels == c)[:, 0]  # (n, 1) -> (n,)
        if len(found) > share:
            found = found[torch.randperm(len(found), generator=generator)[:share].to(found.device)]
        chosen.append(found)
    return torch.cat(chosen)


@dataclass(frozen=True)
class BackgroundAndContrast:
    """BackCE, and from the second round on the contrast with the prototypes of all sites."""

    temperature: float
    weight: float
    anchors: int

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        image, label = batch["image"], batch["label"]
        if PROTOTYPES not in context.broadcast or self.weight == 0:
            return [Term("segmentation", background_cross_entropy(network(image), label))]
        logits, features = two_paths(network, "fedseg").forward_features(image)
        pixels, labels = flat_pixels(features, label)
        prototypes, classes = (value.to(pixels.device) for value in gathered(context.broadcast[PROTOTYPES]))
        chosen = balanced_anchors(labels, classes, self.anchors, context.generator)
        # prototypes are one round old: a round is one message each way
        contrast = pixel_contrast(pixels[chosen], labels[chosen], prototypes, classes, self.temperature)
        return [Term("segmentation", background_cross_entropy(logits, label)), Term("contrast", self.weight * contrast)]


def flat_pixels(features: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return features (N, D) of length 1 and labels (N,), resized to the map by nearest neighbour, without 255."""
    _B, D, H, W = features.shape
    pixels = F.normalize(features.float(), dim=1).permute(0, 2, 3, 1).reshape(-1, D)  # (B, D, H, W) -> (B*H*W, D)
    labels = shrink_label(label, (H, W)).reshape(-1)  # (B, H, W) -> (B*H*W,)
    known = labels != IGNORED
    return pixels[known], labels[known]


def measure_prototypes(network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition) -> Extras:
    """Return each class's mean feature in the received model, (C, D), and which classes the frames show, (C,)."""
    received = two_paths(as_received(network, context, partition), "fedseg")
    sums, counts = torch.zeros(0), torch.zeros(0)
    for batch in batches:
        with torch.no_grad():
            logits, features = received.forward_features(batch["image"])
        pixels, labels = flat_pixels(features, batch["label"])
        if not len(sums):
            sums, counts = torch.zeros(logits.shape[1], pixels.shape[1]), torch.zeros(logits.shape[1])
        sums.index_add_(0, labels.cpu(), pixels.cpu())
        counts += torch.bincount(labels.cpu(), minlength=len(counts))
    means = F.normalize(sums / counts.clamp_min(1)[:, None], dim=1)  # (C, D) / (C, 1)
    return {PROTOTYPES: {"mean": means, "present": (counts > 0).float()}}


def check_prototypes(group: Pieces, shared: Pieces) -> None:
    """Refuse anything but one vector per class, of length 1 at most, and whether the frames show it: ValueError.

    Vectors are as wide as the last layer's input; of a layer that is not shared, at most 4096 numbers.
    """
    if set(group) != {"mean", "present"}:
        raise ValueError(f"it holds {sorted(group)}; prototypes are 'mean' and 'present'")
    mean, present = group["mean"], group["present"]
    due = tuple(shared["head_global.weight"].shape[:2]) if "head_global.weight" in shared else tuple(mean.shape)
    if mean.dim() != 2 or not len(mean) or mean.shape[1] > WIDEST or mean.shape != due or present.shape != due[:1]:
        raise ValueError(f"mean is {tuple(mean.shape)} and present {tuple(present.shape)}; {due} and {due[:1]} are due")
    if not bool((longest := torch.linalg.vector_norm(mean, dim=1).max()) <= LONGEST):
        raise ValueError(f"it has a prototype of length {longest:.4g}; each is of length 1 or 0")


def shapes_of_prototypes(shared: Pieces, state: Pieces) -> dict[str, tuple[int, ...]]:
    """Return the shapes of prototypes: a class's mean feature has the input channels of the last layer."""
    classes, width = state["head_global.weight"].shape[:2]
    return {"mean": (classes, width), "present": (classes,)}


def gathered(group: Pieces) -> tuple[Tensor, Tensor]:
    """Return all sites' prototypes (M, D) and their classes (M,), without absent classes."""
    rows, classes = [], []
    for number in sorted({int(name.partition("/")[0]) for name in group}):
        present = group[f"{number}/present"] > 0  # (C,)
        rows.append(group[f"{number}/mean"][present])
        classes.append(torch.nonzero(present)[:, 0])
    return torch.cat(rows), torch.cat(classes)


@dataclass(frozen=True)
class WithPrototypes(StatelessStart):
    """FedAvg's mean, and every site's prototypes, numbered in the order of the sites, for all sites' next round."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = in_site_order(updates)
        result = WeightedMean().apply(state, partition, models, updates)
        sent = {
            f"{number}/{name}": value
            for number, update in enumerate(updates)
            for name, value in update.extras[PROTOTYPES].items()
        }
        return Aggregation(state, Models(result.models.shared, models.mixed, {PROTOTYPES: sent}))
