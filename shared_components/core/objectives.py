"""Route each loss term to the parameters it is meant for, with as few backward passes as there are targets.

Sharpness-aware minimisation takes gradients at a nearby point where the loss is higher: Foret et al., ICLR 2021 (SAM);
Kwon et al., ICML 2021 (ASAM); both in federated training by Caldarola et al., ECCV 2022, whose defaults these are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shared_components.core.method import Context, Losses, Term
from shared_components.core.partition import Partition, Piece, Pieces, Role, paste
from shared_components.networks.parts import inside, resolve, trained_parameters


def squared_distance(network: nn.Module, received: Pieces) -> Tensor:
    """Return ||w - w_t||^2 between a network and whole tensors that were received, over those that are trained."""
    distances = [
        (parameter - received[name].to(parameter)).square().sum()
        for name, parameter in trained_parameters(network).items()
        if name in received
    ]
    return torch.stack(distances).sum()


def as_received(network: nn.Module, context: Context, partition: Partition) -> nn.Module:
    """Return a copy of a site's network with the weights that the round began with, dropout off."""
    received = copy.deepcopy(network).eval()
    paste(context.received, partition, received.state_dict())
    return received


def route_gradients(terms: Sequence[Term], network: nn.Module, partition: Partition) -> None:
    """Set ``.grad`` of every trained parameter so that a term reaches only the slices of its own role and parts.

    Slices that see the same terms share one backward pass, and each pass computes weight gradients for its
    own parameters only: one pass for FedAvg, two for PFedSIS (Algorithm 1). A tensor with slices of two roles
    takes part in both and keeps the rows of each. Gradients that two roles share at a cut are computed once,
    so that PFedSIS's second pass runs through the personal decoder and the encoder alone. What is FIXED has no
    gradient.

    Raises:
        ValueError: A term names a part that the network does not have.
    """
    parameters = trained_parameters(network)
    for parameter in parameters.values():
        parameter.grad = None
    trained = [p for p in partition if p.role is not Role.FIXED and p.tensor in parameters]
    targets = _targets(terms, trained, network)
    at_cuts: dict[tuple[int, frozenset[int]], Tensor] = {}
    for number, (reaching, pieces) in enumerate(targets, start=1):
        # one backward pass; the graph is kept while another one follows
        chosen = [terms[i] for i in reaching]
        tensors = list(dict.fromkeys(p.tensor for p in pieces))
        gradients = _gradients(chosen, [parameters[t] for t in tensors], at_cuts, keep=number < len(targets))
        _write(dict(zip(tensors, gradients, strict=True)), pieces, parameters)


def _gradients(
    terms: Sequence[Term], inputs: list[nn.Parameter], known: dict[tuple[int, frozenset[int]], Tensor], *, keep: bool
) -> list[Tensor | None]:
    """Differentiate the sum of the terms, first down to the cuts and then from there on, if anything trains there."""
    crossed = dict.fromkeys(cut for term in terms for cut in term.cuts)
    cuts = [cut for cut in crossed if cut.upstream.requires_grad]
    keys = [(id(cut), frozenset(id(t) for t in terms if cut in t.cuts)) for cut in cuts]
    missing = [(key, cut) for key, cut in zip(keys, cuts, strict=True) if key not in known]
    loss = torch.stack([term.value for term in terms]).sum()
    found = torch.autograd.grad(
        loss, [*inputs, *(cut.twin for _, cut in missing)], retain_graph=keep, allow_unused=True
    )
    direct, reached = found[: len(inputs)], found[len(inputs) :]
    known.update({key: gradient for (key, _), gradient in zip(missing, reached, strict=True)})
    if not cuts:
        return list(direct)
    behind = torch.autograd.grad(
        [cut.upstream for cut in cuts],
        inputs,
        grad_outputs=[known[key] for key in keys],
        retain_graph=keep,
        allow_unused=True,
    )
    # a parameter may be reached directly, through a cut, both ways or not at all
    return [a if b is None else b if a is None else a + b for a, b in zip(direct, behind, strict=True)]


