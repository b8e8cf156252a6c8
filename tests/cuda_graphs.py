"""Stand-in for CUDA graphs on a CPU: it records a step's operators, undoes them, and replays them on the same tensors.

As on a GPU, recording does not execute a step, a replay repeats the recorded values of Python, and an operator that
reads a tensor's values on the host, or copies new values from the host, fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "lift_fresh")
"""Operators that read values, have outputs whose shapes depend on values, or make tensors from Python numbers."""


def reads_host(func: Any, args: tuple) -> bool:
    """Return whether an operator needs the host: `HOST_READS`, or an index by a mask."""
    name = func.overloadpacket.__name__
    masks = [t for t in tree_leaves(args[1:]) if isinstance(t, Tensor) and t.dtype is torch.bool]
    return name in HOST_READS or (name in ("index", "index_put_", "index_put") and bool(masks))


class NoHost(TorchDispatchMode):
    """Fails at operators that need the host, and counts all operators."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if reads_host(func, args):
            raise AssertionError(f"{func} reads or writes values on the host")
        self.count += 1
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Records the operators of a block; at its end, restores the tensors that existed before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []
        self._own: set[int] = set()  # addresses of storages that the block made
        self._alive: list[Any] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if reads_host(func, args):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in self._written(func, args, kwargs):
            if tensor.untyped_storage().data_ptr() not in self._own:
                self._before.setdefault(id(tensor), (tensor, tensor.clone()))
        out = func(*args, **kwargs)
        fresh = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given]
        self._own.update(t.untyped_storage().data_ptr() for t in fresh)
        self._alive.append(out)
        self.calls.append((func, args, kwargs, out))
        return out

    @staticmethod
    def _written(func, args, kwargs) -> Iterator[Tensor]:
        for number, argument in enumerate(func._schema.arguments):
            declared = argument.alias_info is not None and argument.alias_info.is_write
            if declared or argument.name.startswith("running_"):  # batch norm does not declare its statistics
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                yield from (t for t in tree_leaves(value) if isinstance(t, Tensor))

    @torch.no_grad()
    def undo(self) -> None:
        for tensor, value in self._before.values():
            tensor.copy_(value)


class Graph:
    """Stands for `torch.cuda.CUDAGraph`."""

    replays = 0

    def __init__(self) -> None:
        self.recorder = Recorder()

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    @torch.no_grad()
    def replay(self) -> None:
        Graph.replays += 1
        for func, args, kwargs, out in self.recorder.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def eager_by_context(network, optimizer, method, context, objective) -> str:
    """Stands for `training.why_eager`, which records nothing on a CPU."""
    return context.eager


class Stream:
    def __init__(self, device=None) -> None:
        pass

    def wait_stream(self, other) -> None:
        pass


@pytest.fixture
def cuda_graphs(monkeypatch) -> type[Graph]:
    """Record steps on the CPU; `replays` of the result counts the replayed graphs."""

    @contextlib.contextmanager
    def capture(graph, *, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local" and pool in (None, (0, 1))
        state = torch.get_rng_state()
        with graph.recorder:
            yield
        graph.recorder.undo()
        torch.set_rng_state(state)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(Graph, "replays", 0)
    return Graph
