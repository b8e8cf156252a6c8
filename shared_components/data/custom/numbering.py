"""Find the frame of a video file that belongs to a mask, by the number in the mask's name."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shared_components.data.files import spacing

FRAMES = "frames"
_RATES = (Fraction(1), Fraction(2), Fraction(5), Fraction(1, 2), Fraction(10), Fraction(1, 5), Fraction(1, 10))
_SPARE = Fraction(3, 2)  # a video has at least so many times the frames that were taken of it
_FEWEST = 3  # masks that can tell a rate


@dataclass(frozen=True)
class Film:
    """A video file: the numbers of its masks, the time of each frame in seconds, and the frame rate."""

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
    """Return the place of a mask's frame in the video; None if there is no such frame.

    Args:
        number: of the mask, 0 for the first one.
        counts: `frames`; `every=25` if every 25th frame was extracted; `fps=1` if FFmpeg's filter `fps=1` extracted
            them: frame k is the last frame before second k + 0.5.
        seconds: when each frame of the video is shown.
    """
    what, _, value = counts.partition("=")
    if what == "fps":
        rate = Fraction(value)
        ticks = [int(Fraction(second).limit_denominator(10**6) * rate + Fraction(1, 2)) for second in seconds]
        place = bisect_right(ticks, number) - 1 if number <= ticks[-1] else -1
    else:
        place = int(number * Fraction(value or 1))
    return place if 0 <= place < len(seconds) and number >= 0 else None


def guess_numbering(films: Mapping[str, Film]) -> Numbering:
    """Guess the numbering of all videos' masks from gaps between numbers and from the videos' durations."""
    if counts := _rate_counted(list(films.values())):
        return Numbering(counts, min(films.values(), key=lambda film: film.numbers[0]).numbers[0], False)
    numbers = [film.numbers for film in films.values()]
    if any(0 in listed for listed in numbers):
        return Numbering(FRAMES, 0, True)
    if any(film.numbers[-1] >= len(film.seconds) for film in films.values()):
        return Numbering(FRAMES, 1, True)
    steps = [spacing(listed) or listed[0] for listed in numbers]
    from_one = all(
        (listed[0] - 1) % step == 0 and (step == 1 or listed[0] % step)
        for listed, step in zip(numbers, steps, strict=True)
    )
    counted = from_one and any(listed[0] == 1 for listed in numbers)
    return Numbering(FRAMES, int(counted), False)


def _rate_counted(films: Sequence[Film]) -> str:
    """Return `fps=1` or `every=25` if each video has as many masks as frames at this rate; else nothing."""
    first = {film.numbers[0] for film in films}
    whole = all(
        list(film.numbers) == list(range(film.numbers[0], film.numbers[0] + len(film.numbers))) for film in films
    )
    if not whole or len(first) != 1 or not first <= {0, 1} or max(len(film.numbers) for film in films) < _FEWEST:
        return ""
    for rate in _RATES:
        fits = [abs(len(film.numbers) - len(film.seconds) / film.rate * rate) < 1 for film in films]
        if all(fits) and all(film.rate >= rate * _SPARE for film in films):
            return _written(rate, films, first.pop())
    return ""


def _written(rate: Fraction, films: Sequence[Film], first: int) -> str:
    """Write a rate: FFmpeg counts from 1, a script that counts from 0 takes every n-th frame."""
    steps = {round(film.rate / rate, 3) for film in films}
    if first == 0 and len(steps) == 1 and (step := steps.pop()).is_integer():
        return f"every={int(step)}"
    return f"fps={float(rate):g}"
