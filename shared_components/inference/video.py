"""Read a video by PyAV: its frames as they are decoded, upright, each with its time; what is broken is named."""

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

from shared_components.inference import InferenceError

logger = logging.getLogger(__name__)

USUAL_RATE = Fraction(25)
"""Frames per second of a video that does not say its own."""
CONVERT = "convert it to H.264 MP4 or to a folder of images"
_RATES = (Fraction(1, 1000), Fraction(1000))  # a rate beyond these is no rate but a container's clock
_SLACK = Fraction(1, 50)  # share of a duration by which it may be wrong


@dataclass(frozen=True)
class Video:
    """What a container says of its video.

    Attributes:
        path: The file.
        rate: Frames per second, on average.
        frames: How many there are, as counted by whoever wrote the file; None where it does not say.
        seconds: How long it lasts; None where it does not say.
        aspect: Width of a pixel over its height.
    """

    path: Path
    rate: Fraction
    frames: int | None
    seconds: Fraction | None
    aspect: Fraction

    @property
    def total(self) -> int | None:
        """How many frames there will be, about."""
        if self.frames is not None or self.seconds is None:
            return self.frames
        return round(self.seconds * self.rate)


def look_at(path: Path) -> Video:
    """Open a video and decode its first frame.

    Raises:
        InferenceError: It is no video, has no frames, or none that can be decoded here.
    """
    with _opened(path) as container:
        stream = _stream(container, path)
        rate = _plausible(stream.average_rate) or _plausible(stream.guessed_rate) or USUAL_RATE
        aspect = stream.sample_aspect_ratio or Fraction(1)
        first = next(_decoded(container, stream, []), None)
        if first is None:
            raise InferenceError(
                f"video {path} has no frames that can be decoded; check it with another player, or {CONVERT}"
            )
        shown = 1 / aspect if first.rotation % 180 else aspect
        return Video(path, rate, stream.frames or None, _duration(container, stream), shown)


def frames_of(video: Video, *, every: int = 1) -> Iterator[tuple[int, np.ndarray, Fraction]]:
    """Yield every so manieth frame: its number from 0, uint8 RGB (H, W, 3), and its seconds since the first.

    The time never goes back: where a container's clock does (recordings joined end to end), it goes on from the frame
    before. Frames that are missing at the end are said in a warning.

    Raises:
        InferenceError: The frames change their size.
    """
    size, seconds, number, broken = None, Fraction(0), -1, list[Exception]()
    with _opened(video.path) as container:
        stream = _stream(container, video.path)
        timed = _timed(_decoded(container, stream, broken), video.rate)
        for number, (frame, seconds) in enumerate(timed):
            if size not in (None, (frame.width, frame.height)):
                raise InferenceError(_changed_size(video.path, size, frame, number, seconds))
            size = frame.width, frame.height
            if number % every == 0:
                yield number, _upright(frame), seconds
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
def _opened(path: Path) -> Iterator[Any]:
    try:
        # an absolute path, since FFmpeg takes "case:1.mp4" for a protocol
        container = av.open(str(path.absolute()), metadata_errors="ignore")
    except av.error.FFmpegError as error:
        reason = "it is no video, or is cut off or damaged"
        if isinstance(error, OSError):
            reason = error.strerror or reason
        raise InferenceError(
            f"video {path} cannot be read ({reason}); check it with another player, or {CONVERT}"
        ) from error
    with container:
        yield container


def _stream(container: Any, path: Path) -> Any:
    """Return the video that a player would show; a cover picture is none."""
    cover = av.stream.Disposition.attached_pic
    found = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not found:
        raise InferenceError(f"video {path} has no frames; check it with another player, or {CONVERT}")
    known = [stream for stream in found if stream.codec_context is not None]
    if not known:
        raise InferenceError(f"video {path} is of a codec that cannot be decoded here; {CONVERT}")
    return max(known, key=lambda stream: stream.width * stream.height)


def _decoded(container: Any, stream: Any, broken: list[Exception]) -> Iterator[av.VideoFrame]:
    """Yield what can be decoded, until the container ends; `broken` gets the error of every packet that cannot.

    In one thread: with several, FFmpeg loses good frames before a damaged one.
    """
    packets = container.demux(stream)
    while True:
        try:
            frames = next(packets).decode()
        except StopIteration:
            return
        except av.error.EOFError:
            return
        except av.error.FFmpegError as error:
            broken.append(error)
            continue
        yield from frames


def _timed(frames: Iterator[av.VideoFrame], rate: Fraction) -> Iterator[tuple[av.VideoFrame, Fraction]]:
    """Add the seconds since the first frame, which always grow."""
    start = last = None
    for frame in frames:
        due = Fraction(0) if last is None else last + 1 / rate
        clock = _clock(frame)
        if clock is None:
            last = due
        elif start is None or last is None or clock - start <= last:  # the first, or the clock was set back
            start, last = clock - due, due
        else:
            last = clock - start
        yield frame, last


def _clock(frame: av.VideoFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _upright(frame: av.VideoFrame) -> np.ndarray:
    """Return uint8 RGB (H, W, 3), turned as the container says that players turn it."""
    image = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


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
            logger.warning(
                "video %s ends after %d of the %d frames that it announces", video.path, count, video.frames
            )
    elif video.seconds is not None and end < (1 - _SLACK) * video.seconds - 1 / video.rate:
        logger.warning(
            "video %s ends after %.1f of the %.1f seconds that it announces", video.path, end, video.seconds
        )
