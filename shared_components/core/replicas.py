"""Divide a site's training between processes, one per GPU, without a change of the result but the rounding of sums.

Each process, a replica, has the same weights and the same random numbers. It reads only its rows of a batch and gathers
the others. Inside `divided`, the network computes only the process's rows and gathers the outputs. Each replica then
has the loss of the whole batch. This is exact for losses that are no means over rows, such as a log of a mean IoU, for
norms of weights, for SAM, and for batch normalisation, which gathers its inputs.

The gradient of gathered rows counts N times in the replica that computed them, and not in the others. The mean over the
N replicas is then the gradient of one process, also for terms that do not depend on the rows. Code outside of `divided`
computes the same in each replica.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import get_protocol_members

from shared_components.networks.parts import trained_parameters
from shared_components.networks.protocols import Encodes, TwoPaths

FOLDER = "replicas"  # in a site's files of a run
MEETING = timedelta(minutes=2)  # timeout of `join`
LONGEST_WAIT = timedelta(hours=2)  # for another replica; the first one validates meanwhile
ROW_WISE = {"forward"} | {n for each in (TwoPaths, Encodes) for n in get_protocol_members(each)}
"""Names of functions of networks whose outputs have one row per row of the batch."""


@dataclass
class _Process:
    """This process among the replicas of a training."""

    rank: int = 0
    size: int = 1
    dividing: bool = False  # whether calls of the network are divided
    rows: int = 0  # of the batch of the divided call that runs now; 0: none


_process = _Process()


def rank() -> int:
    """Return the number of this process among the replicas; 0 saves, validates and measures."""
    return _process.rank


def size() -> int:
    """Return the number of replicas in the training of this process; 1 outside of `training_in`."""
    return _process.size


def join(folder: Path, *, rank: int, size: int) -> None:
    """Join the group of replicas that meet in a folder; their connections are on this machine's loopback interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    gpu = torch.device("cuda", rank) if torch.cuda.is_available() else None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    store = distributed.FileStore(str(folder / "store"), size)
    distributed.init_process_group(
        "gloo" if gpu is None else "nccl", store=store, rank=rank, world_size=size, timeout=MEETING, device_id=gpu
    )
    distributed.distributed_c10d._set_pg_timeout(LONGEST_WAIT)  # has no public name


@contextmanager
def training_in(*, rank: int, size: int) -> Iterator[None]:
    """Train as one of several replicas within this context, after `join`."""
    _process.rank, _process.size = rank, size
    try:
        yield
    finally:
        _process.rank, _process.size = 0, 1


def own_rows(count: int) -> slice:
    """Return this replica's rows of ``count``; the first replicas have one more if they do not divide equally."""
    start = sum(_shares(count)[: _process.rank])
    return slice(start, start + _shares(count)[_process.rank])


