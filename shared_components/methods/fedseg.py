"""FedSeg: Miao et al., FedSeg: Class-Heterogeneous Federated Learning for Semantic Segmentation, CVPR 2023.

The loss has two parts. BackCE is a cross-entropy whose background includes classes that are absent from the batch.
A contrastive loss between pixels and all sites' class prototypes pulls local features towards the prototypes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.core.aggregators.mean import WeightedMean, in_site_order
from shared_components.core.exchange import Aggregation, Extra, Models, State, StatelessStart, Update
from shared_components.core.losses import IGNORED, shrink_label
from shared_components.core.method import About, Batch, Context, Extras, Local, Method, Requires, Server, Term
from shared_components.core.objectives import as_received
from shared_components.core.partition import Partition, Pieces, Role, everything
from shared_components.core.ranges import AboveZero, Count, FromZero
from shared_components.networks.protocols import TwoPaths, two_paths

PROTOTYPES = "prototypes"
BACKGROUND = 0  # class id of unlabelled structures in every class map
EPSILON = 1e-7
WIDEST = 4096  # maximum number of features of a prototype
LONGEST = 1 + 2**-8  # maximum norm of a prototype: 1, plus the rounding of bfloat16 in messages


def build(
    *, temperature: AboveZero = 0.07, weight: FromZero = 1.0, anchors: Count = 4096, prototype_images: Count = 16
) -> Method:
    """Return FedSeg.

    Args:
        temperature: Temperature of the contrastive loss; 0.07 as released.
        weight: Weight of the contrastive loss; 1 as released, 0 disables it.
        anchors: Number of pixels of a batch in the contrastive loss, sampled with equal numbers per class; 4096 as
            released.
        prototype_images: Number of training frames per round from which a site computes its class prototypes.
    """
    return Method(
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
            idea="For hospitals with different labels: missing classes may be background; class prototypes are shared.",
            objective="cross-entropy whose background includes absent classes; contrast of pixels with all sites' "
            "prototypes",
            aggregator="sample-weighted mean; all prototypes sent to all sites",
            secure_sums="no: the server needs each site's prototypes",
        ),
    )


def background_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Return BackCE: cross-entropy whose background is class 0 and all classes that are absent from the batch.

    Background pixels are scored against the sum of these probabilities, so the loss does not penalise a class that only
    another site labels. Pixels labelled 255 are background if a class is absent; otherwise they are ignored. Takes
    logits (B, C, H, W) and a label (B, H, W) of int64 class ids or 255. Returns the mean of -log(p + 1e-7) over the
    pixels that are not ignored; 0 if there are none.
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
    """Return the contrastive loss between pixels and prototypes of all classes and sites.

    A prototype of the pixel's class has the probability e^s / (e^s + sum of e^n over prototypes n of other classes).
    Other prototypes of the pixel's class are not in the denominator, so that sites that agree do not compete. Features
    (N, D) and prototypes (M, D), one per class and site, are unit vectors; labels (N,) and (M,) are class ids. Returns
    the mean of -log(probability) over the prototypes of a pixel's class, then over pixels with a prototype.
    """
    cosines = features @ prototypes.T / temperature  # (N, D) @ (D, M) -> (N, M)
    own = labels[:, None] == prototype_labels[None]  # (N, M)
    counted = own.any(1)
    if not bool(counted.any()):
        return features.sum() * 0
    others = cosines.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)  # (N, 1)
    losses = F.softplus(others - cosines)  # -log of the probabilities
    each = (losses * own).sum(1)[counted] / own.sum(1)[counted]  # (N, M) -> (counted,): over a class's prototypes
    return each.mean()


def balanced_anchors(labels: Tensor, prototype_labels: Tensor, anchors: int, generator: torch.Generator) -> Tensor:
    """Return indices of the same number of random pixels from each class that has a prototype, ordered by class.

    Labels (N,) and prototype_labels (M,) are class ids. Each class gets an equal share of ``anchors``, rounded down, at
    least one. The CPU generator is not used for a class that has no more pixels than its share.
    """
    classes = [c for c in labels.unique().tolist() if bool((prototype_labels == c).any())]
    share = max(1, anchors // max(len(classes), 1))
    chosen = [torch.zeros(0, dtype=torch.long, device=labels.device)]
    for c in classes:
        pixels = torch.nonzero(labels == c)[:, 0]  # (n, 1) -> (n,)
        if len(pixels) > share:
            pixels = pixels[torch.randperm(len(pixels), generator=generator)[:share].to(pixels.device)]
        chosen.append(pixels)
    return torch.cat(chosen)


@dataclass(frozen=True)
class BackgroundAndContrast:
    """Objective: BackCE and, from the second round on, the contrastive loss with the prototypes of all sites."""

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
        # prototypes come from the previous round: a round has one message each way
        contrast = pixel_contrast(pixels[chosen], labels[chosen], prototypes, classes, self.temperature)
        return [Term("segmentation", background_cross_entropy(logits, label)), Term("contrast", self.weight * contrast)]


def flat_pixels(features: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit features (N, D) and labels (N,) of labelled pixels; the label is resized by nearest neighbour."""
    _B, D, H, W = features.shape
    pixels = F.normalize(features.float(), dim=1).permute(0, 2, 3, 1).reshape(-1, D)  # (B, D, H, W) -> (B*H*W, D)
    labels = shrink_label(label, (H, W)).reshape(-1)  # (B, H, W) -> (B*H*W,)
    known = labels != IGNORED
    return pixels[known], labels[known]


