"""Open videos with PyAV and read any frame by its number.

Frames are numbered from 0 as players show them, without frames that an edit list hides or decoders drop. A frame is
decoded from the last key frame before it, so its pixels equal the pixels of decoding the whole video. Each thread keeps
its last videos open.
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

from shared_components.data.files.images import DataError, refuse_large, refuse_pointer, refuse_special

_CONVERT = "convert it to H.264 MP4 or to a folder of images"
_COMPARED = 16  # first frames that are decoded to compare their times with the packets' times
_MAX_OPEN = 4  # videos per thread; a decoder of 1080p takes about 50 MB
FORMATS = ",".join((
    "mov", "matroska", "avi", "asf", "flv", "ogg", "mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "mxf", "dv",
    "gif", "apng", "mjpeg", "yuv4mpegpipe", "ivf", "nut", "wtv", "rm", "vc1", "obu", "gxf",
))  # fmt: skip
"""Permitted FFmpeg containers: with a playlist, FFmpeg would read other files or wait for them."""
CHECK = f"check it with another player, or {_CONVERT}"


@contextmanager
def opened(path: Path, **options: str) -> Iterator[Any]:
    """Open a container with FFmpeg options; DataError if it is missing, damaged or no video."""
    try:
        refuse_special(path)
        refuse_pointer(path)
        # an absolute path, because FFmpeg takes "case:1.mp4" for a protocol
        options = {"format_whitelist": FORMATS, **options}
        container = av.open(str(path.absolute()), metadata_errors="ignore", options=options)
    except (av.error.FFmpegError, OSError) as error:
        reason = "it is no video, damaged, cut off, or in an unsupported container"
        if isinstance(error, OSError):
            reason = error.strerror or reason
        raise DataError(path, f"cannot be read ({reason})", CHECK) from error
    with container:
        yield container


def shown_stream(container: Any, path: Path) -> Any:
    """Return the video stream that a player shows, no cover picture; DataError if none can be decoded."""
    cover = av.stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        raise DataError(path, "has no frames", CHECK)
    decodable = [stream for stream in streams if stream.codec_context is not None]
    if not decodable:
        raise DataError(path, "has an unsupported codec", _CONVERT)
    largest = max(decodable, key=lambda stream: stream.width * stream.height)
    refuse_large(path, (largest.height, largest.width))
    return largest


def decoded(container: Any, stream: Any, broken: MutableSequence[Exception]) -> Iterator[av.VideoFrame]:
    """Yield the decodable frames; add the errors of the other packets to `broken`.

    Decoding uses one thread: with several, FFmpeg loses good frames before a damaged frame.
    """
    packets = container.demux(stream)
    while True:
        try:
            frames = next(packets).decode()
        except (StopIteration, av.error.EOFError):
            return
        except av.error.FFmpegError as error:
            broken.append(error)
            continue
        yield from frames


def upright(frame: av.VideoFrame) -> np.ndarray:
    """Convert a frame to uint8 RGB (H, W, 3), turned by the container's rotation."""
    image = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def frame_count(path: Path) -> int:
    """Return the number of frames that players show, or that the header announces if the video ends early."""
    index = _index(path)
    return max(index.count, index.announced)


def frame_seconds(path: Path) -> list[float]:
    """Return the time of each frame in seconds after the first; without times in the file, by its frame rate."""
    index = _index(path)
    with opened(path) as container:
        stream = shown_stream(container, path)
        tick, rate = stream.time_base, stream.average_rate
    if len(index.times) == index.count and tick:
        return [float((time - index.times[0]) * tick) for time in index.times]
    return [float(place / rate) for place in range(index.count)] if rate else []


def read_frame(path: Path, number: int) -> np.ndarray:
    """Read frame ``number``, from 0, as uint8 RGB (H, W, 3); DataError if it cannot be read."""
    index = _index(path)
    if index.count <= number < index.announced:
        what = f"has no frame {number}: it ends after {index.count} of the {index.announced} frames that it announces"
        raise DataError(path, what, "copy the video again")
    if not 0 <= number < index.count:
        raise DataError(path, f"has no frame {number}, but frames 0 to {index.count - 1}", "correct the number")
    readings: dict[_Index, _Reading] = _OPEN.__dict__.setdefault("readings", {})  # least recently used first
    reading = readings.pop(index, None) or _Reading(path, index)
    readings[index] = reading
    if len(readings) > _MAX_OPEN:
        readings.pop(next(iter(readings))).close()
    return reading.frame(number)


@dataclass(frozen=True, eq=False)
class _Index:
    """Times of a video's frames and key frames, in ticks of the stream and in order."""

    count: int
    times: array[int]
    keys: array[int]
    seekable: bool  # whether all frames have times; else frames are counted from the start
    announced: int  # number of frames in the container's header if the video ends earlier, else 0

    def key_of(self, number: int) -> float:
        """Return the time of the last key frame up to a frame; -inf: decode from the start."""
        place = bisect_right(self.keys, self.times[number])
        return self.keys[place - 1] if place else -np.inf


