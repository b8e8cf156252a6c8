"""Gradient inversion: search for frames whose gradient equals the sent update.

Geiping et al., Inverting Gradients, NeurIPS 2020 (arXiv 2003.14053), Eq. (4): one minus the cosine of both gradients,
plus the total variation; Adam on the sign of the gradient, three decays, pixels clipped to their range. First proposed
by Zhu et al., Deep Leakage from Gradients, NeurIPS 2019 (arXiv 1906.08935). A site sends AdamW's step instead of the
gradient. The attacker knows this and compares soft signs.

The attacker is a server with extra knowledge: it knows the labels. With several local steps it knows the number of
batches, not their order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from evidence.attacks.sent import Sent
from shared_components.core.method import Batch

Loss = Callable[[Tensor], Tensor]
DECAYS = (3 / 8, 5 / 8, 7 / 8)
VARIATION, SOFTEN = 2.0, 0.3


def invert(
    network: nn.Module,
    loss: Loss,
    direction: Mapping[str, Tensor],
    *,
    start: Tensor,
    iterations: int = 1000,
    rate: float = 0.1,
    variation: float = VARIATION,
    soften: float = 0.0,
    masks: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, float]:
    """Search for images whose loss has a gradient of a known direction.

    Args:
        network: Network whose parameters have the gradient.
        loss: Loss of images (B, C, H, W) in [0, 1].
        direction: Gradient by parameter name, up to its length; missing parameters are unknown.
        start: Initial images.
        iterations: Steps of Adam.
        rate: Learning rate in units of a pixel's range.
        variation: Weight of the total variation.
        soften: Use if only the sign of the gradient is known, as after AdamW's first step. The image's gradient is
            compared by its soft sign, which is one half at this multiple of the tensor's root mean square. 0: the
            gradient is known.
        masks: 1 at known elements of the direction, else 0; None: all are known.

    Returns:
        The images with the lowest cost, and their cosine.
    """
    parameters = {name: value for name, value in network.named_parameters() if name in direction}
    known = [masks[name] if masks else torch.ones(()) for name in parameters]
    wanted = [direction[name] * mask for name, mask in zip(parameters, known, strict=True)]
    images = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=rate)
    steps = [round(iterations * share) for share in DECAYS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, steps, gamma=0.1)
    best, lowest, found = images.detach().clone(), float("inf"), 0.0
    for _ in range(iterations):
        gradients = torch.autograd.grad(loss(images), list(parameters.values()), create_graph=True)
        compared = [_soft_sign(gradient, soften) for gradient in gradients]
        similar = cosine([g * mask for g, mask in zip(compared, known, strict=True)], wanted)
        cost = 1 - similar + variation * total_variation(images)
        if (value := float(cost.detach())) < lowest:
            best, lowest, found = images.detach().clone(), value, float(similar.detach())
        optimizer.zero_grad()
        (gradient,) = torch.autograd.grad(cost, images)
        images.grad = gradient.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return best, found


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the cosine between two lists of tensors, each concatenated to one vector."""
    product = sum((x * y).sum() for x, y in zip(a, b, strict=True))
    lengths = [sum(x.square().sum() for x in some).sqrt() for some in (a, b)]
    return product / (lengths[0] * lengths[1]).clamp_min(1e-30)


def _soft_sign(gradient: Tensor, soften: float) -> Tensor:
    if not soften:
        return gradient
    scale = soften * gradient.detach().square().mean().sqrt() + 1e-30
    return gradient / (gradient.abs() + scale)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, horizontal plus vertical."""
    across, down = images.diff(dim=-1).abs().mean(), images.diff(dim=-2).abs().mean()
    return across + down


def invert_round(
    sent: Sent,
    masks: Mapping[str, Tensor],
    *,
    iterations: int,
    seed: int = 0,
    direction: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, float]:
    """Reconstruct the first batch of a round from the visible part of its update; the labels are known.

    Args:
        sent: The round.
        masks: From `Sent.masks`: 1 at elements that the attacker sees.
        iterations: See `invert`.
        seed: Seed of the initial images.
        direction: A gradient that replaces the direction estimated from the update.
    """
    batch = sent.batches[0]
    generator = torch.Generator().manual_seed(seed)
    start = 0.5 + 0.1 * torch.randn(batch["image"].shape, generator=generator)
    whole = direction or sent.direction()
    visible = {name: value for name, value in whole.items() if bool(masks[name].any())}
    with _as_trained(sent.before):
        return invert(
            sent.before,
            loss_of(sent, batch),
            visible,
            start=start.clamp(0, 1),
            iterations=iterations,
            soften=SOFTEN if direction is None else 0.0,
            masks=masks,
        )


def loss_of(sent: Sent, batch: Batch) -> Loss:
    """Return a loss function of images with the batch's labels, at the received network."""
    return lambda images: sent.task.loss(
        sent.task.predict(sent.before, {**batch, "image": images}), {**batch, "image": images}
    )


def true_gradient(sent: Sent) -> dict[str, Tensor]:
    """Return the gradient of the first batch, which no job sends; it shows the strength of the attack."""
    batch = sent.batches[0]
    with _as_trained(sent.before):
        names, values = zip(*sent.before.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss_of(sent, batch)(batch["image"]), values)
    return dict(zip(names, gradients, strict=True))


@contextmanager
def _as_trained(network: nn.Module) -> Iterator[None]:
    """Set normalisation to training mode and dropout to evaluation mode: the dropped units are unknown."""
    network.train()
    for module in network.modules():
        if "drop" in type(module).__name__.lower():
            module.eval()
    with sdpa_kernel(SDPBackend.MATH):  # faster implementations have no second derivative
        yield
