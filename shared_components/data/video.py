"""Videos by PyAV: opened with a sentence where that fails, and any frame of one read by its number.

Frames are counted from 0 in the order in which they are shown. To read one, the video is sought to the last key frame
before it and decoded from there, so that it has the very pixels that it has when the video is decoded from its start.
A thread keeps the videos open that it read last.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np

from shared_components.data.files import DataError, refuse_large, refuse_pointer, refuse_special

CONVERT = "convert it to H.264 MP4 or to a folder of images"
MOST_OPEN = 4
"""Videos that a thread keeps open; a decoder of 1080p takes some 50 MB."""
FORMATS = ",".join((
    "mov", "matroska", "avi", "asf", "flv", "ogg", "mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "mxf", "dv",
    "gif", "apng", "mjpeg", "yuv4mpegpipe", "ivf", "nut", "wtv", "rm", "vc1", "obu", "gxf",
))  # fmt: skip
"""The containers of FFmpeg's that are opened: a playlist would have it read other files, or wait for them."""
CHECK = f"check it with another player, or {CONVERT}"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a container.

    Raises:
        DataError: it is none, is damaged, or cannot be opened.
    """
    try:
        refuse_special(path)
        refuse_pointer(path)
        # an absolute path, since FFmpeg takes "case:1.mp4" for a protocol
        container = av.open(str(path.absolute()), metadata_errors="ignore", options={"format_whitelist": FORMATS})
    except (av.error.FFmpegError, OSError) as error:
        reason = "it is no video, or is cut off or damaged, or its container is not read here"
        if isinstance(error, OSError):
            reason = error.strerror or reason
        raise DataError(path, f"cannot be read ({reason})", CHECK) from error
    with container:
        yield container


def shown_stream(container: Any, path: Path) -> Any:
    """Return the video that a player would show; a cover picture is none.

    Raises:
        DataError: there is none, none that can be decoded here, or it has more pixels than `files.MOST_PIXELS`.
    """
    cover = av.stream.Disposition.attached_pic
    found = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not found:
        raise DataError(path, "has no frames", CHECK)
    known = [stream for stream in found if stream.codec_context is not None]
    if not known:
        raise DataError(path, "is of a codec that cannot be decoded here", CONVERT)
    largest = max(known, key=lambda stream: stream.width * stream.height)
    refuse_large(path, (largest.height, largest.width))
    return largest


def decoded(container: Any, stream: Any, broken: MutableSequence[Exception]) -> Iterator[av.VideoFrame]:
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


def upright(frame: av.VideoFrame) -> np.ndarray:
    """Return uint8 RGB (H, W, 3), turned as the container says that players turn it."""
    image = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def frame_count(path: Path) -> int:
    """Return how many frames a video has by its packets, or, where it ends early, how many it announces.

    Those that are missing are refused when they are read.

    Raises:
        DataError: it is missing, damaged or no video.
    """
    index = _index(path)
    return max(index.count, index.announced)


def frame_seconds(path: Path) -> list[float]:
    """Return when each frame is shown, in seconds since the first; without times in the file, by its frame rate.

    Raises:
        DataError: it is missing, damaged or no video.
    """
    index = _index(path)
    with opened(path) as container:
        stream = shown_stream(container, path)
        tick, rate = stream.time_base, stream.average_rate
    if len(index.times) == index.count and tick:
        return [float((time - index.times[0]) * tick) for time in index.times]
    return [float(place / rate) for place in range(index.count)] if rate else []


def read_frame(path: Path, number: int) -> np.ndarray:
    """Read one frame, counted from 0, as uint8 RGB (H, W, 3).

    Raises:
        DataError: the video cannot be read, or this frame cannot be decoded.
    """
    index = _index(path)
    if index.count <= number < index.announced:
        what = f"has no frame {number}: it ends after {index.count} of the {index.announced} frames that it announces"
        raise DataError(path, what, "copy the video again")
    if not 0 <= number < index.count:
        raise DataError(path, f"has no frame {number}, but frames 0 to {index.count - 1}", "correct the number")
    return _reading(path, index).frame(number)


def _reading(path: Path, index: _Index) -> _Reading:
    """Return a thread's open video; of more than `MOST_OPEN` the one is closed that was read least lately."""
    kept: dict[_Index, _Reading] = _OPEN.__dict__.setdefault("readings", {})
    reading = kept.pop(index, None) or _Reading(path, index)
    kept[index] = reading
    if len(kept) > MOST_OPEN:
        kept.pop(next(iter(kept))).close()
    return reading