_OPEN = threading.local()  # the thread's open videos


class _Reading:
    def __init__(self, path: Path, index: _Index) -> None:
        self.path, self.index = path, index
        self._context = opened(path)
        self._container = self._context.__enter__()
        self._stream = shown_stream(self._container, path)
        self._frames = decoded(self._container, self._stream, [])
        self._next = 0
        self._time = -np.inf  # time of the last frame
        self._at_start = True  # no frame was read yet

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def frame(self, number: int) -> np.ndarray:
        """Read a frame: decode on if it is near, else seek; if that fails, count from the start."""
        image = None
        if self.index.seekable:
            key = self.index.key_of(number)
            if not key <= self._time < self.index.times[number]:  # the frame is behind, or a key frame is nearer
                self._seek(key)
            image = self._until_time(self.index.times[number], key)
        else:
            image = self._until_number(number)
        if image is None:
            self._reopen()
            image = self._until_number(number)
        if image is None:
            raise DataError(self.path, f"cannot be decoded at frame {number}", CHECK)
        return upright(image)

    def _reopen(self) -> None:
        self.close()
        self.__init__(self.path, self.index)  # type: ignore[misc]  # a container cannot go on after its end

    def _seek(self, key: float) -> None:
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

    def _until_time(self, wanted: int, key: float) -> av.VideoFrame | None:
        """Decode to a frame by its time; return None if the frame or its key frame is missing."""
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
        status = path.stat()
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "put it back or correct the path") from error
    return _make_index(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _make_index(path: Path, changed: int, size: int) -> _Index:
    """Read a video's packets and decode its first frames; if their times differ, decode all frames."""
    packet_times, keys, in_order, missing = _read_packets(path)
    if not packet_times:
        raise DataError(path, "has no frames", CHECK)
    first, broken = _decode_times(path, most=_COMPARED, until=keys[0] if keys else -np.inf)
    # decoders drop leading pictures of a cut video, because they need frames that were cut away
    times = [time for time in packet_times if not keys or time is None or time >= keys[0] or time in first]
    shown = sorted(time for time in times if time is not None)
    in_order = len(set(shown)) == len(times) and in_order
    if not (in_order and (broken or first == shown[: len(first)])):
        times, broken = _decode_times(path)
        if broken:
            raise DataError(path, "cannot be decoded to its end (cut off or damaged)", CHECK)
        shown = [time for time in times if time is not None]
        in_order = shown == sorted(set(shown)) and len(shown) == len(times)
    return _Index(len(times), array("q", shown), array("q", keys), in_order, len(times) + missing if missing else 0)


def _read_packets(path: Path) -> tuple[list[int | None], list[int], bool, int]:
    """Return the times of the packets that players show, and of key frames; whether the decoding clock never goes back,
    as it does in joined recordings; and the number of announced but missing packets."""
    times: list[int | None] = []
    keys, clock = [], []
    with opened(path) as container:
        stream = shown_stream(container, path)
        for packet in _sized_packets(container, stream, path):
            if packet.is_discard:  # hidden by an edit list
                continue
            times.append(packet.pts)
            clock += [] if packet.dts is None else [packet.dts]
            if packet.is_keyframe and packet.pts is not None:
                keys.append(packet.pts)
        known, rate, tick = [time for time in times if time is not None], stream.average_rate, stream.time_base
        # frames that fit between the first and the last: headers count repeated frames without a packet
        span = round((max(known) - min(known)) * tick * rate) + 1 if rate and known and tick else 0
        announced = stream.frames
    missing = 0
    if announced > max(len(times), span) + 1:  # an edit list may hide frames that the header counts: count without it
        with opened(path, ignore_editlist="1") as container:
            count = sum(1 for _ in _sized_packets(container, shown_stream(container, path), path))
        missing = announced - max(count, span)
    return times, sorted(keys), clock == sorted(clock), missing if missing > 1 else 0


def _sized_packets(container: Any, stream: Any, path: Path) -> Iterator[Any]:
    """Yield the packets of a stream that are not empty."""
    try:
        yield from (packet for packet in container.demux(stream) if packet.size)
    except av.error.FFmpegError as error:
        raise DataError(path, "cannot be read to its end (cut off or damaged)", CHECK) from error


def _decode_times(
    path: Path, *, most: float = np.inf, until: float = -np.inf
) -> tuple[list[int | None], list[Exception]]:
    """Decode at least ``most`` frames, and up to the time ``until``; return the frames' times, and the errors."""
    times: list[int | None] = []
    broken: list[Exception] = []
    with opened(path) as container:
        for frame in decoded(container, shown_stream(container, path), broken):
            times.append(frame.pts)
            if len(times) >= most and (frame.pts is None or frame.pts >= until):
                break
    return times, broken
