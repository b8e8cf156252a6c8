"""Route each loss term to its target parameters with few backward passes, and implement SAM and ASAM.

SAM: Foret et al., ICLR 2021. ASAM: Kwon et al., ICML 2021. Defaults as in Caldarola et al., ECCV 2022.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.method import Context, Losses, Term
from shared_components.core.partition import Partition, Piece, Role, paste
from shared_components.networks.parts import inside, resolve, trained_parameters


def squared_distance(network: nn.Module, context: Context) -> Tensor:
    """Return ||w - w_t||^2 between a network and the received tensors, over the trained parameters."""
    received = context.received_on(next(network.parameters()).device)
    near = {name: parameter for name, parameter in trained_parameters(network).items() if name in received}
    return _SquaredDistance.apply([received[name] for name in near], *near.values())


class _SquaredDistance(torch.autograd.Function):
    """Sum of squared differences of two lists of tensors, with one operator per list instead of one per tensor."""

    @staticmethod
    def forward(ctx: Any, received: list[Tensor], *weights: Tensor) -> Tensor:
        differences = torch._foreach_sub(weights, received)
        ctx.save_for_backward(*differences)
        if weights[0].is_cuda:
            return torch.stack(torch._foreach_norm(differences)).square().sum()
        squares = torch._foreach_mul(differences, differences)
        return torch.stack([square.sum() for square in squares]).sum()  # bits of earlier runs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return None, *torch._foreach_mul(ctx.saved_tensors, 2 * gradient)


def as_received(network: nn.Module, context: Context, partition: Partition) -> nn.Module:
    """Return a copy of a site's network with the weights from the start of the round, in evaluation mode."""
    received = copy.deepcopy(network).eval()
    paste(context.received, partition, received.state_dict())
    return received


def route_gradients(terms: Sequence[Term], network: nn.Module, partition: Partition) -> None:
    """Set ``.grad`` of every trained parameter so that a term trains only slices of its role and parts.

    Slices with the same terms share one backward pass: one pass for FedAvg, two for PFedSIS (Algorithm 1). Each pass
    computes weight gradients only for its own parameters. A tensor with slices of two roles takes part in both passes
    and gets the rows of each. Gradients at a cut that two roles share are computed once, so that PFedSIS's second pass
    runs only through the personal decoder and the encoder. FIXED parameters have no gradient. Raises ValueError if a
    term names a part that the network lacks.
    """
    parameters = trained_parameters(network)
    for parameter in parameters.values():
        parameter.grad = None
    trained = [p for p in partition if p.role is not Role.FIXED and p.tensor in parameters]
    targets = _targets(terms, trained, network)
    at_cuts: dict[tuple[int, frozenset[int]], Tensor] = {}
    for number, (reaching, pieces) in enumerate(targets, start=1):
        # one backward pass; the graph is kept if another pass follows
        chosen = [terms[i] for i in reaching]
        tensors = list(dict.fromkeys(p.tensor for p in pieces))
        gradients = _gradients(chosen, [parameters[t] for t in tensors], at_cuts, keep=number < len(targets))
        _write(dict(zip(tensors, gradients, strict=True)), pieces, parameters)


def _gradients(
    terms: Sequence[Term], inputs: list[nn.Parameter], known: dict[tuple[int, frozenset[int]], Tensor], *, keep: bool
) -> list[Tensor | None]:
    """Differentiate the sum of the terms down to the cuts, and then upstream of the cuts if anything trains there."""
    crossed = dict.fromkeys(cut for term in terms for cut in term.cuts)
    cuts = [cut for cut in crossed if cut.upstream.requires_grad]
    keys = [(id(cut), frozenset(id(t) for t in terms if cut in t.cuts)) for cut in cuts]
    missing = [(key, cut) for key, cut in zip(keys, cuts, strict=True) if key not in known]
    loss = torch.stack([term.value for term in terms]).sum()
    gradients = torch.autograd.grad(
        loss, [*inputs, *(cut.twin for _, cut in missing)], retain_graph=keep, allow_unused=True
    )
    direct, reached = gradients[: len(inputs)], gradients[len(inputs) :]
    known.update({key: gradient for (key, _), gradient in zip(missing, reached, strict=True)})
    if not cuts:
        return list(direct)
    upstream, at_cuts = [cut.upstream for cut in cuts], [known[key] for key in keys]
    behind = torch.autograd.grad(upstream, inputs, grad_outputs=at_cuts, retain_graph=keep, allow_unused=True)
    # a parameter may be reached directly, through a cut, both ways or not at all
    return [a if b is None else b if a is None else a + b for a, b in zip(direct, behind, strict=True)]