def whole_batch(own: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Gather a batch of ``count`` rows from the replicas' rows; ValueError for clips of unequal lengths."""
    if _process.size == 1:
        return dict(own)
    shape = torch.tensor([list(own["image"].shape[1:])], device=own["image"].device)
    shapes = {tuple(row) for row in _gathered(shape, [1] * _process.size).tolist()}
    if len(shapes) > 1:
        raise ValueError(f"samples of {shapes} do not stack to a batch; write gpus: 1 in limits.yaml")
    return {name: _gathered(value, _shares(count)) for name, value in own.items()}


def average(gradients: Sequence[Tensor]) -> None:
    """Replace gradients by their means over all processes of the group."""
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def average_gradients(network: nn.Module) -> None:
    """Average the gradients of a network's parameters over the replicas; without replicas, do nothing."""
    if _process.size > 1:
        average([p.grad for p in trained_parameters(network).values() if p.grad is not None])


def align(network: nn.Module) -> None:
    """Copy the first replica's parameters and buffers to the others."""
    for value in network.state_dict().values() if _process.size > 1 else ():
        distributed.broadcast(value, 0)  # state_dict() shares the network's memory


def value_of_first(value: float) -> float:
    """Return the first replica's value in every replica."""
    if _process.size == 1:
        return value
    where = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    sent = torch.tensor(value, dtype=torch.float64, device=where)
    distributed.broadcast(sent, 0)
    return float(sent)


def refuse_unequal(network: nn.Module) -> None:
    """Raise RuntimeError if the replicas' weights differ, which only a fault of a machine or of this code can cause."""
    if _process.size == 1:
        return
    weights = [value.detach().double() for value in trained_parameters(network).values()]
    sums = torch.stack([torch.stack([value.sum(), value.square().sum()]) for value in weights])
    everywhere = _gathered(sums[None], [1] * _process.size)  # (N, weights, 2)
    if not torch.equal(everywhere, sums.expand_as(everywhere)):
        raise RuntimeError(f"the weights of the {_process.size} GPUs differ after training; write gpus: 1")


@contextmanager
def divided(network: nn.Module) -> Iterator[None]:
    """Divide the rows of the network's calls between the replicas; without replicas, do nothing.

    Each replica has dropout masks of its own. Calls with fewer rows than replicas are not divided. Copies of the
    network that are made here are divided, too. ValueError for outputs that do not have a row per sample.
    """
    if _process.size == 1:
        yield
        return
    kind: type = type(network)
    if getattr(network, "stages_first", False):
        raise ValueError(f"{kind.__name__}'s outputs do not begin with the rows of a batch; write gpus: 1")
    with ExitStack() as stack:
        stack.callback(setattr, _process, "dividing", False)
        stack.callback(setattr, network, "__class__", kind)
        for module in network.modules():
            if isinstance(module, _BatchNorm):
                stack.callback(module.register_forward_pre_hook(_gather_inputs).remove)
                stack.callback(module.register_forward_hook(_own_outputs).remove)
        network.__class__, _process.dividing = _divided_kind(kind), True
        yield


@functools.cache
def _divided_kind(kind: type) -> type:
    """Return a subclass whose row-wise functions are divided; deep copies keep it, and divide only in `divided`."""
    names = [name for name in ROW_WISE if callable(getattr(kind, name, None))]
    return type(kind.__name__, (kind,), {name: _divided_function(getattr(kind, name)) for name in names})


def _divided_function(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
        rows = next((len(value) for value in _tensors((args, kwargs)) if value.dim()), 0)
        if not _process.dividing or _process.rows or rows < _process.size:
            return function(network, *args, **kwargs)

        def own(value: Tensor) -> Tensor:
            return _OwnRows.apply(value, _shares(rows)) if value.dim() and len(value) == rows else value

        def whole(value: Tensor) -> Tensor:
            if not value.dim() or len(value) != _shares(rows)[_process.rank]:
                kind = type(network).__name__
                raise ValueError(f"{kind} has an output {tuple(value.shape)}, not a row per sample; write gpus: 1")
            return _AllRows.apply(value, _shares(rows))

        _process.rows = rows
        try:
            with _own_randomness(next(network.parameters()).device):
                outputs = function(network, *_mapped(own, args), **_mapped(own, kwargs))
        finally:
            _process.rows = 0
        return _mapped(whole, outputs)

    return call


def _gather_inputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Let a batch normalisation in training compute the statistics of the whole batch."""
    if not _in_batch_statistics(module):
        return None
    shares = _shares(_process.rows)  # clips (B, T, ...) come as B * T rows
    return tuple(_AllRows.apply(v, [n * len(v) // shares[_process.rank] for n in shares]) for v in inputs)


def _own_outputs(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
    if not _in_batch_statistics(module):
        return None
    return _OwnRows.apply(output, [n * len(output) // _process.rows for n in _shares(_process.rows)])


def _in_batch_statistics(module: nn.Module) -> bool:
    return _process.rows > 0 and (module.training or module.running_mean is None)


class _AllRows(torch.autograd.Function):
    """Gather the rows of all replicas; the gradient of the own rows counts once for each replica."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return _gathered(value, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.split(ctx.sizes)[_process.rank] * _process.size, None


class _OwnRows(torch.autograd.Function):
    """Select the own rows; the inverse of `_AllRows`, also of its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return value.split(sizes)[_process.rank].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient / _process.size, ctx.sizes), None


def _gathered(own: Tensor, sizes: Sequence[int]) -> Tensor:
    """Gather (sizes[rank], ...) to (sum of sizes, ...), as bytes, since not all backends gather all types."""
    most = max(sizes)
    padded = own.new_zeros(most, *own.shape[1:])
    padded[: len(own)] = own
    pieces = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather([p.view(-1).view(torch.uint8) for p in pieces], padded.view(-1).view(torch.uint8))
    return torch.cat([piece[:count] for piece, count in zip(pieces, sizes, strict=True)])


def _shares(count: int) -> list[int]:
    size = _process.size
    return [count // size + (number < count % size) for number in range(size)]


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Give each replica dropout masks of its own; afterwards all have the same random state again."""
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed + _process.rank)
        yield


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return nested lists, tuples and dictionaries with their tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(change, item) for key, item in value.items()}
    return type(value)(_mapped(change, item) for item in value) if type(value) in (list, tuple) else value
