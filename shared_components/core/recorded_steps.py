"""Record training steps as CUDA graphs: one launch replays a thousand small kernels.

Rules of https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs: static inputs, first steps on a side stream,
rates in tensors, no value read on the host, no copy from the host.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.schedules import UNSCHEDULED

WARM_UP = 3  # steps of each batch shape before its recording, while libraries choose their kernels
Key = tuple[Any, ...]
Take = Callable[..., Tensor]  # (batch, *variant) -> result

_recording: ContextVar[bool] = ContextVar("recording", default=False)


def recording() -> bool:
    """Return whether a step is being recorded, or prepares a recording; then no code may read a tensor's values."""
    return _recording.get()


@contextmanager
def without_reading() -> Iterator[None]:
    """Let :func:`recording` return True while the block runs."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


class NotRecordable(ValueError):
    """A step that CUDA cannot record, with the settings that switch recording off."""


@dataclass(frozen=True)
class Recording:
    """A CUDA graph with its input tensors and its result."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    result: Tensor

    def replay(self, batch: Mapping[str, Tensor]) -> Tensor:
        for name, value in batch.items():
            self.inputs[name].copy_(value, non_blocking=True)
        self.graph.replay()
        return self.result


def recordable(network: nn.Module, task: Any) -> bool:
    """Return whether network and task declare that the operations of a step depend only on the batch's shapes."""
    return getattr(network, "recordable", False) and getattr(task, "recordable", False)


class Graphs:
    """Takes steps with one recorded CUDA graph per batch shape and variant of the step.

    The first `WARM_UP` steps of a shape run eagerly on a side stream. All graphs share their memory, since only one
    runs at a time and each writes its result before the next one starts.

    The learning rates of the optimizer, AdamW or SGD, become tensors on the device, see `schedules.write_rate`. It
    becomes fused, because SGD otherwise reads the rate on the host.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._recordings: dict[Key, Recording] = {}
        self._steps: Counter[Key] = Counter()
        self._device = optimizer.param_groups[0]["params"][0].device
        self._stream = torch.cuda.Stream(self._device)
        for group in optimizer.param_groups:
            group["fused"] = True
            if not isinstance(group["lr"], Tensor):
                group.setdefault(UNSCHEDULED, group["lr"])
                group["lr"] = torch.tensor(group["lr"], device=self._device)

    def __call__(self, take: Take, batch: Mapping[str, Tensor], *variant: Any) -> Tensor:
        """Take a step on a batch and return its result, which the next step overwrites.

        The operations of ``take`` depend only on the batch's shapes and the variant; it is the same in every call.
        NotRecordable: CUDA refuses to record them, and the step was not taken. ValueError: it also lost its generator.
        """
        key = (*variant, *((name, value.shape, value.dtype) for name, value in batch.items()))
        with torch.cuda.device(self._device):
            if key not in self._recordings:
                self._steps[key] += 1
                if self._steps[key] <= WARM_UP:
                    return self._warm_up(take, batch, variant)
                self._recordings[key] = self._record(take, batch, variant)
            return self._recordings[key].replay(batch)

    def _warm_up(self, take: Take, batch: Mapping[str, Tensor], variant: Key) -> Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), without_reading():
            result = take(batch, *variant)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _record(self, take: Take, batch: Mapping[str, Tensor], variant: Key) -> Recording:
        inputs = {name: value.clone() for name, value in batch.items()}
        pool = next((recording.graph.pool() for recording in self._recordings.values()), None)
        graph = torch.cuda.CUDAGraph()
        # thread_local: threads that prepare batches may use CUDA meanwhile
        capture = torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local")
        try:
            with self._capturable(), without_reading(), capture:
                result = take(inputs, *variant)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise (NotRecordable if self._draws() else ValueError)(
                f"training steps cannot be recorded as a CUDA graph ({reason}); write recorded_steps: false in "
                "limits.yaml, or for a bundle --train#step#recorded false"
            ) from error
        return Recording(graph, inputs, result)

    def _draws(self) -> bool:
        """Return whether the device draws random numbers; after a failed recording, CUDA's generator may not."""
        try:
            torch.rand((), device=self._device)
        except RuntimeError:
            return False
        return True

    @contextmanager
    def _capturable(self) -> Iterator[None]:
        """Mark the optimizer as capturable only while a graph is recorded: eager steps would warn of it."""
        groups = self._optimizer.param_groups
        for group in groups:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in groups:
                group["capturable"] = False
