"""What SurgFed's network holds over a long stream: `python -m evidence.benchmarks.following`.

The network `cpu` follows two objects through frames of noise, 64x64, in a process of its own, so that nothing else's
memory is in the figures.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from evidence.benchmarks.streams import resident_bytes
from shared_components.networks.sam2_video import Sam2Clips

MARKS, SIDE = (100, 500, 1000, 2000, 5000, 10_000), 64
BOXES = torch.tensor([[4.0, 4, 40, 30], [30, 20, 60, 60]])


def main() -> None:
    """Print the memory, of a process that does nothing else."""
    subprocess.run([sys.executable, "-m", "evidence.benchmarks.following"], check=True)


def measured(network: Sam2Clips, marks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (tensors remembered, their bytes, resident bytes of the process) after each of these numbers of frames."""
    memory, generator = network.begin_stream(BOXES), torch.Generator().manual_seed(0)
    for number in range(1, max(marks) + 1):
        _, memory = network.remember(torch.rand(1, 3, SIDE, SIDE, generator=generator), memory)
        if number in marks:
            held = list(tensors_of(memory))
            yield len(held), sum(tensor.untyped_storage().nbytes() for tensor in held), resident_bytes()


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested records and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif getattr(type(value), "__dataclass_fields__", None):
        yield from tensors_of(list(vars(value).values()))


def print_memory() -> None:
    """Print what the process and the network's memory hold as the stream goes on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"SurgFed: a stream at {SIDE}x{SIDE}, two objects")
    network = Sam2Clips(architecture="cpu", size=SIDE).eval()
    for frames, (tensors, held, resident) in zip(MARKS, measured(network, MARKS), strict=True):
        print(f"  {frames:6,} frames: {tensors} tensors, {held:,} bytes; process {resident / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    print_memory()
