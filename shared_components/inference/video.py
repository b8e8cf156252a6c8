"""Read a video by PyAV: upright frames as they are decoded, each with its time; errors name the damage."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from shared_components.data.files import DataError
from shared_components.data.video import CHECK, decoded, opened, shown_stream, upright
from shared_components.inference import InferenceError

logger = logging.getLogger(__name__)

USUAL_RATE = Fraction(25)
"""Frames per second of a video without a rate."""
_RATES = (Fraction(1, 1000), Fraction(1000))  # beyond these a rate is a container's clock
_SLACK = Fraction(1, 50)  # relative tolerance of a duration


@dataclass(frozen=True)
class Video:
    """A video by its container.

    Attributes:
        path: The file.
        rate: Frames per second, on average.
        frames: Announced number of frames, if any.
        seconds: Announced duration, if any.
        aspect: Width of a pixel over its height.
    """

    path: Path
    rate: Fraction
    frames: int | None
    seconds: Fraction | None
    aspect: Fraction

    @property
    def total(self) -> int | None:
        """Approximate number of frames."""
        if self.frames is not None or self.seconds is None:
            return self.frames
        return round(self.seconds * self.rate)


def look_at(path: Path) -> Video:
    """Open a video and decode its first frame; InferenceError where it is none, or none of it can be decoded."""
    with _refused(), opened(path) as container:
        stream = shown_stream(container, path)
        rate = _plausible(stream.average_rate) or _plausible(stream.guessed_rate) or USUAL_RATE
        aspect = stream.sample_aspect_ratio or Fraction(1)
        first = next(decoded(container, stream, []), None)
        if first is None:
            raise InferenceError(f"video {path} has no frames that can be decoded; {CHECK}")
        shown = 1 / aspect if first.rotation % 180 else aspect
        return Video(path, rate, stream.frames or None, _duration(container, stream), shown)


def frames_of(video: Video, *, every: int = 1) -> Iterator[tuple[int, np.ndarray, Fraction]]:
    """Yield every n-th frame: its number from 0, uint8 RGB (H, W, 3), and its seconds since the first.

    Time never goes back: where a container's clock does (recordings joined end to end), it continues from the frame
    before. A warning counts frames that are missing at the end.

    Raises:
        InferenceError: The frames change their size.
    """
    size, seconds, number, broken = None, Fraction(0), -1, list[Exception]()
    with _refused(), opened(video.path) as container:
        stream = shown_stream(container, video.path)
        timed = _timed(decoded(container, stream, broken), video.rate)
        for number, (frame, seconds) in enumerate(timed):
            if size not in (None, (frame.width, frame.height)):
                raise InferenceError(_changed_size(video.path, size, frame, number, seconds))
            size = frame.width, frame.height
            if number % every == 0:
                yield number, upright(frame), seconds
    _warn_of_missing(video, number + 1, len(broken), seconds + 1 / video.rate)


def _changed_size(
    path: Path, before: tuple[int, int] | None, frame: av.VideoFrame, number: int, seconds: Fraction
) -> str:
    old, new = "x".join(map(str, before or ())), f"{frame.width}x{frame.height}"
    return (
        f"video {path} changes its size from {old} to {new} at frame {number} ({float(seconds):.2f} s); cut it there, "
        "or convert it to one size"
    )


@contextmanager
def _refused() -> Iterator[None]:
    """Turn an error of reading into one that names the video."""
    try:
        yield
    except DataError as error:
        raise InferenceError(f"video {error.file} {error.what}; {error.what_to_do}") from error


def _timed(frames: Iterator[av.VideoFrame], rate: Fraction) -> Iterator[tuple[av.VideoFrame, Fraction]]:
    """Pair frames with their seconds since the first, which always grow."""
    start = last = None
    for frame in frames:
        expected = Fraction(0) if last is None else last + 1 / rate
        clock = _clock(frame)
        if clock is None:
            last = expected
        elif start is None or last is None or clock - start <= last:  # the first, or the clock was set back
            start, last = clock - expected, expected
        else:
            last = clock - start
        yield frame, last


def _clock(frame: av.VideoFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _plausible(rate: Fraction | None) -> Fraction | None:
    return rate if rate and _RATES[0] <= rate <= _RATES[1] else None


def _duration(container: Any, stream: Any) -> Fraction | None:
    if stream.duration:
        return stream.duration * stream.time_base
    if not container.duration:
        return None
    return Fraction(container.duration - max(container.start_time or 0, 0), av.time_base)


def _warn_of_missing(video: Video, count: int, broken: int, end: Fraction) -> None:
    if broken:
        logger.warning("video %s: damaged frames that were left out: %d", video.path, broken)
    if video.frames is not None:
        if count + broken < video.frames:
            logger.warning("video %s ends after %d of the %d frames that it announces", video.path, count, video.frames)
    elif video.seconds is not None and end < (1 - _SLACK) * video.seconds - 1 / video.rate:
        logger.warning("video %s ends after %.1f of the %.1f seconds that it announces", video.path, end, video.seconds)