def measure_prototypes(network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition) -> Extras:
    """Return the received model's mean feature of each class, (C, D), and whether the class occurs, (C,)."""
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
    """Raise ValueError unless a message contains one prototype per class of at most unit length, and its presence.

    Prototypes have the input channels of the last layer; if that layer is not shared, at most 4096 channels.
    """
    if set(group) != {"mean", "present"}:
        raise ValueError(f"it contains {sorted(group)}; prototypes are 'mean' and 'present'")
    mean, present = group["mean"], group["present"]
    shape = tuple(shared["head_global.weight"].shape[:2]) if "head_global.weight" in shared else tuple(mean.shape)
    if mean.dim() != 2 or not len(mean) or mean.shape[1] > WIDEST or mean.shape != shape or present.shape != shape[:1]:
        raise ValueError(f"mean is {tuple(mean.shape)}, present {tuple(present.shape)}; expected {shape}, {shape[:1]}")
    if not bool((longest := torch.linalg.vector_norm(mean, dim=1).max()) <= LONGEST):
        raise ValueError(f"it has a prototype of length {longest:.4g}; the length must be 1 or 0")


def shapes_of_prototypes(shared: Pieces, state: Pieces) -> dict[str, tuple[int, ...]]:
    """Return the shapes of prototypes, which have the input channels of the last layer."""
    classes, width = state["head_global.weight"].shape[:2]
    return {"mean": (classes, width), "present": (classes,)}


def gathered(group: Pieces) -> tuple[Tensor, Tensor]:
    """Return all sites' prototypes (M, D) and their class ids (M,), without absent classes."""
    rows, classes = [], []
    for number in sorted({int(name.partition("/")[0]) for name in group}):
        present = group[f"{number}/present"] > 0  # (C,)
        rows.append(group[f"{number}/mean"][present])
        classes.append(torch.nonzero(present)[:, 0])
    return torch.cat(rows), torch.cat(classes)


@dataclass(frozen=True)
class WithPrototypes(StatelessStart):
    """Average as FedAvg, and send every site's prototypes, numbered in site order, to all sites."""

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = in_site_order(updates)
        result = WeightedMean().apply(state, partition, models, updates)
        sent = {
            f"{number}/{name}": value
            for number, update in enumerate(updates)
            for name, value in update.extras[PROTOTYPES].items()
        }
        return Aggregation(state, Models(result.models.shared, models.mixed, {PROTOTYPES: sent}))
