"""Hashes that annotation programs put into the names of frames: frame_0001_jpg.rf.<hash>.jpg, <hash>-frame_0001.png."""

from __future__ import annotations

import re

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEXADECIMAL = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}|[0-9a-f]{32}"
_MIXED = r"(?=(?:[A-Za-z]*[0-9]+[A-Za-z]+){3})[0-9A-Za-z]{16,64}"
HASH = rf"(?<![0-9A-Za-z])(?:{_UUID}|{_HEXADECIMAL}|{_MIXED})(?![0-9A-Za-z])"
"""What a hash is like: a whole word of eight hexadecimal digits or more, or of sixteen letters and digits or more."""
_ADDED = re.compile(rf"[_\-.]?(?:(?:jpe?g|png|bmp|tiff?)[_\-.])?(?:rf[_\-.])?{HASH}", re.IGNORECASE)


def find_hash(name: str) -> re.Match[str] | None:
    """Return where a name has a hash."""
    return re.search(HASH, name, re.IGNORECASE)


def without_hash(name: str) -> str:
    """Return a name without its hash, and without what Roboflow puts before it."""
    return _ADDED.sub("", name)
