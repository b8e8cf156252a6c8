"""Cache decoded and resized frames and maps on disk, so that later rounds and processes do not decode them again.

A file is named by a hash of its source: paths, sizes and modification times, how the data set is read, and the size of
the network's input. The folder is named by the start of the machine, so that files which a power failure has damaged
are never read. Reading is a copy from the system's page cache.
"""

import hashlib
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from shared_components.data.files.images import Size

GB = 10**9
RESERVE = 2 * GB  # bytes of the disk that stay free
FOLDER = "frames"  # in a site's files
_SIZE = 8  # bytes of the native height and width at the end of a file

logger = logging.getLogger(__name__)


class FrameCache:
    """Resized arrays by their source files, up to ``limit`` bytes; any number of threads.

    ``sharers`` processes use a folder at the same time; each adds its share of the bytes that are left, and only the
    ``first`` one, which starts before the others, removes files.

    Folders from before the last start of the machine, and incomplete files, are removed. If the limit is reached or the
    disk is full, the cache adds nothing more and logs the reason once; frames are then decoded each time.
    """

    def __init__(self, folder: Path, *, limit: int, sharers: int = 1, first: bool = True) -> None:
        self._folder = folder / _start_of_machine()
        with suppress(OSError):  # the first `add` reports it
            for path in folder.glob("*") if first else ():
                if path != self._folder:
                    shutil.rmtree(path, ignore_errors=True)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # frames are as private as the data
            self._folder.mkdir(exist_ok=True)
        for path in self._folder.glob(".*") if first else ():  # incomplete after a kill
            path.unlink(missing_ok=True)
        self._room = (limit - sum(_size_of(path) for path in self._folder.glob("*"))) // sharers
        self._adds, self._lock = limit > 0, threading.Lock()

    def path(self, files: Sequence[Path], how: str) -> Path | None:
        """Return the path of the array of source files that are read as ``how`` says; None for a missing file."""
        try:
            stamps = [(str(file), *_stamp(file)) for file in files]
        except OSError:
            return None  # reading will raise the error
        return self._folder / hashlib.sha256(f"{how} {stamps}".encode()).hexdigest()[:32]

    def read(self, path: Path | None, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, Size] | None:
        """Return an array and the native (height, width) of its image, or None if it is not in the cache."""
        try:
            data = np.fromfile(path, np.uint8) if path is not None else None
        except OSError:
            return None
        if data is None or len(data) != np.prod(shape) * dtype.itemsize + _SIZE:
            return None
        height, width = data[-_SIZE:].view(np.uint32).tolist()
        return data[:-_SIZE].view(dtype).reshape(shape), (height, width)

    def add(self, path: Path | None, array: np.ndarray, native: Size) -> bool:
        """Write an array if there is room; return whether it is now in the cache."""
        if path is None or not self._adds:
            return False
        size = array.nbytes + _SIZE
        with self._lock:
            if size > self._room:
                return self._stop("has reached the limit frame_cache_gb")
            self._room -= size
        beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            if shutil.disk_usage(path.parent).free < RESERVE + size:
                return self._stop(f"leaves less than {RESERVE // GB} GB of its disk free; free some space")
            with beside.open("wb") as file:
                file.write(np.ascontiguousarray(array).data)
                file.write(np.array(native, np.uint32).data)
            os.replace(beside, path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            return self._stop(f"cannot be written ({error})")
        return True

    def _stop(self, why: str) -> bool:
        if self._adds:
            logger.warning("the frame cache %s %s; other frames are decoded each time", self._folder, why)
        self._adds = False
        return False


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has just completed this file
        return 0


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file, or of the file that contains this frame (video.mp4/000012)."""
    try:
        status = path.stat()
    except NotADirectoryError:
        status = path.parent.stat()
    return status.st_size, status.st_mtime_ns


def _start_of_machine() -> str:
    """Return an id of the machine's last start; a new one for each process where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return uuid.uuid4().hex
