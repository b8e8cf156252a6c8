"""Write H.264 in MP4 as browsers play it, by PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import ColorRange, Colorspace

from shared_components.inference import InferenceError

CODEC = "libx264"
QUALITY = {"crf": "20", "preset": "veryfast"}
"""x264's: smaller `crf` is better and larger; 18 can hardly be distinguished from the source."""
_TICKS = 10_000  # least ticks per second of the clock, so that frames keep uneven times
_JITTER = Fraction(1, 10)  # of a frame: rounding of times by a container (MKV: to a millisecond)
_BT709 = 1


class H264Video:
    """A video of frames of one size; an odd side is made even by repeating its last row or column.

    Args:
        path: The file; complete after `close`.
        rate: Frames per second.
        aspect: Width of a pixel over its height.

    Raises:
        InferenceError: There is no H.264 encoder; or, when frames are added, their size changes, or the file cannot be
            written.
    """

    def __init__(self, path: Path, *, rate: Fraction, aspect: Fraction = Fraction(1)) -> None:
        if CODEC not in av.codecs_available:
            raise InferenceError(
                f"{path.name}: PyAV was built without {CODEC}; install its own wheel with `pip install av`"
            )
        self._path, self._aspect = path, aspect
        self._rate = rate.limit_denominator(100_000)
        self._scale = -(-_TICKS // self._rate.numerator)  # ticks of 1 / (scale * numerator) seconds
        self._size: tuple[int, int] | None = None
        self._last = -1
        self._container: Any = None
        self._stream: Any = None

    def add(self, image: np.ndarray, seconds: Fraction) -> None:
        """Append uint8 RGB (H, W, 3) at its time, which must grow."""
        if self._container is None:
            self._open(*image.shape[:2])
        if image.shape[:2] != self._size:
            raise InferenceError(self._another_size(image))
        frame = av.VideoFrame.from_ndarray(_even(image), format="rgb24").reformat(
            format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
        )
        frame.time_base = Fraction(1, self._rate.numerator * self._scale)
        frame.duration = self._rate.denominator * self._scale
        frame.pts = self._last = max(self._tick(seconds), self._last + 1)
        self._write(frame)

    def close(self) -> None:
        """Write the rest, and the index in front of it; InferenceError where that fails."""
        if self._container is not None:
            self._write(None)
            with self._sentence():
                self._container.close()
        self._container = None

    def abandon(self) -> None:
        """Leave the file as it is."""
        if self._container is not None:
            with suppress(av.error.FFmpegError):
                self._container.close()
        self._container = None

    def _write(self, frame: av.VideoFrame | None) -> None:
        with self._sentence():
            self._container.mux(self._stream.encode(frame))

    @contextmanager
    def _sentence(self) -> Iterator[None]:
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
        stream.gop_size = max(round(2 * self._rate), 1)  # players can jump to every second second
        context = stream.codec_context
        context.time_base = Fraction(1, self._rate.numerator * self._scale)
        context.thread_count = torch.get_num_threads()
        context.sample_aspect_ratio = self._aspect
        context.color_range = ColorRange.MPEG
        context.colorspace = context.color_primaries = context.color_trc = _BT709

    def _tick(self, seconds: Fraction) -> int:
        """Return a time in ticks, snapped to the constant rate within the jitter."""
        frames = seconds * self._rate
        if abs(frames - round(frames)) < _JITTER:
            frames = Fraction(round(frames))
        return round(frames * self._rate.denominator * self._scale)

    def _another_size(self, image: np.ndarray) -> str:
        (H, W), (h, w) = self._size or (0, 0), image.shape[:2]
        return (
            f"{self._path.name}: a picture is {w}x{h} and those before are {W}x{H}, which no video can hold; leave the "
            "video rate out"
        )


def _even(image: np.ndarray) -> np.ndarray:
    H, W, _ = image.shape
    if H % 2 or W % 2:
        image = np.pad(image, ((0, H % 2), (0, W % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(image)
