"""Write files atomically, and lock them against a second process."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


class NotWritten(OSError):
    """A file could not be written, for example on a full disk; the message names the file and the reason."""


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; after the block, flush it to the disk and rename it.

    The folder is created if needed. After an error the old file remains and the temporary file is removed. NotWritten
    if the file could not be written.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        flush(beside)
        os.replace(beside, path)
        flush(path.parent)
    except OSError as error:
        if error.filename not in (None, str(beside), str(path.parent)):
            raise  # the error names another file
        raise not_written(path, error) from error
    finally:
        with suppress(OSError):  # a read-only disk has no temporary file
            beside.unlink(missing_ok=True)


def not_written(path: Path, error: OSError) -> NotWritten:
    """Return a `NotWritten` error for a file, or a folder, from the error of the system."""
    why = f"could not be written ({error.strerror or error}); check the disk's space and the folder's rights"
    return NotWritten(f"{path}: {why}")


def try_lock(file: IO[str]) -> bool:
    """Try to lock a file until it is closed; return whether no other process has locked it."""
    import fcntl  # late, here and below: Windows lacks it, and using a model needs no locks

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(file: IO[str]) -> None:
    """Wait until no other process has locked a file, then lock it until it is closed."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX)


def flush(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; Windows cannot flush folders, so they are skipped there."""
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return
    number = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: Path, content: bytes) -> None:
    with atomically(path) as beside:
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def differing(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files that are missing or differ from their text."""
    return [path for path, text in texts.items() if not (path.is_file() and path.read_text(encoding="utf-8") == text)]


def between_marks(document: str, marks: tuple[str, str], made: str, path: Path, place: str) -> str:
    """Replace the text between two marks of a document; a ValueError names the `place` of missing marks."""
    before, begin, rest = document.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{path}: has no lines '{marks[0]}' and '{marks[1]}'; put them {place}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
