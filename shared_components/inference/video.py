"""Read and write videos with PyAV: upright frames with their times, and H.264 in MP4 for browsers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import ColorRange, Colorspace

from shared_components.data.files.images import DataError
from shared_components.data.files.video import CHECK, decoded, frame_count, opened, shown_stream, upright
from shared_components.inference import InferenceError

logger = logging.getLogger(__name__)

USUAL_RATE = Fraction(25)  # default frame rate of a video without a rate
_RATES = (Fraction(1, 1000), Fraction(1000))  # valid frame rates; other values are a container's clock
_SLACK = Fraction(1, 50)  # relative tolerance of the duration


@dataclass(frozen=True)
class Video:
    """Properties of a video file, from its header."""

    path: Path
    rate: Fraction  # frames per second, on average
    frames: int | None  # number of frames in the header
    seconds: Fraction | None  # duration in the header
    aspect: Fraction  # pixel aspect ratio, width over height

    @property
    def total(self) -> int | None:
        """Approximate number of frames."""
        return self.frames if self.frames is not None or self.seconds is None else round(self.seconds * self.rate)


def look_at(path: Path) -> Video:
    """Open a video and decode its first frame; InferenceError if the file is not a video or cannot be decoded."""
    with _refused(), opened(path) as container:
        stream = shown_stream(container, path)
        first = next(decoded(container, stream, []), None)
        if first is None:
            raise InferenceError(f"video {path} has no frames that can be decoded; {CHECK}")
        length = _duration(container, stream)
        return Video(path, rate_of(stream), stream.frames or None, length, shown_aspect(stream, first))


def shown_aspect(stream: av.VideoStream, frame: av.VideoFrame) -> Fraction:
    """Return the pixel aspect ratio (width over height) of the frame as displayed."""
    aspect = stream.sample_aspect_ratio or Fraction(1)
    return 1 / aspect if frame.rotation % 180 else aspect


def frames_of(video: Video, *, every: int = 1) -> Iterator[tuple[int, np.ndarray, Fraction]]:
    """Yield every n-th frame: its number from 0, uint8 RGB (H, W, 3), and its seconds since the first frame.

    Times always increase: if a container's clock is reset (joined recordings), time continues from the frame before.
    Frames missing at the end are logged.

    Raises InferenceError: the frame size changes.
    """
    size: tuple[int, int] | None = None
    seconds, number, broken = Fraction(0), -1, list[Exception]()
    with _refused(), opened(video.path) as container:
        stream = shown_stream(container, video.path)
        for number, (frame, seconds) in enumerate(timed(decoded(container, stream, broken), video.rate)):
            if size is not None and size != (frame.width, frame.height):
                raise InferenceError(
                    f"video {video.path} changes its size from {size[0]}x{size[1]} to {frame.width}x{frame.height} at "
                    f"frame {number} ({float(seconds):.2f} s); split it there, or convert it to one size"
                )
            size = frame.width, frame.height
            if number % every == 0:
                yield number, upright(frame), seconds
    _warn_of_missing(video, number + 1, len(broken), seconds + 1 / video.rate)


@contextmanager
def _refused() -> Iterator[None]:
    """Convert a DataError to an InferenceError that names the video."""
    try:
        yield
    except DataError as error:
        raise InferenceError(f"video {error.file} {error.what}; {error.what_to_do}") from error


def timed(frames: Iterator[av.VideoFrame], rate: Fraction) -> Iterator[tuple[av.VideoFrame, Fraction]]:
    """Yield frames with their increasing times in seconds since the first frame."""
    start = last = None
    for frame in frames:
        expected = Fraction(0) if last is None else last + 1 / rate
        clock = None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
        if clock is None:
            last = expected
        elif start is None or last is None or clock - start <= last:  # first frame, or the clock was reset
            start, last = clock - expected, expected
        else:
            last = clock - start
        yield frame, last


def rate_of(stream: Any) -> Fraction:
    """Return the frame rate of a stream; `USUAL_RATE` if its header has no valid rate."""
    rates = (stream.average_rate, stream.guessed_rate)
    return next((rate for rate in rates if rate and _RATES[0] <= rate <= _RATES[1]), USUAL_RATE)


def _duration(container: Any, stream: Any) -> Fraction | None:
    if stream.duration:
        return stream.duration * stream.time_base
    if not container.duration:
        return None
    return Fraction(container.duration - max(container.start_time or 0, 0), av.time_base)


def _warn_of_missing(video: Video, count: int, broken: int, end: Fraction) -> None:
    if broken:
        logger.warning("video %s: %d damaged frames were skipped", video.path, broken)
    if video.frames is not None:
        promised = video.frames
        with suppress(DataError):  # damaged: only the header is known
            promised = frame_count(video.path) if count + broken < promised else promised  # an edit list hides frames
        if count + broken < min(promised, video.frames):
            logger.warning("video %s ends after %d of the %d frames in its header", video.path, count, promised)
    elif video.seconds is not None and end < (1 - _SLACK) * video.seconds - 1 / video.rate:
        logger.warning("video %s ends after %.1f of the %.1f seconds in its header", video.path, end, video.seconds)


CODEC = "libx264"
QUALITY = {"crf": "20", "preset": "veryfast"}
"""x264 options: a smaller `crf` means better quality and a larger file; 18 is visually lossless."""
_TICKS = 10_000  # minimum ticks per second of the output's time base, for uneven frame times
_JITTER = Fraction(1, 10)  # tolerance in frames for rounded times (MKV rounds to milliseconds)
_BT709 = 1


class H264Video:
    """Writes an H.264 file of frames with one size, complete after `close`; odd sides are padded by one line.

    `rate` is in frames per second; `aspect` is the pixel aspect ratio, width over height.

    Raises InferenceError: the encoder is missing; while adding frames, their size changes or the disk is full.
    """

    def __init__(self, path: Path, *, rate: Fraction, aspect: Fraction = Fraction(1)) -> None:
        if CODEC not in av.codecs_available:
            raise InferenceError(f"{path.name}: PyAV was built without {CODEC}; install its wheel: pip install av")
        self._path, self._aspect = path, aspect
        self._rate = rate.limit_denominator(100_000)
        self._scale = -(-_TICKS // self._rate.numerator)  # ticks of 1 / (scale * numerator) seconds
        self._size: tuple[int, int] | None = None
        self._last = -1
        self._container: Any = None
        self._stream: Any = None

    def add(self, image: np.ndarray, seconds: Fraction) -> None:
        """Append a frame, uint8 RGB (H, W, 3), at an increasing time in seconds."""
        if self._container is None:
            self._open(*image.shape[:2])
        if image.shape[:2] != self._size:
            (H, W), (h, w) = self._size or (0, 0), image.shape[:2]
            raise InferenceError(
                f"{self._path.name}: the picture size changes from {W}x{H} to {w}x{h}, which a video does not allow; "
                "remove the video rate"
            )
        frame = av.VideoFrame.from_ndarray(_even(image), format="rgb24").reformat(
            format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
        )
        frame.time_base = Fraction(1, self._rate.numerator * self._scale)
        frame.duration = self._rate.denominator * self._scale
        frame.pts = self._last = max(self._tick(seconds), self._last + 1)
        with self._refused():
            self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write the remaining frames and the index; InferenceError if that fails."""
        if self._container is not None:
            with self._refused():
                self._container.mux(self._stream.encode(None))
                self._container.close()
        self._container = None

    def abandon(self) -> None:
        """Close the incomplete file."""
        if self._container is not None:
            with suppress(av.error.FFmpegError):
                self._container.close()
        self._container = None

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Convert an error of FFmpeg to an InferenceError that names the file."""
        try:
            yield
        except av.error.FFmpegError as error:
            (H, W), reason = self._size or (0, 0), error.strerror
            raise InferenceError(
                f"{self._path.name}: a video of {W}x{H} could not be written ({reason}); check the disk's space"
            ) from error

    def _open(self, H: int, W: int) -> None:
        self._size = H, W
        self._container = av.open(str(self._path.absolute()), "w", format="mp4", options={"movflags": "+faststart"})
        stream = self._stream = self._container.add_stream(CODEC, rate=self._rate, options=QUALITY)
        stream.width, stream.height, stream.pix_fmt = W + W % 2, H + H % 2, "yuv420p"
        stream.gop_size = max(round(2 * self._rate), 1)  # a key frame every two seconds, for seeking
        context = stream.codec_context
        context.time_base = Fraction(1, self._rate.numerator * self._scale)
        context.thread_count = torch.get_num_threads()
        context.sample_aspect_ratio = self._aspect
        context.color_range = ColorRange.MPEG
        context.colorspace = context.color_primaries = context.color_trc = _BT709

    def _tick(self, seconds: Fraction) -> int:
        """Return a time in ticks, rounded to the constant frame rate within the jitter."""
        frames = seconds * self._rate
        if abs(frames - round(frames)) < _JITTER:
            frames = Fraction(round(frames))
        return round(frames * self._rate.denominator * self._scale)


def _even(image: np.ndarray) -> np.ndarray:
    H, W, _ = image.shape
    if H % 2 or W % 2:
        image = np.pad(image, ((0, H % 2), (0, W % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(image)