def _targets(
    terms: Sequence[Term], pieces: Sequence[Piece], network: nn.Module
) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Group pieces by the terms that reach them: numbers of terms and pieces in order, groups by their first role."""
    paths = [resolve(network, t.parts, f"term {t.name}: parts") if t.parts else None for t in terms]

    def reaching(piece: Piece) -> tuple[int, ...]:
        return tuple(
            number
            for number, (term, places) in enumerate(zip(terms, paths, strict=True))
            if term.role in (None, piece.role) and (places is None or inside(piece.tensor, places))
        )

    reached = [(found, piece) for piece in pieces if (found := reaching(piece))]
    roles = list(Role)
    groups: dict[tuple[int, ...], list[Piece]] = {
        found: [] for found, _ in sorted(reached, key=lambda pair: roles.index(pair[1].role))
    }
    for found, piece in reached:
        groups[found].append(piece)
    return list(groups.items())


def _write(gradients: dict[str, Tensor | None], pieces: list[Piece], parameters: dict[str, nn.Parameter]) -> None:
    for piece in pieces:
        gradient, parameter = gradients[piece.tensor], parameters[piece.tensor]
        if gradient is None:
            continue
        if piece.start is None:
            parameter.grad = gradient
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad[piece.start : piece.stop] = gradient[piece.start : piece.stop]  # rows of this role alone


SCALINGS = ("paper", "as_released")  # which tensors ASAM scales, see `ascent`


@dataclass(frozen=True)
class SharpnessAware:
    """The `gradients` of a method: those at theta + epsilon instead of at theta.

    Both passes see the same batch, the same dropout masks and the same draws of the context's generator: the
    second starts from the random state of the first, so that they differ by the weights alone.

    Attributes:
        rho: Radius; 0 is the plain gradient.
        adaptive: ASAM instead of SAM.
        eta: Added to |w| in ASAM.
        scaling: Which tensors ASAM scales, see `ascent`.
    """

    rho: float
    adaptive: bool = False
    eta: float = 0.01
    scaling: str = "paper"

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
            scaling=self.scaling,
        )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.add_(moves[name])  # theta + epsilon
        after = RandomState(network, context.generator)
        statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}  # BatchNorm's: of theta alone
        random.restore()
        try:
            backward()
        finally:
            with torch.no_grad():  # copies and not a subtraction, which would leave rounding behind
                for name, parameter in trained.items():
                    parameter.copy_(before[name])
                for name, buffer in network.named_buffers():
                    buffer.copy_(statistics[name])
            after.restore()
        return losses


def ascent(
    weights: dict[str, Tensor], gradients: dict[str, Tensor], *, rho: float, eta: float | None, scaling: str = "paper"
) -> dict[str, Tensor]:
    """Return epsilon of SAM, rho g / ||g||, or with ``eta`` of ASAM, rho t^2 g / ||t g||, t = |w| + eta.

    t is of tensors of two or more dimensions alone; biases and the scales of normalisation layers keep t = 1.
    ``as_released`` t is of the tensors whose names hold "weight", those scales included, and tokens are not. The norm
    is over all parameters together. Zero gradients move nothing.
    """

    def scaled(name: str, value: Tensor) -> bool:
        return "weight" in name if scaling == "as_released" else value.dim() > 1

    def scale(name: str) -> Tensor:  # made anew rather than kept: at ViT-B that is faster, and spares a model's memory
        value = weights[name]
        return value.abs().add_(eta) if eta is not None and scaled(name, value) else torch.ones_like(value)

    # ||t g||^2, one number per parameter
    squares = [scale(name).mul_(gradient).square_().sum() for name, gradient in gradients.items()]
    norm = torch.stack(squares).sum().sqrt().clamp_min(1e-12)
    return {name: scale(name).square_().mul_(rho).mul_(gradient).div_(norm) for name, gradient in gradients.items()}


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
