"""Open videos with PyAV and read any frame by its number.

Frames are counted from 0 as players show them, without frames hidden by an edit list or dropped by decoders. A frame is
decoded from the last key frame before it, so its pixels equal those of decoding the whole video. Each thread keeps its
last videos open.
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
_COMPARED = 16  # first frames that are decoded and compared with the packets
MOST_OPEN = 4
"""Videos that a thread keeps open; a decoder of 1080p takes some 50 MB."""
FORMATS = ",".join((
    "mov", "matroska", "avi", "asf", "flv", "ogg", "mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "mxf", "dv",
    "gif", "apng", "mjpeg", "yuv4mpegpipe", "ivf", "nut", "wtv", "rm", "vc1", "obu", "gxf",
))  # fmt: skip
"""The containers of FFmpeg's that are opened: a playlist would have it read other files, or wait for them."""
CHECK = f"check it with another player, or {CONVERT}"


@contextmanager
def opened(path: Path, **options: str) -> Iterator[Any]:
    """Open a container, with options of FFmpeg's.

    Raises:
        DataError: it is none, is damaged, or cannot be opened.
    """
    try:
        refuse_special(path)
        refuse_pointer(path)
        # an absolute path, since FFmpeg takes "case:1.mp4" for a protocol
        options = {"format_whitelist": FORMATS, **options}
        container = av.open(str(path.absolute()), metadata_errors="ignore", options=options)
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
    """Return how many frames players show of a video, or, if it ends early, how many it announces.

    Frames that are missing are refused when they are read.

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
    """The times of a video's frames, in the stream's ticks and in order, and of its key frames.

    Without times of their own (`seekable` false) frames can only be counted from the start. `announced` is the number
    of frames by the container's header if the video ends earlier, else 0.
    """

    count: int
    times: array[int]
    keys: array[int]
    seekable: bool
    announced: int

    def key_of(self, number: int) -> float:
        """Return the time of the last key frame not after a frame; -inf: it is decoded from the video's start."""
        place = bisect_right(self.keys, self.times[number])
        return self.keys[place - 1] if place else -np.inf


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
                self._go_to(self.index.key_of(number))
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
        self._at_start = True  # no frame was read yet

    def _reopen(self) -> None:
        self.close()
        self.__init__(self.path, self.index)  # type: ignore[misc]  # a container that met its end does not go on

    def _is_ahead(self, number: int) -> bool:
        """Return whether decoding comes to a frame, and no key frame is nearer."""
        return self.index.key_of(number) <= self._time < self.index.times[number]

    def _go_to(self, key: float) -> None:
        if key == -np.inf:
            if not self._at_start:
                self._reopen()
            return
        try:
            self._container.seek(int(key), stream=self._stream, backward=True)
        except av.error.FFmpegError:
            self._reopen()
        self._frames = decoded(self._container, self._stream, [])
        self._time, self._at_start = -np.inf, False

    def _until_time(self, number: int) -> av.VideoFrame | None:
        """Decode to a frame by its time; None where it, or the key frame that it needs, does not come."""
        wanted, key = self.index.times[number], self.index.key_of(number)
        passed, self._at_start = self._time >= key, False
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
        self._at_start = False
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
    """Look at a video's packets, and decode its first frames; decode all of them if these are not the packets'."""
    packets = _read_packets(path)
    if not packets.times:
        raise DataError(path, "has no frames", CHECK)
    keys = packets.keys
    first, broken = _decode_times(path, most=_COMPARED, until=keys[0] if keys else -np.inf)
    # leading pictures of a cut video lack the frames that they need, and decoders leave them out
    times = [time for time in packets.times if not keys or time is None or time >= keys[0] or time in first]
    shown = sorted(time for time in times if time is not None)
    in_order = len(set(shown)) == len(times) and packets.in_order
    if not (in_order and (broken or first == shown[: len(first)])):
        every, broken = _decode_times(path)
        if broken:
            raise DataError(path, "cannot be decoded to its end (cut off or damaged)", CHECK)
        shown = [time for time in every if time is not None]
        in_order, times = shown == sorted(set(shown)) and len(shown) == len(every), every
    announced = len(times) + packets.missing if packets.missing else 0
    return _Index(len(times), array("q", shown), array("q", keys), in_order, announced)


@dataclass(frozen=True)
class _Packets:
    """Packets that players show: their times, the times of key frames in order, and how many the header has besides.

    `in_order` is whether the clock of decoding never goes back, as it does in recordings that were joined.
    """

    times: list[int | None]
    keys: list[int]
    in_order: bool
    missing: int


def _read_packets(path: Path) -> _Packets:
    times: list[int | None] = []
    keys, clock = [], []
    with opened(path) as container:
        stream = shown_stream(container, path)
        for packet in _sized(container, stream, path):
            if packet.is_discard:  # an edit list cuts it away
                continue
            times.append(packet.pts)
            clock += [] if packet.dts is None else [packet.dts]
            if packet.is_keyframe and packet.pts is not None:
                keys.append(packet.pts)
        known = [time for time in times if time is not None]
        span = _span(stream, known)
        lacks = stream.frames > max(len(times), span) + 1
    missing = stream.frames - max(_count_unedited(path), span) if lacks else 0
    return _Packets(times, sorted(keys), clock == sorted(clock), missing if missing > 1 else 0)


def _sized(container: Any, stream: Any, path: Path) -> Iterator[Any]:
    """Yield the packets of a stream that hold something."""
    try:
        yield from (packet for packet in container.demux(stream) if packet.size)
    except av.error.FFmpegError as error:
        raise DataError(path, "cannot be read to its end (cut off or damaged)", CHECK) from error


def _count_unedited(path: Path) -> int:
    """Count the packets of a video as if it had no edit list, which may hide frames that the header counts."""
    with opened(path, ignore_editlist="1") as container:
        return sum(1 for _ in _sized(container, shown_stream(container, path), path))


def _span(stream: Any, times: list[int]) -> int:
    """Return how many frames fit between the first and the last; a header counts repeated ones without a packet."""
    if not (stream.average_rate and times and stream.time_base):
        return 0
    return round((max(times) - min(times)) * stream.time_base * stream.average_rate) + 1


def _decode_times(
    path: Path, *, most: float = np.inf, until: float = -np.inf
) -> tuple[list[int | None], list[Exception]]:
    """Decode a video; return the times of its first ``most`` frames, and of more ``until`` a time, and the errors."""
    times: list[int | None] = []
    broken: list[Exception] = []
    with opened(path) as container:
        for frame in decoded(container, shown_stream(container, path), broken):
            times.append(frame.pts)
            if len(times) >= most and (frame.pts is None or frame.pts >= until):
                break
    return times, broken
