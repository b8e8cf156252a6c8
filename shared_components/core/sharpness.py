"""Sharpness-aware minimisation: gradients at a nearby point where the loss is higher.

Foret et al., Sharpness-Aware Minimization, ICLR 2021 (SAM); Kwon et al., ASAM, ICML 2021 (adaptive SAM); both in
federated training by Caldarola et al., ECCV 2022, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared_components.core.method import Context, Losses


@dataclass(frozen=True)
class SharpnessAware:
    """The `gradients` of a method: those at theta + epsilon instead of at theta.

    Both passes see the same batch, the same dropout masks and the same draws of the context's generator: the
    second starts from the random state of the first, so that they differ by the weights alone.

    Attributes:
        rho: Radius; 0 is the plain gradient.
        adaptive: ASAM instead of SAM.
        eta: Added to |w| in ASAM.
    """

    rho: float
    adaptive: bool = False
    eta: float = 0.01

    def __call__(self, network: nn.Module, backward: Callable[[], Losses], context: Context) -> Losses:
        """Set every parameter's gradient and return the losses at theta."""
        if self.rho == 0:
            return backward()
        random = RandomState(network, context.generator)
        losses = backward()
        trained = {n: p for n, p in network.named_parameters() if p.grad is not None}
        before = {name: parameter.detach().clone() for name, parameter in trained.items()}
        moves = ascent(
            before,
            {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None},
            rho=self.rho,
            eta=self.eta if self.adaptive else None,
        )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.add_(moves[name])  # theta + epsilon
        after = RandomState(network, context.generator)
        random.restore()
        try:
            backward()
        finally:
            with torch.no_grad():  # copies and not a subtraction, which would leave rounding behind
                for name, parameter in trained.items():
                    parameter.copy_(before[name])
            after.restore()
        return losses


def ascent(
    weights: dict[str, Tensor], gradients: dict[str, Tensor], *, rho: float, eta: float | None
) -> dict[str, Tensor]:
    """Return epsilon of SAM, rho g / ||g||, or with ``eta`` of ASAM, rho t^2 g / ||t g||, t = |w| + eta.

    t is of tensors of two or more dimensions alone; biases and the scales of normalisation layers keep t = 1 (the
    released code scales whatever is called "weight", those scales too). The norm is over all parameters together.
    Zero gradients move nothing.
    """
    scales = {
        name: value.abs() + eta if eta is not None and value.dim() > 1 else torch.ones_like(value)
        for name, value in weights.items()
    }
    # ||t g||^2, one number per parameter
    squares = [(scales[name] * gradient).square().sum() for name, gradient in gradients.items()]
    norm = torch.stack(squares).sum().sqrt().clamp_min(1e-12)
    return {name: rho * scales[name].square() * gradient / norm for name, gradient in gradients.items()}


class RandomState:
    """The state of torch's random numbers, of its accelerator's where a network lies on one, and of a generator."""

    def __init__(self, network: nn.Module, generator: torch.Generator) -> None:
        self._generator, self._drawn = generator, generator.get_state()
        where = next(network.parameters()).device
        self._devices = [where] if where.type == "cuda" else []
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]

    def restore(self) -> None:
        """Go back to it."""
        self._generator.set_state(self._drawn)
        torch.set_rng_state(self._cpu)
        for device, state in zip(self._devices, self._cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
