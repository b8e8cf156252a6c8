"""Find frame numbers in file names, and ignore hashes that annotation programs add to the names."""

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from shared_components.data.files import frame_number, natural_order

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEXADECIMAL = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}|[0-9a-f]{32}"
_MIXED = r"(?=(?:[A-Za-z]*[0-9]+[A-Za-z]+){3})[0-9A-Za-z]{16,64}"
_HASH = rf"(?<![0-9A-Za-z])(?:{_UUID}|{_HEXADECIMAL}|{_MIXED})(?![0-9A-Za-z])"
_ADDED = re.compile(rf"[_\-.]?(?:(?:jpe?g|png|bmp|tiff?)[_\-.])?(?:rf[_\-.])?{_HASH}", re.IGNORECASE)
FRAME = rf"(?:{_HASH}[_\-.])?\d+(?:[^/\d]*?{_HASH})?"
"""Pattern of a frame's number with a hash, such as frame_0001_jpg.rf.<hash>.jpg or <hash>-frame_0001.png."""


def hashless_number(file: Path, name: str) -> int:
    """Return the number in a file's frame name, ignoring a hash; DataError if there is none."""
    return frame_number(file.with_name(f"{_without_hash(name)}.png"))


def _without_hash(name: str) -> str:
    """Remove the hash and the prefix that Roboflow puts before it."""
    return _ADDED.sub("", name)


def _without_hashes(names: Iterable[str]) -> dict[str, str]:
    """Remove hashes from names; a number is a hash if most names have a hash in the same place."""
    words = {name: re.split(r"([_\-.])", name) for name in names}
    if len({len(parts) for parts in words.values()}) == 1:
        for place, column in enumerate(zip(*words.values(), strict=True)):
            hashes = [word for word in column if re.fullmatch(_HASH, word, re.IGNORECASE)]
            if 2 * len(hashes) > len(column) == len(set(column)) and len({*map(len, column)}) == 1:
                words = {name: [*parts[:place], *parts[place + 1 :]] for name, parts in words.items()}
                break
    return {name: _without_hash("".join(parts)) for name, parts in words.items()}


def in_frame_order(names: Iterable[str]) -> list[str]:
    """Sort frame names in natural order, ignoring hashes."""
    plain = _without_hashes(names)
    return sorted(plain, key=lambda name: (natural_order(plain[name]), natural_order(name)))


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Number frames by the last number in their names, or by position if those numbers are not in order."""
    ordered = in_frame_order(names)
    plain = _without_hashes(ordered)
    if all(re.search(r"\d", name) for name in plain.values()):
        numbers = {name: frame_number(Path(f"{plain[name]}.png")) for name in ordered}
        if all(before < after for before, after in pairwise(numbers.values())):
            return numbers
    return {name: place for place, name in enumerate(ordered)}


@lru_cache(maxsize=1 << 16)
def frame_span(stem: str) -> tuple[int, int]:
    """Return the position of the last number in a name, including a hash; the whole name if there is neither."""
    hashed = re.search(_HASH, stem, re.IGNORECASE)
    spans = [
        match.span()
        for match in re.finditer(r"\d+", stem)
        if hashed is None or match.end() <= hashed.start() or match.start() >= hashed.end()
    ][-1:]
    spans += [] if hashed is None else [hashed.span()]
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else (0, len(stem))
