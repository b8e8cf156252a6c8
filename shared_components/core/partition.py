"""Assign one of four roles to every slice of every tensor in a network's state, such as half of the query rows."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.networks.parts import fixed_tensors, upwards

Pieces = dict[str, Tensor]


class Role(enum.StrEnum):
    """Role of a slice of the state."""

    GLOBAL = "global"  # the same value at all sites
    MIXED = "mixed"  # one value per site, computed by the server from all sites' values
    LOCAL = "local"  # never leaves the site
    FIXED = "fixed"  # not trained, not sent; its hash is compared at enrolment


@dataclass(frozen=True)
class Slice:
    """Rows ``start:stop`` along the first axis, with role and layer."""

    role: Role
    start: int | None = None  # None: the whole tensor
    stop: int | None = None
    layer: str = ""  # groups pieces with the same mixing weight, e.g. a decoder block; may be empty


@dataclass(frozen=True)
class Piece:
    """One slice of a named tensor of the state; other fields as in `Slice`."""

    tensor: str
    role: Role
    start: int | None = None
    stop: int | None = None
    layer: str = ""

    @property
    def name(self) -> str:
        """Name such as ``encoder.block1.0.attn.q.weight[0:16]``; a whole tensor has no brackets."""
        return self.tensor if self.start is None else f"{self.tensor}[{self.start}:{self.stop}]"

    def view(self, state: Mapping[str, Tensor]) -> Tensor:
        tensor = state[self.tensor]
        return tensor if self.start is None else tensor[self.start : self.stop]


# returns the slices of a tensor, by its name, the tensor and its module
TensorRule = Callable[[str, Tensor, nn.Module], Sequence[Slice]]

CheckExtra = Callable[[Pieces, Pieces], None]  # raises ValueError for a wrong (group of extra tensors, shared pieces)

# returns a rule for a network's tensors; raises ValueError for names that match nothing
Rule = Callable[[nn.Module], TensorRule]


@dataclass(frozen=True)
class Partition:
    """All pieces of one network, in the order of its state."""

    pieces: tuple[Piece, ...]

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    def with_roles(self, *roles: Role) -> dict[str, Piece]:
        """Return the pieces with these roles by name, in the order of the state."""
        return {piece.name: piece for piece in self.pieces if piece.role in roles}

    @property
    def roles(self) -> set[Role]:
        return {piece.role for piece in self.pieces}

    @property
    def mixed_layers(self) -> dict[str, list[str]]:
        """Names of the MIXED pieces by layer, in order of first appearance."""
        layers: dict[str, list[str]] = {}
        for name, piece in self.with_roles(Role.MIXED).items():
            layers.setdefault(piece.layer, []).append(name)
        return layers

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain values for the server, which never builds a network."""
        return [{**vars(piece), "role": piece.role.value} for piece in self.pieces]

    @classmethod
    def from_json(cls, items: Iterable[Mapping[str, Any]]) -> Partition:
        """Undo :meth:`to_json`."""
        return cls(tuple(Piece(**{**item, "role": Role(item["role"])}) for item in items))


def everything(role: Role) -> Rule:
    """Return a rule that assigns one role to the whole state."""

    def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        return (Slice(role),)

    return lambda network: slices


def partition_network(network: nn.Module, rule: Rule) -> Partition:
    """Apply a rule to every tensor of a network's state; untrained tensors (`parts.fixed_tensors`) are always FIXED.

    Raises ValueError if the rule names a part that the network lacks; the slices of a tensor overlap, leave rows out or
    exceed the tensor; or all tensors of a role are FIXED, which would change the method.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    slices_of, fixed = rule(network), fixed_tensors(network)
    pieces: list[Piece] = []
    first: dict[Role, str] = {}  # first tensor of each role
    for name, tensor in network.state_dict().items():
        slices = slices_of(name, tensor, modules[name.rpartition(".")[0]])
        _check_cover(name, tensor, slices)
        for role in (s.role for s in slices):
            first.setdefault(role, name)
        whole = (Slice(Role.FIXED),) if name in fixed else slices
        pieces += [Piece(name, s.role, s.start, s.stop, s.layer) for s in whole]
    partition = Partition(tuple(pieces))
    if lost := [role for role in first if role not in partition.roles]:
        raise ValueError(
            f"all {lost[0].upper()} tensors of the method are fixed, such as {first[lost[0]]}, which would change the "
            "method; name fewer parts in training.fixed"
        )
    return partition


def _check_cover(name: str, tensor: Tensor, slices: Sequence[Slice]) -> None:
    if len(slices) == 1 and slices[0].start is None:
        return
    rows = [(s.start, s.stop) for s in slices]
    bounds = sorted((-1 if start is None else start, stop or 0) for start, stop in rows)
    starts, stops = [start for start, _ in bounds], [stop for _, stop in bounds]
    if [*starts, tensor.shape[0]] != [0, *stops] or any(start >= stop for start, stop in bounds):
        raise ValueError(f"{name}: slices {rows} must cover each of the rows 0:{tensor.shape[0]} exactly once")


def cut(state: Mapping[str, Tensor], partition: Partition, *roles: Role) -> Pieces:
    """Return copies of the pieces with these roles, as contiguous CPU tensors that share no memory with the state."""
    return {
        name: piece.view(state).detach().cpu().clone().contiguous()
        for name, piece in partition.with_roles(*roles).items()
    }


def paste(pieces: Mapping[str, Tensor], partition: Partition, state: Mapping[str, Tensor]) -> None:
    """Write pieces into a state, in place; KeyError for an unknown name, ValueError for a wrong shape."""
    by_name = {piece.name: piece for piece in partition}
    for name, value in pieces.items():
        if name not in by_name:
            raise KeyError(f"piece {name!r} is not in the partition of this network")
        target = by_name[name].view(state)
        if target.shape != value.shape:
            raise ValueError(f"piece {name!r} has shape {tuple(value.shape)}; this network needs {tuple(target.shape)}")
        target.detach().copy_(value)


def train_mode(network: nn.Module, partition: Partition) -> None:
    """Set a network to training mode, except modules that are entirely FIXED: no dropout, no new running statistics."""
    network.train()
    fixed = {place for name in partition.with_roles(Role.FIXED) for place in upwards(name)}
    if not fixed:
        return
    moving = {place for p in partition if p.role is not Role.FIXED for place in upwards(p.tensor)}
    for path, module in network.named_modules():
        if path in fixed - moving:
            module.eval()


def fixed_hash(state: Mapping[str, Tensor], partition: Partition) -> str:
    """Return the SHA-256 of the FIXED tensors' names, dtypes, shapes and bytes, or "" if nothing is FIXED."""
    pieces = partition.with_roles(Role.FIXED)
    if not pieces:
        return ""
    digest = hashlib.sha256()
    for name, piece in pieces.items():
        update_with(digest, name, piece.view(state))
    return digest.hexdigest()


def update_with(digest: hashlib._Hash, name: str, value: Tensor) -> None:
    """Update a hash with a tensor's name, dtype, shape and bytes."""
    tensor = value.detach().cpu().contiguous()
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # (...) -> (bytes,)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Pieces:
    """Return tensors with a prefix before their names, so that several sets can share one state or file."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> Pieces:
    """Return the tensors with names that begin with ``prefix``, without the prefix; undoes :func:`prefixed`."""
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
