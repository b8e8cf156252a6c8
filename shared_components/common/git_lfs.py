"""Recognise Git LFS pointers: small text files in place of files that were not fetched."""

from pathlib import Path

WHAT, WHAT_TO_DO = "is a Git LFS pointer, not the file itself", "fetch the files with `git lfs pull` in their folder"
_BEGIN = b"version https://git-lfs.github.com/spec/"
_LONGEST = 1024  # bytes


def is_pointer(data: bytes) -> bool:
    """Return whether these first bytes of a file are a Git LFS pointer."""
    return data.startswith(_BEGIN)


def is_pointer_file(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer; False if it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST:
            return False
        with path.open("rb") as file:
            return is_pointer(file.read(len(_BEGIN)))
    except OSError:
        return False
