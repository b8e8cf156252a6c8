"""Compute the losses and the style mixing of PFedSIS, as pure functions on tensors.

Equation numbers refer to the paper (IEEE TBME 2025, doi 10.1109/TBME.2025.3526667). The paper does not specify the
segmentation loss, so its two terms and their weights follow the released code. All losses are computed in float32, also
under autocast. Pixels with the label `IGNORED` never count.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shared_components.core.recorded_steps import recording
from shared_components.data.files.classes import IGNORED

IOU_EPSILON = 1e-15  # as released; a class that is absent in label and prediction has IoU 1
DICE_SMOOTHING = 1e-5  # as in MONAI; a class that is absent in label and prediction has Dice 1
STYLE_EPSILON = 1e-6  # minimum standard deviation in the denominator of Eq. (11)
STYLE_CONCENTRATION = 0.1  # Beta(0.1, 0.1) below Eq. (10)


def segmentation_loss(
    logits: Tensor,
    label: Tensor,
    *,
    cross_entropy: float = 0.7,
    log_iou: float = 0.3,
    dice: float = 0.0,
    balance: float = 0.0,
) -> Tensor:
    """Return `cross_entropy * CE - log_iou * log(mean soft IoU) + dice * (1 - mean soft Dice)`, a scalar.

    Both means are over classes and images; cross-entropy is in nats per pixel. Cross-entropy and Dice are Eq. (9) of
    FedST (IEEE TMI 2026). Logits are (B, C, H, W) of any float type; labels are (B, H, W) int64 class ids in 0..C-1, or
    `IGNORED`. The background counts as a class. With ``balance``, the cross-entropy of a pixel has the weight (share of
    its class in the batch)^-balance: 0 weights all pixels equally, as released; 1 weights all classes equally. Raises
    ValueError if the shapes do not match.
    """
    _check_shapes(logits, label)
    logits = logits.float()
    true = _one_hot(label, logits.shape[1])
    probability = logits.softmax(dim=1)
    if _any(unlabelled := label == IGNORED):
        probability = probability * ~unlabelled[:, None]  # (B, C, H, W) * (B, 1, H, W)
    intersection = (probability * true).sum(dim=(2, 3))  # (B, C)
    both = probability.sum(dim=(2, 3)) + true.sum(dim=(2, 3))
    iou = (intersection + IOU_EPSILON) / (both - intersection + IOU_EPSILON)
    weight = None if balance == 0 else _class_weights(true, balance)
    # IoU and Dice are means over (B, C)
    loss = cross_entropy * pixel_cross_entropy(logits, label, weight) - log_iou * iou.mean().log()
    if dice:
        loss = loss + dice * (1 - ((2 * intersection + DICE_SMOOTHING) / (both + DICE_SMOOTHING)).mean())
    return loss


OBJECT_WEIGHT = 2.0  # weight of an object's pixels in the released binary cross-entropy


def objects_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over the classes without the background, as released by SurgFed.

    Logits are (B, C, H, W); channel 0, the background, does not count. Labels are (B, H, W) int64 class ids in 0..C-1,
    or `IGNORED`. An object's pixels have the weight `OBJECT_WEIGHT`; an absent object is all background. Raises
    ValueError if the shapes do not match.
    """
    _check_shapes(logits, label)
    own = logits[:, 1:].float()
    weight = torch.full((), OBJECT_WEIGHT, device=own.device)
    true = _one_hot(label, logits.shape[1])[:, 1:]
    losses = F.binary_cross_entropy_with_logits(own, true, pos_weight=weight, reduction="none")
    return labelled_mean(losses.mean(1), label)


def without_unprompted(label: Tensor, boxes: Tensor) -> Tensor:
    """Return the label (B, H, W) or (B, T, H, W) in which classes without a box in their clip become background (0).

    Ids are int64 in 0..N, or `IGNORED`. Boxes are (B, T, N, 4) for the classes 1..N; NaN if there is no box.
    """
    B, _T, N, _ = boxes.shape
    prompted = ~boxes.isnan().any(3).all(1)  # (B, N)
    ids = torch.arange(1, N + 1, device=label.device)
    new = torch.where(prompted.to(label.device), ids, 0)  # (B, N): class 1..N -> new class id
    of_class = torch.cat([new.new_zeros(B, 1), new], 1)  # (B, N + 1)
    places = label.clamp(0, N).flatten(1)  # (B, ...) -> (B, pixels)
    replaced = of_class.gather(1, places).view_as(label)
    return torch.where(label == IGNORED, label, replaced)