@dataclass(frozen=True, eq=False)
class _Index:
    """When a video's frames are shown, in the stream's ticks and in order, and which of them are key frames.

    Without times of their own (`seekable` false) frames can only be counted from the start. `announced` is the number
    of frames by the container's header where the video ends earlier, else 0.
    """

    count: int
    times: array[int]
    keys: array[int]
    seekable: bool
    announced: int

    def key_of(self, number: int) -> int:
        """Return the time of the last key frame not after a frame."""
        place = bisect_right(self.keys, self.times[number])
        return self.keys[max(place - 1, 0)]


_OPEN = threading.local()  # the videos that a thread read last, still open


class _Reading:
    """A video open at some frame."""

    def __init__(self, path: Path, index: _Index) -> None:
        self.path, self.index = path, index
        self._context = opened(path)
        self._container = self._context.__enter__()
        self._stream = shown_stream(self._container, path)
        self._begin()

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def frame(self, number: int) -> np.ndarray:
        """Read one frame: go on where that is near, seek where it is not, and count from the start where that fails."""
        if self.index.seekable:
            if not self._is_ahead(number):
                self._seek(self.index.key_of(number))
            found = self._until_time(number)
        else:
            found = self._until_number(number)
        if found is None:
            self._reopen()
            found = self._until_number(number)
        if found is None:
            raise DataError(self.path, f"cannot be decoded at frame {number}", CHECK)
        return upright(found)

    def _begin(self) -> None:
        self._frames = decoded(self._container, self._stream, [])
        self._next = 0
        self._time = -np.inf  # of the frame read last

    def _reopen(self) -> None:
        self.close()
        self.__init__(self.path, self.index)  # type: ignore[misc]  # a container that met its end does not go on

    def _is_ahead(self, number: int) -> bool:
        """Say whether decoding comes to a frame, and no key frame is nearer."""
        return self.index.key_of(number) <= self._time < self.index.times[number]

    def _seek(self, key: int) -> None:
        try:
            self._container.seek(key, stream=self._stream, backward=True)
        except av.error.FFmpegError:
            self._reopen()
        self._frames = decoded(self._container, self._stream, [])
        self._time = -np.inf

    def _until_time(self, number: int) -> av.VideoFrame | None:
        """Decode to a frame by its time; None where it, or the key frame that it needs, does not come."""
        wanted, key = self.index.times[number], self.index.key_of(number)
        passed = self._time >= key
        for frame in self._frames:
            if frame.pts is None:
                return None
            self._time = frame.pts
            passed = passed or frame.pts == key
            if frame.pts >= wanted:
                return frame if frame.pts == wanted and passed else None
        return None

    def _until_number(self, number: int) -> av.VideoFrame | None:
        if self._next > number:
            self._reopen()
        for frame in self._frames:
            self._next += 1
            self._time = np.inf
            if self._next > number:
                return frame
        return None


def _index(path: Path) -> _Index:
    try:
        about = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct the path") from error
    return _indexed(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=256)
def _indexed(path: Path, changed: int, size: int) -> _Index:
    """Look at a video's packets without decoding them."""
    times: list[int | None] = []
    keys = []
    with opened(path) as container:
        stream = shown_stream(container, path)
        try:
            for packet in container.demux(stream):
                if packet.size and not packet.is_discard:  # what an edit list cuts away is not shown
                    times.append(packet.pts)
                    if packet.is_keyframe and packet.pts is not None:
                        keys.append(packet.pts)
        except av.error.FFmpegError as error:
            raise DataError(path, "cannot be read to its end (cut off or damaged)", CHECK) from error
        if not times:
            raise DataError(path, "has no frames", CHECK)
        known = sorted(time for time in times if time is not None)
        announced = _announced(stream, len(times), known)
    seekable = bool(keys) and len(known) == len(set(known)) == len(times) and min(keys) == known[0]
    return _Index(len(times), array("q", known), array("q", sorted(keys)), seekable, announced)


def _announced(stream: Any, packets: int, times: list[int]) -> int:
    """Return the header's number of frames where a video ends before it, else 0.

    A header counts frames that repeat the one before and have no packet (AVI), and may be wrong by one.
    """
    rate, spanned = stream.average_rate, 0
    if rate and times and stream.time_base:
        spanned = round((times[-1] - times[0]) * stream.time_base * rate) + 1
    return stream.frames if stream.frames > max(packets, spanned) + 1 else 0
