"""Route each loss term to the parameters it is meant for, with as few backward passes as there are targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared_components.method import Batch, Context, Term
from shared_components.partition import Partition, Piece, Role


def segmentation_objective(network: nn.Module, batch: Batch, context: Context) -> list[Term]:
    """Return the task's loss alone; it reaches every parameter."""
    return [Term("segmentation", context.segmentation(network(batch["image"]), batch["label"]))]


def route_gradients(terms: Sequence[Term], network: nn.Module, partition: Partition) -> None:
    """Set ``.grad`` of every parameter so that a term reaches only the slices of its own role.

    Roles that see the same sum of terms share one backward pass, and each pass computes weight gradients
    for its own parameters only: one pass for FedAvg, two for PFedSIS (Algorithm 1), never three.
    A tensor with slices of two roles takes part in both passes and keeps the rows of each.
    """
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.grad = None
    targets = _targets(terms, partition)
    for number, (names, roles) in enumerate(targets, start=1):
        loss = torch.stack([term.value for term in terms if term.name in names]).sum()
        pieces = [p for p in partition.with_roles(*roles).values() if p.tensor in parameters]
        tensors = list(dict.fromkeys(p.tensor for p in pieces))
        gradients = torch.autograd.grad(
            loss, [parameters[t] for t in tensors], retain_graph=number < len(targets), allow_unused=True
        )
        _write(dict(zip(tensors, gradients, strict=True)), pieces, parameters)


def _targets(terms: Sequence[Term], partition: Partition) -> list[tuple[frozenset[str], list[Role]]]:
    """Group the roles that occur by the set of terms that reach them."""
    groups: dict[frozenset[str], list[Role]] = {}
    for role in Role:
        names = frozenset(t.name for t in terms if t.role is None or t.role is role)
        if role in partition.roles and names:
            groups.setdefault(names, []).append(role)
    return list(groups.items())


def _write(
    gradients: dict[str, Tensor | None], pieces: list[Piece], parameters: dict[str, nn.Parameter]
) -> None:
    for piece in pieces:
        gradient, parameter = gradients[piece.tensor], parameters[piece.tensor]
        if gradient is None:
            continue
        if piece.start is None:
            parameter.grad = gradient
        else:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad[piece.start : piece.stop] = gradient[piece.start : piece.stop]
