"""SERQ's equations (Fang et al., Section 3.3), their objectives, and the features that they compare.

:mod:`shared_components.core.serq` uses them, and states what of them is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared_components.core.method import Batch, Context, Term
from shared_components.networks.protocols import encodes

WINDOW = 0.1  # share of a batch in the mean of F_pre that Eq. 11 compares: some twenty batches count; ours


# ---- the equations


def moving_average(average: Tensor | None, current: Tensor, *, share: float) -> Tensor:
    """Return the running mean map, Eq. 10: alpha Fbar_(r-1) + (1 - alpha) F_r.

    What is averaged is, ours, the mean over the round's frames, so that frames are compared with frames.

    Args:
        average: Fbar_(r-1), (C, h, w); None in the first round, whose mean is the current one.
        current: Mean over the round's frames of the global model's representations, (C, h, w).
        share: alpha.
    """
    return current if average is None else share * average.to(current) + (1 - share) * current


def descriptor_distance(mean: Tensor, drawn: Tensor, descriptor: Tensor, average: Tensor) -> Tensor:
    """Return the distance in Eq. 11, ||E F_pre - D - Fbar||^2 / N, of the value of a mean and the gradient of a batch.

    With the mean of a batch of B frames in place of E F_pre, as the equation can be read, the distance would also hold
    a B-th of the features' variance, and to minimise it would flatten them.

    Args:
        mean: E F_pre over frames other than the batch's, (C, h, w).
        drawn: F_pre of a batch, (B, C, h, w), whose mean the gradient goes through.
        descriptor: D, (C, h, w), of N elements.
        average: Fbar, (C, h, w).
    """
    of_batch = drawn.mean(0)  # (B, C, h, w) -> (C, h, w)
    expected = mean + (of_batch - of_batch.detach())  # the value of E F_pre, the gradient of the batch's mean
    return (expected - descriptor - average).square().mean()


def representation_distance(features: Tensor, pretrained: Tensor, descriptor: Tensor) -> Tensor:
    """Return the distance in Eq. 12, the mean over frames of ||F_g(x_b) - (F_pre(x_b) - D)||^2 / N.

    Args:
        features: F_g of a batch, (B, C, h, w).
        pretrained: F_pre of the same frames, (B, C, h, w).
        descriptor: D, (C, h, w), of N elements.
    """
    return (features - (pretrained - descriptor)).square().mean()


def moved(before: Tensor, after: Tensor) -> float:
    """Return ||after - before|| / ||after||; 0 where both are zero."""
    length = float(after.norm())
    return float((after - before).norm()) / length if length else float(before.norm() > 0)


# ---- the objectives


@dataclass(frozen=True)
class Segmentation:
    """L_seg: the task's loss of the prediction from a frame alone, as a term of this name."""

    name: str

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        return self.with_features(network, batch, context)[0]

    def with_features(self, network: nn.Module, batch: Batch, context: Context) -> tuple[list[Term], Tensor]:
        """Return the term, and the representations (B, C, h, w) in float32."""
        maps = encodes(network, "serq").encoder(last_frame(batch))
        loss = context.task.loss(encodes(network, "serq").decode(maps), batch)
        if not loss.requires_grad:
            raise ValueError(
                "serq: training.fixed names all that predicts from a frame alone, so that the server has nothing to "
                "train; name fewer parts"
            )
        return [Term(self.name, loss)], maps[-1].float()


@dataclass
class Explicit:
    """Eq. 11, of the pre-trained network and D; the global model's mean is fixed.

    With each batch D takes a step of gradient descent of the learning rate `rate` N / 2: with F_pre and Fbar fixed it
    comes nearer to its optimum, mean F_pre - Fbar, by that share of the way.

    Attributes:
        average: Fbar, (C, h, w).
        weight: lambda_1.
        rate: Of D, 0 to 1.
        mean: Running mean of F_pre, (C, h, w).
        descriptor: D, (C, h, w).
    """

    average: Tensor
    weight: float
    rate: float
    mean: Tensor
    descriptor: Tensor

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms, features = Segmentation("pretrained segmentation").with_features(network, batch, context)
        if self.weight == 0:
            return terms
        distance = descriptor_distance(self.mean, features, self.descriptor, self.average)
        # E F_pre follows the batches, and D goes down the gradient of Eq. 11
        self.mean = self.mean.lerp(features.detach().mean(0), WINDOW)
        self.descriptor = self.descriptor + self.rate * (self.mean - self.descriptor - self.average)
        return [*terms, Term("descriptor", self.weight * distance)]


@dataclass(frozen=True)
class Representation:
    """Eq. 12, of the global network; the pre-trained one and D are fixed, dropout off."""

    pretrained: nn.Module
    descriptor: Tensor
    weight: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms, features = Segmentation("global segmentation").with_features(network, batch, context)
        if self.weight == 0:
            return terms
        target = representations(self.pretrained, batch)
        distance = representation_distance(features, target, self.descriptor)
        return [*terms, Term("representation", self.weight * distance)]


# ---- the networks


def last_frame(batch: Batch) -> Tensor:
    """Return the frames that the labels belong to: (B, 3, H, W) of those, or of clips (B, T, 3, H, W)."""
    image = batch["image"]
    return image if image.dim() == 4 else image[:, -1]  # (B, T, 3, H, W) -> (B, 3, H, W)


@torch.no_grad()
def representations(network: nn.Module, batch: Batch) -> Tensor:
    """Return F of a batch, (B, C, h, w) in float32; dropout is off and nothing is differentiated."""
    return encodes(network.eval(), "serq").encoder(last_frame(batch))[-1].float()


class FramesAlone(nn.Module):
    """A network as the server trains it: frames pass encoder and decoder alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        """Return the outputs of frames (B, 3, H, W), or of the last ones of clips (B, T, 3, H, W)."""
        network = encodes(self.network, "serq")
        return network.decode(network.encoder(last_frame({"image": image})))


def mean_features(networks: Sequence[nn.Module], batches: Iterable[Batch]) -> list[Tensor]:
    """Return each network's mean of F over all frames of some batches, (C, h, w) in float32, summed in float64."""
    totals, frames = [torch.zeros((), dtype=torch.float64)] * len(networks), 0
    for batch in batches:
        found = [representations(network, batch) for network in networks]
        # (B, C, h, w) -> (C, h, w)
        totals = [total.to(F.device) + F.double().sum(0) for total, F in zip(totals, found, strict=True)]
        frames += len(found[0])
    return [(total / frames).float() for total in totals]


def compared(
    network: nn.Module, pretrained: nn.Module, descriptor: Tensor, batches: Iterable[Batch]
) -> dict[str, float]:
    """Return what the descriptor explains, in evaluation mode, as means over frames and elements.

    Returns:
        `descriptor_square`, ||D||^2 / N; `difference_square`, ||F_g - F_pre||^2 / N; and `distance_square`, that of
        Eq. 12, ||F_g - (F_pre - D)||^2 / N.
    """
    difference, distance, frames = 0.0, 0.0, 0
    for batch in batches:
        features, target = representations(network, batch), representations(pretrained, batch)
        difference += len(features) * float((features - target).square().mean())
        distance += len(features) * float(representation_distance(features, target, descriptor))
        frames += len(features)
    return {
        "descriptor_square": float(descriptor.square().mean()),
        "difference_square": difference / frames,
        "distance_square": distance / frames,
    }
