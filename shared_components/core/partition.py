"""Give every slice of every tensor of a network's state one of four roles.

Roles belong to slices and not to tensors, because "half of the query rows" (PFedSIS, Section III-B) is a
slice of rows. Whatever averages pieces by name then does head-wise and channel-wise personalisation
without knowing it. Extras are groups of tensors that a site sends besides its pieces.
"""

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
    """Where a slice of the state lives."""

    GLOBAL = "global"  # one value everywhere
    MIXED = "mixed"  # one value per site, computed by the server from all sites' values
    LOCAL = "local"  # never leaves the site
    FIXED = "fixed"  # not trained, not sent; its hash is compared at enrolment


@dataclass(frozen=True)
class Slice:
    """Rows ``start:stop`` along the first axis (``None``: the whole tensor), their role and layer.

    ``layer`` groups pieces that share one mixing weight, e.g. all of a decoder block; empty where unused.
    """

    role: Role
    start: int | None = None
    stop: int | None = None
    layer: str = ""


@dataclass(frozen=True)
class Piece:
    """One slice of one named tensor of the state; the other fields are those of `Slice`."""

    tensor: str
    role: Role
    start: int | None = None
    stop: int | None = None
    layer: str = ""

    @property
    def name(self) -> str:
        """``encoder.block1.0.attn.q.weight[0:16]``, or the tensor's own name when it is whole."""
        return self.tensor if self.start is None else f"{self.tensor}[{self.start}:{self.stop}]"

    def view(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the rows this piece names, as a view of the state's tensor."""
        tensor = state[self.tensor]
        return tensor if self.start is None else tensor[self.start : self.stop]


TensorRule = Callable[[str, Tensor, nn.Module], Sequence[Slice]]
"""Called with a tensor's name, the tensor and the module that owns it."""

Rule = Callable[[nn.Module], TensorRule]
"""Called with the network, so that a rule refuses names and kinds that match nothing of it."""


@dataclass(frozen=True)
class Partition:
    """All pieces of one network, in the order of its state."""

    pieces: tuple[Piece, ...]

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)

    def with_roles(self, *roles: Role) -> dict[str, Piece]:
        """Return the pieces of these roles by name, in the order of the state."""
        return {piece.name: piece for piece in self.pieces if piece.role in roles}

    @property
    def roles(self) -> set[Role]:
        """The roles that occur."""
        return {piece.role for piece in self.pieces}

    @property
    def mixed_layers(self) -> dict[str, list[str]]:
        """Names of the MIXED pieces of each layer, layers in order of first appearance."""
        layers: dict[str, list[str]] = {}
        for name, piece in self.with_roles(Role.MIXED).items():
            layers.setdefault(piece.layer, []).append(name)
        return layers

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain values that travel to the server, which never builds a network."""
        return [{**vars(piece), "role": piece.role.value} for piece in self.pieces]

    @classmethod
    def from_json(cls, items: Iterable[Mapping[str, Any]]) -> Partition:
        """Undo :meth:`to_json`."""
        return cls(tuple(Piece(**{**item, "role": Role(item["role"])}) for item in items))


def everything(role: Role) -> Rule:
    """Return the rule that gives the whole state one role."""

    def slices(name: str, tensor: Tensor, module: nn.Module) -> Sequence[Slice]:
        return (Slice(role),)

    return lambda network: slices


def partition_network(network: nn.Module, rule: Rule) -> Partition:
    """Apply a rule to every tensor of a network's state, buffers included.

    What does not train (see `parts.fixed_tensors`) is FIXED, whatever the rule says.

    Args:
        network: The network to divide; parts that do not train are frozen already.
        rule: Called with the network; what it returns, with every tensor.

    Raises:
        ValueError: The rule names what the network does not have; the slices of a tensor overlap, leave rows
            out or name rows that do not exist; or all that the rule gives one role is FIXED, which would make
            another method of it.
    """
    modules = dict(network.named_modules(remove_duplicate=False))
    slices_of, fixed = rule(network), fixed_tensors(network)
    pieces: list[Piece] = []
    meant: dict[Role, str] = {}  # with the first tensor of each role
    for name, tensor in network.state_dict().items():
        slices = slices_of(name, tensor, modules[name.rpartition(".")[0]])
        _check_cover(name, tensor, slices)
        for role in (s.role for s in slices):
            meant.setdefault(role, name)
        whole = (Slice(Role.FIXED),) if name in fixed else slices
        pieces += [Piece(name, s.role, s.start, s.stop, s.layer) for s in whole]
    partition = Partition(tuple(pieces))
    if lost := [role for role in meant if role not in partition.roles]:
        raise ValueError(
            f"all that the method makes {lost[0].upper()} is fixed, {meant[lost[0]]} first, so that it would be "
            "another method; name fewer parts in training.fixed"
        )
    return partition


def _check_cover(name: str, tensor: Tensor, slices: Sequence[Slice]) -> None:
    if len(slices) == 1 and slices[0].start is None:
        return
    rows = [(s.start, s.stop) for s in slices]
    bounds = sorted((-1 if start is None else start, stop or 0) for start, stop in rows)
    starts, stops = [start for start, _ in bounds], [stop for _, stop in bounds]
    if [*starts, tensor.shape[0]] != [0, *stops] or any(start >= stop for start, stop in bounds):
        raise ValueError(f"{name}: slices {rows} do not cover rows 0:{tensor.shape[0]} once each, in whole")


def cut(state: Mapping[str, Tensor], partition: Partition, *roles: Role) -> Pieces:
    """Copy the pieces of some roles out of a state: contiguous CPU tensors that share no memory with it."""
    return {
        name: piece.view(state).detach().cpu().clone().contiguous()
        for name, piece in partition.with_roles(*roles).items()
    }


def paste(pieces: Mapping[str, Tensor], partition: Partition, state: Mapping[str, Tensor]) -> None:
    """Write pieces back into a state, in place; the rest of the state stays as it is.

    Raises:
        KeyError: A name is not in the partition.
        ValueError: A piece has another shape than its place.
    """
    by_name = {piece.name: piece for piece in partition}
    for name, value in pieces.items():
        if name not in by_name:
            raise KeyError(f"piece {name!r} is not in the partition of this network")
        target = by_name[name].view(state)
        if target.shape != value.shape:
            raise ValueError(f"piece {name!r} has shape {tuple(value.shape)}; its place {tuple(target.shape)}")
        target.detach().copy_(value)


def train_mode(network: nn.Module, partition: Partition) -> None:
    """Set a network to training, but for the modules that are FIXED as a whole.

    Their dropout stays off and their running statistics stay as they are.
    """
    network.train()
    fixed = {place for name in partition.with_roles(Role.FIXED) for place in upwards(name)}
    if not fixed:
        return
    moving = {place for p in partition if p.role is not Role.FIXED for place in upwards(p.tensor)}
    for path, module in network.named_modules():
        if path in fixed - moving:
            module.eval()


def fixed_hash(state: Mapping[str, Tensor], partition: Partition) -> str:
    """Return the SHA-256 of the FIXED tensors' names, dtypes, shapes and bytes, in the order of the state.

    Returns:
        64 hexadecimal digits; empty where nothing is FIXED.
    """
    pieces = partition.with_roles(Role.FIXED)
    if not pieces:
        return ""
    digest = hashlib.sha256()
    for name, piece in pieces.items():
        update_with(digest, name, piece.view(state))
    return digest.hexdigest()


def update_with(digest: hashlib._Hash, name: str, value: Tensor) -> None:
    """Feed a tensor's name, dtype, shape and bytes to a hash."""
    tensor = value.detach().cpu().contiguous()
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)  # (...) -> (bytes,)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Pieces:
    """Return tensors under longer names: how several sets of them share one state, memory or file."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> Pieces:
    """Return the tensors whose names begin with ``prefix``, without it; undoes :func:`prefixed`."""
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


# ---- extras: what a site sends besides its pieces


CheckExtra = Callable[[Pieces, Pieces], None]  # (the group's tensors, the shared pieces); raises ValueError
Shapes = Callable[[Pieces, Pieces], Mapping[str, tuple[int, ...]]]  # (the shared pieces, the network's state)


@dataclass(frozen=True)
class Extra:
    """A group that a method declares.

    Attributes:
        check: Refuses tensors that the group does not have.
        shapes: What it will hold, before anything is measured.
    """

    check: CheckExtra
    shapes: Shapes

    def __call__(self, group: Pieces, shared: Pieces) -> None:
        """Check a group; ValueError where it is another."""
        self.check(group, shared)


def like_shared(group: Pieces, shared: Pieces) -> None:
    """Accept a group that has one tensor of the same shape for every shared piece.

    Raises:
        ValueError: A name is missing or undeclared, or a shape differs; both say the first such name.
    """
    if odd := sorted(set(group) ^ set(shared)):
        raise ValueError(f"{odd[0]} is {'missing' if odd[0] in shared else 'no shared piece'}")
    for name, value in group.items():
        if value.shape != shared[name].shape:
            raise ValueError(f"{name} is {tuple(value.shape)}; its piece is {tuple(shared[name].shape)}")


def shapes_of_shared(shared: Pieces, state: Pieces) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `like_shared` accepts."""
    return {name: tuple(value.shape) for name, value in shared.items()}


def _one_number(group: Pieces, shared: Pieces) -> None:
    """Raise ValueError unless a group is one number, ``{"value": ()}``, finite and not negative."""
    if set(group) != {"value"} or group["value"].shape != ():
        raise ValueError(
            f"it holds {sorted(group)}; it should be one number named 'value', a tensor without dimensions"
        )
    if group["value"].is_meta:
        return
    if not bool(torch.isfinite(group["value"])) or bool(group["value"] < 0):
        raise ValueError(f"its value is {float(group['value'])}; it should be finite and not negative")


scalar = Extra(_one_number, lambda shared, state: {"value": ()})
"""One number, finite and not negative."""
