"""Hashes that annotation programs put into the names of frames: frame_0001_jpg.rf.<hash>.jpg, <hash>-frame_0001.png."""

from __future__ import annotations

import re
from collections.abc import Iterable

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEXADECIMAL = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}|[0-9a-f]{32}"
_MIXED = r"(?=(?:[A-Za-z]*[0-9]+[A-Za-z]+){3})[0-9A-Za-z]{16,64}"
HASH = rf"(?<![0-9A-Za-z])(?:{_UUID}|{_HEXADECIMAL}|{_MIXED})(?![0-9A-Za-z])"
"""Pattern of a hash: a whole word of at least eight hexadecimal digits, or of at least sixteen letters and digits."""
_ADDED = re.compile(rf"[_\-.]?(?:(?:jpe?g|png|bmp|tiff?)[_\-.])?(?:rf[_\-.])?{HASH}", re.IGNORECASE)


def find_hash(name: str) -> re.Match[str] | None:
    """Return where a name has a hash."""
    return re.search(HASH, name, re.IGNORECASE)


def without_hash(name: str) -> str:
    """Return a name without its hash, and without what Roboflow puts before it."""
    return _ADDED.sub("", name)


def without_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return names without their hashes; a number is a hash if other names have a hash in its place."""
    listed = list(names)
    words = {name: re.split(r"([_\-.])", name) for name in listed}
    if len({len(parts) for parts in words.values()}) != 1:
        return {name: without_hash(name) for name in listed}
    for place, column in enumerate(zip(*words.values(), strict=True)):
        hashed = [word for word in column if re.fullmatch(HASH, word, re.IGNORECASE)]
        if 2 * len(hashed) > len(column) == len(set(column)) and len({*map(len, column)}) == 1:
            return {name: without_hash("".join([*parts[:place], *parts[place + 1 :]])) for name, parts in words.items()}
    return {name: without_hash(name) for name in listed}
