"""What SAM2 remembers of an object: its last prompted frames, its last tracked ones, and a pointer of each.

Ravi et al., arXiv 2408.00714, Section 4, "memory bank". Sizes are those of `transformers`, but for prompted frames, of
which it keeps all: a stream with a prompt on every second frame would grow without end. The published training keeps 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shared_components.networks.sam2_architectures import MEMORY

MAPS, POINTERS, PROMPTED = 7, 16, 4
"""Places of maps, the last one of any prompted frame; of pointers, the current frame included; of prompted frames."""


class Remembered(NamedTuple):
    """One frame of one object."""

    time: int
    map: Tensor  # (64, h, w)
    pointer: Tensor  # (C,)


class Bank(NamedTuple):
    """The memories of G objects as memory attention reads them."""

    memory: Tensor  # (G, L, 64), maps before pointers
    places: Tensor  # (L, 64)
    pointers: int  # tokens at the end, which have no place in the image


@dataclass(frozen=True)
class Track:
    """An object's memory, oldest first; without a prompted frame it has not appeared."""

    prompted: tuple[Remembered, ...] = ()
    tracked: tuple[Remembered, ...] = ()

    def ages(self, now: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ages of prompted and tracked frames: objects of equal ages are batched."""
        return tuple(now - one.time for one in self.prompted), tuple(now - one.time for one in self.tracked)

    def with_frame(self, frame: Remembered, *, prompted: bool) -> Track:
        """Return the memory with a frame more, and without what is too old to be read."""
        if prompted:
            return replace(self, prompted=(*self.prompted, frame)[-PROMPTED:])
        last = frame.time - POINTERS + 2  # the oldest that the frame after this one reads
        return replace(self, tracked=(*(one for one in self.tracked if one.time >= last), frame))


def bank_of(tracks: Sequence[Track], now: int, grid: Tensor, sam2: Any) -> Bank:
    """Gather the memories of objects of equal ages; grid: the places (h*w, 64) of a map's cells."""
    given, seen = tracks[0].ages(now)
    recent = [place for place, age in enumerate(seen) if age < MAPS]
    maps = torch.stack([_stacked([*track.prompted, *(track.tracked[n] for n in recent)]) for track in tracks])
    times = [MAPS - 1] * len(given) + [seen[n] - 1 for n in recent]
    temporal = sam2.memory_temporal_positional_encoding[times].flatten(1)  # (7, 1, 1, 64) -> (M, 64)
    pointers = torch.stack([torch.stack([one.pointer for one in (*t.prompted, *t.tracked)]) for t in tracks])
    G, K, C = pointers.shape
    parts = C // MEMORY  # tokens of a pointer
    ages = torch.tensor([*given, *seen], device=maps.device, dtype=torch.float32) / (POINTERS - 1)
    encoded = sam2.temporal_positional_encoding_projection_layer(sine(ages, C))  # (K, C) -> (K, 64)
    memory = torch.cat([maps.flatten(1, 2), pointers.reshape(G, K * parts, MEMORY)], 1)
    places = torch.cat([(temporal[:, None] + grid).flatten(0, 1), encoded.repeat_interleave(parts, 0)])
    return Bank(memory, places, K * parts)


def _stacked(frames: Sequence[Remembered]) -> Tensor:
    """Return maps as cells: M times (64, h, w) -> (M, h*w, 64)."""
    return torch.stack([frame.map for frame in frames]).flatten(2).transpose(1, 2)


def sine(places: Tensor, channels: int) -> Tensor:
    """Encode numbers (K,) as sines and cosines of wavelengths from 2 pi to 20,000 pi: (K, channels)."""
    half = channels // 2
    steps = torch.arange(half, device=places.device, dtype=places.dtype)
    angles = places[:, None] / 10_000 ** (2 * (steps // 2) / half)
    return torch.cat([angles.sin(), angles.cos()], 1)
