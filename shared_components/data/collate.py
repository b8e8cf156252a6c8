"""Stack samples to batches, move batches to a device, and convert them to numbers."""

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor


class BatchBuffer:
    """Memory of a batch of ``size`` samples, which threads fill; pinned if the batch goes to an NVIDIA GPU."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._forms: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._size, self._missing, self._pinned, self._lock = size, size, pinned, threading.Lock()

    def put(self, place: int, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor] | None:
        """Copy a sample's arrays to its place; return the tensors (size, ...) after the last sample, and forget them.

        ValueError if names, shapes or types of the arrays differ from another sample's.
        """
        forms = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        with self._lock:
            if not self._forms:
                self._tensors, self._forms = {name: self._empty(array) for name, array in arrays.items()}, forms
        if forms != self._forms:
            unlike = {n: (self._forms.get(n), forms.get(n)) for n in {**self._forms, **forms}}
            different = "; ".join(f"{name} {a} and {b}" for name, (a, b) in unlike.items() if a != b)
            raise ValueError(f"samples do not stack to a batch: {different}; write batch_size: 1 for whole sequences")
        for name, array in arrays.items():
            self._tensors[name][place].numpy()[...] = array
        with self._lock:
            self._missing -= 1
            if self._missing:
                return None
            tensors, self._tensors = self._tensors, {}
            return tensors

    def _empty(self, array: np.ndarray) -> Tensor:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return torch.empty((self._size, *array.shape), dtype=dtype, pin_memory=self._pinned)


class BatchStream:
    """Makes batches on a CUDA stream of its own, while the GPU computes; on other devices, when they are taken.

    Threads may make batches at the same time, also while a CUDA graph is recorded in another thread, if the recording's
    ``capture_error_mode`` is "thread_local".
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, batch: Callable[[], dict[str, Tensor]]) -> Callable[[], dict[str, Tensor]]:
        """Queue a function's work; return a function that gives its batch to the caller's stream, without a wait."""
        if (stream := self._stream) is None:
            return batch
        with torch.cuda.stream(stream):
            made, done = batch(), stream.record_event()

        def take() -> dict[str, Tensor]:
            current = torch.cuda.current_stream(stream.device)
            current.wait_event(done)
            for value in made.values():
                value.record_stream(current)  # its memory is free when the caller's work is done
            return made

        return take


def collate(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack samples to a batch of numbers, see `as_numbers`; ValueError for sequences of unequal lengths."""
    return as_numbers(stack_samples(items))


def stack_samples(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack samples to a batch of their stored types; raise a ValueError for sequences of unequal lengths."""
    if len(shapes := {tuple(item["image"].shape) for item in items}) > 1:
        raise ValueError(f"samples of {shapes} do not stack to a batch; write batch_size: 1 for whole sequences")
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def as_numbers(batch: Mapping[str, Tensor], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Move a batch of stored samples to a device, and convert it there to the types that networks and losses take.

    Images become float32 in [0, 1], and ids such as "label" int64. Numbers such as "depth" stay float32. Bytes cross to
    a GPU from pinned memory, while it computes.
    """
    return to_numbers(to_device(batch, torch.device(device)))


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Move the tensors of a batch from the CPU to a device; to a GPU from pinned memory, without a wait."""
    pinned = device.type == "cuda"
    return {
        name: (value.pin_memory() if pinned else value).to(device, non_blocking=pinned) for name, value in batch.items()
    }


def to_numbers(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a batch with images of grey levels 0 to 255 as :func:`as_numbers` does, on its device."""
    targets = {name: value for name, value in batch.items() if name != "image"}
    return {
        "image": batch["image"].float() / 255,
        **{name: value if value.is_floating_point() else value.long() for name, value in targets.items()},
    }