def _targets(
    terms: Sequence[Term], pieces: Sequence[Piece], network: nn.Module
) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Group pieces by the numbers of the terms that reach them; groups are sorted by their first role."""
    paths = [resolve(network, t.parts, f"term {t.name}: parts") if t.parts else None for t in terms]

    def reaching(piece: Piece) -> tuple[int, ...]:
        return tuple(
            number
            for number, (term, places) in enumerate(zip(terms, paths, strict=True))
            if term.role in (None, piece.role) and (places is None or inside(piece.tensor, places))
        )

    reached = [(numbers, piece) for piece in pieces if (numbers := reaching(piece))]
    roles = list(Role)
    groups: dict[tuple[int, ...], list[Piece]] = {
        numbers: [] for numbers, _ in sorted(reached, key=lambda pair: roles.index(pair[1].role))
    }
    for numbers, piece in reached:
        groups[numbers].append(piece)
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
        parameter.grad[piece.start : piece.stop] = gradient[piece.start : piece.stop]  # only rows of this role


@dataclass(frozen=True)
class SharpnessAware:
    """`Local.gradients` at theta + epsilon instead of theta, with the same batch and the same random state."""

    rho: float  # radius; 0 is the plain gradient
    adaptive: bool = False  # ASAM instead of SAM
    eta: float = 0.01  # constant added to |w| in ASAM
    scaling: str = "paper"  # tensors that ASAM scales, see `ascent`

    def __call__(self, network: nn.Module, backward: Callable[[], Losses], context: Context) -> Losses:
        """Set the gradient of every parameter and return the losses at theta."""
        if self.rho == 0:
            return backward()
        random = RandomState(network, context.generator)
        losses = backward()
        trained = {n: p for n, p in network.named_parameters() if p.grad is not None}
        before = {name: parameter.detach().clone() for name, parameter in trained.items()}
        gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
        eta = self.eta if self.adaptive else None
        moves = ascent(before, gradients, rho=self.rho, eta=eta, scaling=self.scaling)
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.add_(moves[name])  # theta + epsilon
        after = RandomState(network, context.generator)
        statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}  # only from theta
        random.restore()
        try:
            backward()
        finally:
            with torch.no_grad():  # copy, because a subtraction would leave rounding errors
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

    The norm is over all parameters together. If all gradients are zero, epsilon is zero. The scaling t applies to

    - "paper": tensors with two or more dimensions; biases and scales of normalisation layers have t = 1;
    - "as_released": tensors with "weight" in their names, including scales of normalisation layers but not tokens.
    """

    def scaled(name: str, value: Tensor) -> bool:
        return "weight" in name if scaling == "as_released" else value.dim() > 1

    def scale(name: str) -> Tensor:  # computed twice: at ViT-B faster than keeping it
        value = weights[name]
        return value.abs().add_(eta) if eta is not None and scaled(name, value) else torch.ones_like(value)

    # ||t g||^2, one number per parameter
    squares = [scale(name).mul_(gradient).square_().sum() for name, gradient in gradients.items()]
    norm = torch.stack(squares).sum().sqrt().clamp_min(1e-12)
    return {name: scale(name).square_().mul_(rho).mul_(gradient).div_(norm) for name, gradient in gradients.items()}


class RandomState:
    """Random state of torch, of the network's GPU if it has one, and of a generator."""

    def __init__(self, network: nn.Module, generator: torch.Generator) -> None:
        self._generator, self._drawn = generator, generator.get_state()
        where = next(network.parameters()).device
        self._devices = [where] if where.type == "cuda" else []
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]

    def restore(self) -> None:
        self._generator.set_state(self._drawn)
        torch.set_rng_state(self._cpu)
        for device, state in zip(self._devices, self._cuda, strict=True):
            torch.cuda.set_rng_state(state, device)
