"""Find the frame of a video file that belongs to a mask, by the number in the mask's name."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shared_components.data.files import spacing

FRAMES = "frames"
_RATES = (Fraction(1), Fraction(2), Fraction(5), Fraction(1, 2), Fraction(10), Fraction(1, 5), Fraction(1, 10))
_SPARE = Fraction(3, 2)  # minimum ratio of frame rate to extraction rate
_FEWEST = 3  # minimum number of masks for a guess of the rate


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
    """Return the position of a mask's frame in the video; None if there is no such frame.

    Args:
        number: Number of the mask, 0 for the first mask.
        counts: `frames`; `every=25` if every 25th frame was extracted; `fps=1` if FFmpeg's filter `fps=1` extracted
            them: frame k is the last frame before second k + 0.5.
        seconds: Time of each frame.
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
        return Numbering(FRAMES, 0, True)
    if any(video.numbers[-1] >= len(video.seconds) for video in masks):
        return Numbering(FRAMES, 1, True)
    firsts = [(video.numbers[0], spacing(video.numbers) or video.numbers[0]) for video in masks]
    from_one = all((first - 1) % step == 0 and (step == 1 or first % step) for first, step in firsts)
    return Numbering(FRAMES, int(from_one and any(first == 1 for first, _ in firsts)), False)


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
