"""SAM2's memory bank of an object: its last prompted frames, its last tracked frames, and a pointer of each.

Ravi et al., arXiv 2408.00714, Section 4, "memory bank". Sizes follow `transformers`, except for the number of prompted
frames: `transformers` keeps all of them, which grows without limit in a stream. The published training keeps 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shared_components.networks.sam2_architectures import MEMORY

MAPS, POINTERS, PROMPTED = 7, 16, 4
"""Maximum numbers of memory maps (the last index is for prompted frames), pointers (with the current frame's), and
prompted frames."""


class Remembered(NamedTuple):
    """Memory of one object in one frame."""

    time: int
    map: Tensor  # (64, h, w)
    pointer: Tensor  # (C,)


class Bank(NamedTuple):
    """Memories of G objects in the format of memory attention."""

    memory: Tensor  # (G, L, 64), maps before pointers
    places: Tensor  # (L, 64)
    pointers: int  # number of pointer tokens at the end, which have no image position


@dataclass(frozen=True)
class Track:
    """Memory of one object, oldest frame first; without a prompted frame the object has not appeared."""

    prompted: tuple[Remembered, ...] = ()
    tracked: tuple[Remembered, ...] = ()

    def ages(self, now: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ages of prompted and tracked frames; objects with equal ages are batched."""
        return tuple(now - frame.time for frame in self.prompted), tuple(now - frame.time for frame in self.tracked)

    def with_frame(self, frame: Remembered, *, prompted: bool) -> Track:
        """Return the memory with a new frame, and without frames that are too old."""
        if prompted:
            return replace(self, prompted=(*self.prompted, frame)[-PROMPTED:])
        oldest = frame.time - POINTERS + 2  # oldest frame that the next frame reads
        return replace(self, tracked=(*(old for old in self.tracked if old.time >= oldest), frame))


def bank_of(tracks: Sequence[Track], now: int, grid: Tensor, sam2: Any) -> Bank:
    """Batch the memories of objects with equal ages; `grid` is the position encoding (h*w, 64) of a map's cells."""
    prompted, tracked = tracks[0].ages(now)
    recent = [place for place, age in enumerate(tracked) if age < MAPS]
    frames = [[*track.prompted, *(track.tracked[n] for n in recent)] for track in tracks]
    # (G, M) maps (64, h, w) -> (G, M, h*w, 64)
    maps = torch.stack([torch.stack([frame.map for frame in own]).flatten(2).transpose(1, 2) for own in frames])
    times = [MAPS - 1] * len(prompted) + [tracked[n] - 1 for n in recent]
    temporal = sam2.memory_temporal_positional_encoding[times].flatten(1)  # (7, 1, 1, 64) -> (M, 64)
    pointers = torch.stack([torch.stack([frame.pointer for frame in (*t.prompted, *t.tracked)]) for t in tracks])
    G, K, C = pointers.shape
    parts = C // MEMORY  # tokens per pointer
    ages = torch.tensor([*prompted, *tracked], device=maps.device, dtype=torch.float32) / (POINTERS - 1)
    encoded = sam2.temporal_positional_encoding_projection_layer(sine(ages, C))  # (K, C) -> (K, 64)
    memory = torch.cat([maps.flatten(1, 2), pointers.reshape(G, K * parts, MEMORY)], 1)
    places = torch.cat([(temporal[:, None] + grid).flatten(0, 1), encoded.repeat_interleave(parts, 0)])
    return Bank(memory, places, K * parts)


def sine(places: Tensor, channels: int) -> Tensor:
    """Encode numbers (K,) as sines and cosines with wavelengths from 2 pi to 20,000 pi: (K, channels)."""
    half = channels // 2
    steps = torch.arange(half, device=places.device, dtype=places.dtype)
    angles = places[:, None] / 10_000 ** (2 * (steps // 2) / half)
    return torch.cat([angles.sin(), angles.cos()], 1)
