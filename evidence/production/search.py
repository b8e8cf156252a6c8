"""Search recorded bytes for tensors, under any name and wherever the recording is split.

Several windows of each tensor are searched, since a frame border may split one: 64 bytes, or the whole of a smaller
tensor, as float32, float16, bfloat16, float64 and JSON text. Windows with few different values, such as zeros, are
skipped.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

WINDOW, WINDOWS = 64, 8  # bytes of a window; maximum windows per tensor
TELLING = 4  # different numbers in a window, and different bytes in its first eight
SLAB = 1 << 25  # bytes read at once
_BITS, _FACTOR = 20, np.uint64(0x9E3779B97F4A7C15)

Patterns = dict[str, list[bytes]]


def patterns(tensors: Mapping[str, Tensor]) -> Patterns:
    """Return search windows, by tensor name; tensors without windows are left out."""
    found = {name: windows(value) for name, value in tensors.items()}
    return {name: value for name, value in found.items() if value}


def windows(value: Tensor) -> list[bytes]:
    """Return windows of a tensor's bytes in several number formats."""
    flat = value.detach().cpu().reshape(-1)
    if not flat.is_floating_point():
        return _windows(flat.numpy().tobytes(), flat.element_size())
    found = _windows(flat.contiguous().view(torch.uint8).numpy().tobytes(), flat.element_size())
    if not found:
        return []
    for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        cast = flat.to(kind)
        found += _windows(cast.view(torch.uint8).numpy().tobytes(), cast.element_size())
    for start in _starts(len(flat), 2, 1):
        one, two = flat[start : start + 2].tolist() if len(flat) > 1 else (0.0, 0.0)
        text = f"{one}, {two}".encode()
        if one != two and _tells(text):
            found.append(text)
    return found


def file_windows(path: Path) -> list[bytes]:
    """Return windows of a file's bytes."""
    return _windows(path.read_bytes(), 1)


def _windows(data: bytes, size: int) -> list[bytes]:
    length = min(WINDOW, len(data))
    cut = [data[start : start + length] for start in _starts(len(data), length, size)]
    numbers = [{one[at : at + size] for at in range(0, length, size)} for one in cut]
    return [one for one, different in zip(cut, numbers, strict=True) if len(different) >= TELLING and _tells(one)]


def _starts(total: int, length: int, size: int) -> list[int]:
    last = (total - length) // size
    return sorted({round(last * step / (WINDOWS - 1)) * size for step in range(WINDOWS)}) if last >= 0 else []


def _tells(window: bytes) -> bool:
    return len(window) >= 8 and len(set(window[:8])) >= TELLING


def search(wanted: Mapping[str, Iterable[bytes]], files: Iterable[Path]) -> dict[str, Path]:
    """Return the names that occur in each file, found by any of their windows.

    Args:
        wanted: Windows of at least 8 bytes, by name.
        files: Recordings.
    """
    by_anchor: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
    for name, ones in wanted.items():
        for one in ones:
            by_anchor[int.from_bytes(one[:8], "little")].append((name, one))
    anchors = np.array(sorted(by_anchor), dtype=np.uint64)
    table = np.zeros(1 << _BITS, dtype=bool)
    table[_hash(anchors)] = True
    found: dict[str, Path] = {}
    for path in files:
        if path.stat().st_size < 8:
            continue
        data = np.memmap(path, dtype=np.uint8, mode="r")
        for at in _places(data, anchors, table):
            anchor = int.from_bytes(data[at : at + 8].tobytes(), "little")
            for name, one in by_anchor[anchor]:
                if name not in found and data[at : at + len(one)].tobytes() == one:
                    found[name] = path
    return found


def _hash(values: np.ndarray) -> np.ndarray:
    return (values * _FACTOR) >> np.uint64(64 - _BITS)


def _places(data: np.ndarray, anchors: np.ndarray, table: np.ndarray) -> Iterable[int]:
    """Yield the positions of an anchor of eight bytes."""
    if not len(anchors):
        return
    for begin in range(0, len(data), SLAB):
        slab = np.array(data[begin : begin + SLAB + 7])
        for shift in range(8):
            count = (len(slab) - shift) // 8
            values = slab[shift : shift + 8 * count].view(np.uint64)
            maybe = np.flatnonzero(table[_hash(values)])
            sure = maybe[np.isin(values[maybe], anchors)]
            yield from (begin + shift + 8 * int(one) for one in sure)
