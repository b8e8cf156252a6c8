"""Read frames of a camera or a network stream with PyAV, in bounded memory."""

import logging
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np

from shared_components.common.counted import counted
from shared_components.data.files.images import DataError
from shared_components.data.files.video import decoded, shown_stream, upright
from shared_components.inference import InferenceError
from shared_components.inference.video import rate_of, shown_aspect, timed

logger = logging.getLogger(__name__)

PROTOCOLS = ("http", "https", "rtsp", "rtsps", "rtmp", "tcp", "udp")
CAMERAS = {"linux": ("/dev/video{}", "v4l2"), "darwin": ("{}", "avfoundation")}
"""Device name and FFmpeg format of cameras, by operating system."""
STALL = 10.0  # timeout in seconds for opening a stream and for each read
WAITING = 8  # maximum number of queued frames; a 1080p frame takes 3 MB
_POLL = 0.2  # seconds
_NESTED = ",".join((*PROTOCOLS, "httpproxy", "rtp", "tls", "crypto"))  # no local files


def is_live(source: str | Path) -> bool:
    """Return whether a source is a camera number or a URL; an existing path with such a name is not."""
    return isinstance(source, str) and ("://" in source or (source.isdecimal() and not Path(source).exists()))


class LiveVideo:
    """An open camera or network stream, read by a thread.

    If frames arrive faster than they are taken, the oldest queued frames are dropped. A recording with a known length
    is read more slowly instead. Frames can be iterated once.

    Attributes:
        name: `camera 0`, or the URL without user, password and query.
        stem: Name of the results, with the start time.
        rate, aspect: Frames per second, and pixel aspect ratio, width over height.
        count, dropped: Numbers of frames received and dropped; every `every`-th frame is yielded.
        problem: Reason for a broken stream; empty if it ended or was stopped.

    Raises InferenceError if the stream cannot be opened, or sends no frame within `STALL` seconds.
    """

    total = None  # unknown

    def __init__(self, source: str, *, every: int = 1) -> None:
        self.name, self._remedy = _named(source)
        plain = self.name.partition("://")[2] or self.name
        self.stem = re.sub(r"\W+", "-", f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}")
        self.count = self.dropped = 0
        self.problem = ""
        self._waiting: deque[tuple[int, av.VideoFrame, Fraction]] = deque()
        self._changed, self._stopped, self._ended = threading.Condition(), False, False
        try:
            self._container = _opened(source)
            self._stream = shown_stream(self._container, Path(self.name))
        except av.error.FFmpegError as error:
            reason = f"no answer for {STALL:g} s" if isinstance(error, av.error.ExitError) else error.strerror
            reason = reason or type(error).__name__
            raise InferenceError(f"{self.name} cannot be opened ({reason}); {self._remedy}") from error
        except DataError as error:
            raise InferenceError(f"{self.name} {error.what}; {self._remedy}") from error
        self.rate = rate_of(self._stream)
        recorded = bool(self._container.duration) or self._container.size > 0
        self._waits = True  # keep the first frame
        threading.Thread(target=self._read, args=(every,), name="stream", daemon=True).start()
        if (first := self._take()) is None:
            raise InferenceError(self.problem or f"{self.name} has no frames; {self._remedy}")
        self.first, self._waits = first, recorded

    def frames(self) -> Iterator[tuple[int, np.ndarray, Fraction]]:
        """Yield frames as `video.frames_of` does; log the dropped frames and the reason of a broken stream."""
        try:
            yield self.first
            while (frame := self._take()) is not None:
                yield frame
        finally:
            self._stopped = True
        if self.dropped:
            logger.warning(
                "%s: %d frames were dropped, since prediction is slower than the stream; use --every, or a GPU",
                self.name, self.dropped,
            )  # fmt: skip
        if self.problem:
            logger.warning("%s", self.problem)

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Let the first Ctrl-C end the stream and complete the results; the second Ctrl-C interrupts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def stop(*_: object) -> None:
            self._stopped = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _take(self) -> tuple[int, np.ndarray, Fraction] | None:
        """Wait for the next frame; None at the end."""
        with self._changed:
            while not self._waiting and not self._ended and not self._stopped:
                self._changed.wait(_POLL)
            if self._stopped or not self._waiting:
                return None
            number, frame, seconds = self._waiting.popleft()
            self._changed.notify()
        return number, upright(frame), seconds

    def _read(self, every: int) -> None:
        """Decode frames until the stream ends, breaks or is stopped."""
        seconds, size, broken = Fraction(0), None, deque[Exception](maxlen=1)
        try:
            for number, (frame, seconds) in enumerate(timed(self._decoded(broken), self.rate)):
                if self._stopped:
                    break
                if size not in (None, (frame.width, frame.height)):
                    self.problem = f"{self.name} changed its frame size after {counted(number, 'frame')}; start again"
                    break
                if size is None:
                    self.aspect, size = shown_aspect(self._stream, frame), (frame.width, frame.height)
                self.count += 1
                if number % every == 0:
                    self._offer((number, frame, seconds))
            else:
                self.problem = self._why(broken, seconds)
        finally:
            self._container.close()
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _decoded(self, broken: deque[Exception]) -> Iterator[av.VideoFrame]:
        yield from decoded(self._container, self._stream, broken)
        if broken:  # the decoder may still contain frames
            with suppress(av.error.FFmpegError):
                yield from self._stream.codec_context.decode(None)

    def _why(self, broken: deque[Exception], seconds: Fraction) -> str:
        """Return why the stream broke; empty at its regular end, also after damaged packets."""
        error = broken[-1] if broken else None
        if isinstance(error, av.error.ExitError):
            what = f"sent no data for {STALL:g} s, after {counted(self.count, 'frame')} ({float(seconds):.1f} s)"
        elif isinstance(error, OSError):
            what = f"broke off after {counted(self.count, 'frame')} ({float(seconds):.1f} s)"
        else:
            return ""
        return f"{self.name} {what}; {self._remedy}, and start again"

    def _offer(self, item: tuple[int, av.VideoFrame, Fraction]) -> None:
        """Queue a frame: wait for room in a recording, else drop the oldest frame."""
        with self._changed:
            while self._waits and len(self._waiting) >= WAITING and not self._stopped:
                self._changed.wait(_POLL)
            if len(self._waiting) >= WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(item)
            self._changed.notify()


def _opened(source: str) -> Any:
    timeout = (STALL, STALL)  # for opening, for each read
    if not source.isdecimal():
        options = {"protocol_whitelist": _NESTED, "rtsp_flags": "prefer_tcp"}  # few firewalls let UDP in
        return av.open(source, timeout=timeout, options=options, metadata_errors="ignore")
    device, form = CAMERAS[sys.platform]
    return av.open(device.format(int(source)), format=form, timeout=timeout)


def _named(source: str) -> tuple[str, str]:
    """Return a source's display name, without secrets of a URL, and the remedy if it fails."""
    if source.isdecimal():
        if sys.platform not in CAMERAS:
            raise InferenceError(f"camera {source}: cameras are read on Linux and macOS; give the URL of its stream")
        return f"camera {int(source)}", "check that it is connected, that no other program uses it, and its number"
    try:
        parts = urlsplit(source)
        where = parts.netloc.rpartition("@")[2]
    except ValueError:
        raise InferenceError("the input URL has no valid host; correct the URL") from None
    name = f"{parts.scheme}://{where}{parts.path}"
    if parts.scheme.lower() not in PROTOCOLS:
        raise InferenceError(f"{name}: unknown protocol; use one of {', '.join(PROTOCOLS)}")
    return name, "check its address, and that a player shows it from this machine"
