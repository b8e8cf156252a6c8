"""Find the frame of an image or mask by its name, ignoring hashes that annotation programs add to names."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from shared_components.data.files.images import frame_number, natural_order, spacing

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEXADECIMAL = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,64}|[0-9a-f]{32}"
_MIXED = r"(?=(?:[A-Za-z]*[0-9]+[A-Za-z]+){3})[0-9A-Za-z]{16,64}"
_HASH = rf"(?<![0-9A-Za-z])(?:{_UUID}|{_HEXADECIMAL}|{_MIXED})(?![0-9A-Za-z])"
_ADDED = re.compile(rf"[_\-.]?(?:(?:jpe?g|png|bmp|tiff?)[_\-.])?(?:rf[_\-.])?{_HASH}", re.IGNORECASE)
FRAME_PATTERN = rf"(?:{_HASH}[_\-.])?\d+(?:[^/\d]*?{_HASH})?"
"""Pattern of a frame's number with a hash, such as frame_0001_jpg.rf.<hash>.jpg or <hash>-frame_0001.png."""
ALL_FRAMES = "frames"
"""Numbering of masks by all frames of a video."""
_RATES = (Fraction(1), Fraction(2), Fraction(5), Fraction(1, 2), Fraction(10), Fraction(1, 5), Fraction(1, 10))
_SPARE = Fraction(3, 2)  # minimum ratio of frame rate to extraction rate
_FEWEST = 3  # minimum number of masks for a guess of the rate


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


@dataclass(frozen=True)
class VideoMasks:
    """Numbers of a video file's masks, the time of each frame in seconds, and the frame rate."""

    numbers: Sequence[int]
    seconds: Sequence[float]
    rate: float


@dataclass(frozen=True)
class Numbering:
    """Numbering of masks (see `place_of`), the number of the first mask, and whether both are certain."""

    counts: str
    first: int
    certain: bool


def place_of(number: int, counts: str, seconds: Sequence[float]) -> int | None:
    """Return the position in the video of the frame of mask `number`, from 0; None if there is no such frame.

    `seconds` is the time of each frame. `counts` is `frames`; `every=25` if every 25th frame was extracted; `fps=1` if
    FFmpeg's filter `fps=1` extracted them: frame k is the last frame before second k + 0.5.
    """
    kind, _, value = counts.partition("=")
    if kind == "fps":
        rate = Fraction(value)
        ticks = [int(Fraction(second).limit_denominator(10**6) * rate + Fraction(1, 2)) for second in seconds]
        place = bisect_right(ticks, number) - 1 if number <= ticks[-1] else -1
    else:
        place = int(number * Fraction(value or 1))
    return place if 0 <= place < len(seconds) and number >= 0 else None


def guess_numbering(videos: Mapping[str, VideoMasks]) -> Numbering:
    """Guess the numbering of all videos' masks from gaps between numbers and from the videos' durations."""
    masks = list(videos.values())
    if counts := _extraction_rate(masks):
        return Numbering(counts, min(video.numbers[0] for video in masks), False)
    if any(0 in video.numbers for video in masks):
        return Numbering(ALL_FRAMES, 0, True)
    if any(video.numbers[-1] >= len(video.seconds) for video in masks):
        return Numbering(ALL_FRAMES, 1, True)
    firsts = [(video.numbers[0], spacing(video.numbers) or video.numbers[0]) for video in masks]
    from_one = all((first - 1) % step == 0 and (step == 1 or first % step) for first, step in firsts)
    return Numbering(ALL_FRAMES, int(from_one and any(first == 1 for first, _ in firsts)), False)


def _extraction_rate(videos: Sequence[VideoMasks]) -> str:
    """Return `fps=1` or `every=25` if each video has as many masks as frames at this rate; else ""."""
    first = {video.numbers[0] for video in videos}
    consecutive = all(list(v.numbers) == list(range(v.numbers[0], v.numbers[0] + len(v.numbers))) for v in videos)
    if not consecutive or len(first) != 1 or not first <= {0, 1} or max(len(v.numbers) for v in videos) < _FEWEST:
        return ""
    for rate in _RATES:
        fits = [abs(len(video.numbers) - len(video.seconds) / video.rate * rate) < 1 for video in videos]
        if all(fits) and all(video.rate >= rate * _SPARE for video in videos):
            steps = {round(video.rate / rate, 3) for video in videos}
            # FFmpeg counts from 1; a script that takes every n-th frame counts from 0
            if first == {0} and len(steps) == 1 and (step := steps.pop()).is_integer():
                return f"every={int(step)}"
            return f"fps={float(rate):g}"
    return ""
