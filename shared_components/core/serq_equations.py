"""Implement the equations and objectives of SERQ (Fang et al., Section 3.3); `core.serq` lists our choices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared_components.core.method import Batch, Context, Term
from shared_components.networks.protocols import encodes

WINDOW = 0.1  # weight of a batch in the running mean of F_pre for Eq. 11 (ours): about twenty batches count


def moving_average(average: Tensor | None, current: Tensor, *, share: float) -> Tensor:
    """Return the running mean map (C, h, w), Eq. 10: alpha Fbar_(r-1) + (1 - alpha) F_r.

    ``average`` is Fbar_(r-1), None in the first round. ``current`` is F_r, the mean of the global model's
    representations over the round's frames (our choice). ``share`` is alpha.
    """
    return current if average is None else share * average.to(current) + (1 - share) * current


def descriptor_distance(mean: Tensor, drawn: Tensor, descriptor: Tensor, average: Tensor) -> Tensor:
    """Return the distance in Eq. 11, ||E F_pre - D - Fbar||^2 / N, with the value of a mean and a batch's gradient.

    With a batch mean in place of E F_pre, as the equation can also be read, the distance would contain the features'
    variance divided by B, and minimising it would flatten the features. ``mean`` is E F_pre over frames of other
    batches, ``descriptor`` is D with N elements, and ``average`` is Fbar, each (C, h, w). The gradient passes through
    the mean of ``drawn``, F_pre of a batch (B, C, h, w).
    """
    of_batch = drawn.mean(0)  # (B, C, h, w) -> (C, h, w)
    expected = mean + (of_batch - of_batch.detach())  # value of E F_pre, gradient of the batch mean
    return (expected - descriptor - average).square().mean()


def representation_distance(features: Tensor, pretrained: Tensor, descriptor: Tensor) -> Tensor:
    """Return the distance in Eq. 12, mean over frames of ||F_g(x_b) - (F_pre(x_b) - D)||^2 / N, for (B, C, h, w)."""
    return (features - (pretrained - descriptor)).square().mean()


def moved(before: Tensor, after: Tensor) -> float:
    """Return ||after - before|| / ||after||, or 0 if both are zero."""
    length = float(after.norm())
    return float((after - before).norm()) / length if length else float(before.norm() > 0)


@dataclass(frozen=True)
class Segmentation:
    """Segmentation loss L_seg from single frames, as a term with this name."""

    name: str

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        return self.with_features(network, batch, context)[0]

    def with_features(self, network: nn.Module, batch: Batch, context: Context) -> tuple[list[Term], Tensor]:
        """Return the term and the representations (B, C, h, w) in float32."""
        maps = encodes(network, "serq").encoder(last_frame(batch))
        loss = context.task.loss(encodes(network, "serq").decode(maps), batch)
        if not loss.requires_grad:
            raise ValueError("serq: training.fixed has all parts that predict from single frames; name fewer parts")
        return [Term(self.name, loss)], maps[-1].float()


@dataclass
class Explicit:
    """Objective of Eq. 11 for the pre-trained network and D; the global model's mean is fixed.

    With each batch, D takes a step of gradient descent with the learning rate `rate` N / 2. For fixed F_pre and Fbar,
    this moves D by the fraction `rate` towards its optimum, mean F_pre - Fbar.
    """

    average: Tensor  # Fbar, (C, h, w)
    weight: float  # lambda_1
    rate: float  # step of D, 0 to 1
    mean: Tensor  # running mean of F_pre, (C, h, w)
    descriptor: Tensor  # D, (C, h, w)

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms, features = Segmentation("pretrained segmentation").with_features(network, batch, context)
        if self.weight == 0:
            return terms
        distance = descriptor_distance(self.mean, features, self.descriptor, self.average)
        # E F_pre follows the batches, and D descends the gradient of Eq. 11
        self.mean = self.mean.lerp(features.detach().mean(0), WINDOW)
        self.descriptor = self.descriptor + self.rate * (self.mean - self.descriptor - self.average)
        return [*terms, Term("descriptor", self.weight * distance)]


@dataclass(frozen=True)
class Representation:
    """Objective of Eq. 12 for the global network; the pre-trained network (in evaluation mode) and D are fixed."""

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


def last_frame(batch: Batch) -> Tensor:
    """Return the labelled frames (B, 3, H, W): the images, or the last frames of clips (B, T, 3, H, W)."""
    image = batch["image"]
    return image if image.dim() == 4 else image[:, -1]  # (B, T, 3, H, W) -> (B, 3, H, W)


@torch.no_grad()
def representations(network: nn.Module, batch: Batch) -> Tensor:
    """Return F of a batch, (B, C, h, w) in float32, in evaluation mode and without gradients."""
    return encodes(network.eval(), "serq").encoder(last_frame(batch))[-1].float()


class FramesAlone(nn.Module):
    """Network as trained by the server: only the encoder and the decoder for single frames."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        network = encodes(self.network, "serq")
        return network.decode(network.encoder(last_frame({"image": image})))


def mean_features(networks: Sequence[nn.Module], batches: Iterable[Batch]) -> list[Tensor]:
    """Return the mean of F over all frames for each network, (C, h, w) in float32, summed in float64."""
    totals, frames = [torch.zeros((), dtype=torch.float64)] * len(networks), 0
    for batch in batches:
        features = [representations(network, batch) for network in networks]
        # (B, C, h, w) -> (C, h, w)
        totals = [total.to(F.device) + F.double().sum(0) for total, F in zip(totals, features, strict=True)]
        frames += len(features[0])
    return [(total / frames).float() for total in totals]


def compared(
    network: nn.Module, pretrained: nn.Module, descriptor: Tensor, batches: Iterable[Batch]
) -> dict[str, float]:
    """Return descriptor_square, ||D||^2 / N, and means over frames of the models' distances in evaluation mode.

    `difference_square` is ||F_g - F_pre||^2 / N, and `distance_square` is ||F_g - (F_pre - D)||^2 / N as in Eq. 12.
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