def pixel_cross_entropy(logits: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of logits (B, C, H, W) over labelled pixels (B, H, W), or 0 without them."""
    if recording():
        total = F.cross_entropy(logits, label, weight, ignore_index=IGNORED, reduction="sum")
        counts = (label != IGNORED) if weight is None else weight[label.clamp_max(len(weight) - 1)] * (label != IGNORED)
        return total / counts.sum().clamp_min(1e-12)
    if not _any(label == IGNORED):
        return F.cross_entropy(logits, label, weight)
    if not _any(label != IGNORED):
        return logits.sum() * 0
    return F.cross_entropy(logits, label, weight, ignore_index=IGNORED)


def labelled_mean(values: Tensor, label: Tensor) -> Tensor:
    """Return the mean of values (B, H, W) over the labelled pixels, or 0 without labelled pixels."""
    known = label != IGNORED
    if not recording() and bool(known.all()):
        return values.mean()
    return (values * known).sum() / known.sum().clamp_min(1)


def _class_weights(true: Tensor, balance: float) -> Tensor:
    """Return class weights (C,); an absent class has the weight of a class with one pixel."""
    count = true.sum(dim=(0, 2, 3)).clamp(min=1)
    return (count / count.sum()) ** -balance


def appearance_loss(restored: Tensor, image: Tensor) -> Tensor:
    """Return Eq. (5): the mean squared error of the restored image (B, 3, H, W); ValueError if shapes differ."""
    if restored.shape != image.shape:
        raise ValueError(f"restored image is {tuple(restored.shape)}, but the image is {tuple(image.shape)}")
    return F.mse_loss(restored.float(), image.float())


def consistency_loss(global_logits: Tensor, label: Tensor) -> Tensor:
    """Return Eq. (12): the mean squared error of the global path's probabilities over pixels and classes, in [0, 2 /
    C].

    Logits (B, C, H, W) are for the style-distorted image, the label (B, H, W) is for the undistorted image: int64 class
    ids in 0..C-1, or `IGNORED`. Raises ValueError if the shapes do not match.
    """
    _check_shapes(global_logits, label)
    probability = global_logits.float().softmax(dim=1)
    true = _one_hot(label, probability.shape[1])
    if not _any(label == IGNORED):
        return F.mse_loss(probability, true)
    return labelled_mean((probability - true).square().mean(1), label)


def mix_style(image: Tensor, mean: Tensor, std: Tensor, own: int, weights: Tensor) -> Tensor:
    """Apply a convex mixture of the sites' styles to each image, Eqs (10) and (11).

    Images are (B, 3, H, W) in [0, 1]. ``mean`` and ``std`` are (K, 3), the channel means and standard deviations of
    each site, and ``own`` is this site's row. ``weights`` are (B, K), rows not negative with sum 1, as from
    `sample_style_weights`. The denominator is at least `STYLE_EPSILON`, so that the result is finite for constant
    channels. Values may leave [0, 1], as in the paper. If `own` has all the weight, the image is unchanged. Raises
    ValueError if the shapes do not match, or `own` is not a row.
    """
    B, C, _, _ = image.shape
    K = mean.shape[0]
    if mean.shape != (K, C) or std.shape != (K, C) or weights.shape != (B, K):
        raise ValueError(
            f"image {tuple(image.shape)}, mean {tuple(mean.shape)}, std {tuple(std.shape)} and weights "
            f"{tuple(weights.shape)} do not match; expected mean and std (K, {C}), weights ({B}, K)"
        )
    if not 0 <= own < K:
        raise ValueError(f"own site {own} is not among the {K} sites of the style memory (0..{K - 1})")
    mean, std, weights = (tensor.to(image) for tensor in (mean, std, weights))
    # Eq. (10): (B, K, 1) * (K, 3) -> (B, 3); product and sum, because autocast would round a matrix product
    beta, gamma = ((weights[:, :, None] * style).sum(dim=1) for style in (mean, std))
    scale = gamma / std[own].clamp_min(STYLE_EPSILON)  # (B, 3)
    # Eq. (11) with per-image, per-channel scalars: (B, 3) -> (B, 3, 1, 1)
    return (image - mean[own, :, None, None]) * scale[:, :, None, None] + beta[:, :, None, None]


def sample_style_weights(batch: int, sites: int, generator: torch.Generator) -> Tensor:
    """Sample the lambdas of Eq. (10): one Beta(0.1, 0.1) value per image and site, divided by their sum.

    The released code supports three sites; this is a generalisation to any number. A single site has weight 1. Returns
    (batch, sites) float32 on the generator's device; rows sum to 1.
    """
    draws = _sample_beta(batch * sites, generator).view(batch, sites)  # (B * K,) -> (B, K)
    return (draws / draws.sum(dim=1, keepdim=True)).float()


def _sample_beta(count: int, generator: torch.Generator) -> Tensor:
    """Sample (count,) float64 values of Beta(0.1, 0.1) by Johnk's method (1964).

    torch.distributions takes no generator, and ratios of two Gamma(0.1) draws underflow to 0 / 0 in float32. This
    method does not underflow: the smallest uniform is 2**-53, its tenth power 1e-160. 98.6% of the pairs are accepted.
    """
    accepted = torch.empty(0, dtype=torch.float64, device=generator.device)
    while len(accepted) < count:
        uniform = torch.rand(2, count, dtype=torch.float64, device=generator.device, generator=generator)
        x, y = (1.0 - uniform) ** (1.0 / STYLE_CONCENTRATION)  # 1 - [0, 1) excludes 0
        accepted = torch.cat([accepted, (x / (x + y))[x + y <= 1.0]])
    return accepted[:count]


def shrink_label(label: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Resize class ids (B, H, W) to a feature map's size (B, h, w), int64, by nearest neighbour."""
    # (B, H, W) -> (B, 1, H, W) -> (B, 1, h, w) -> (B, h, w)
    return F.interpolate(label[:, None].float(), size=tuple(size), mode="nearest")[:, 0].long()


def _any(mask: Tensor) -> bool:
    """Return whether anything is true; True while a step is recorded, when values cannot be read."""
    return recording() or bool(mask.any())


def _one_hot(label: Tensor, classes: int) -> Tensor:
    ids = torch.arange(classes, device=label.device)
    return (label[:, None] == ids[None, :, None, None]).float()  # (B, 1, H, W) with (1, C, 1, 1) -> (B, C, H, W)


def _check_shapes(logits: Tensor, label: Tensor) -> None:
    B, _, H, W = logits.shape
    if label.shape != (B, H, W):
        raise ValueError(f"logits {tuple(logits.shape)} do not fit label {tuple(label.shape)}; expected {(B, H, W)}")
