"""Read annotation files from a zip file, as CVAT, Label Studio and Roboflow offer it for download."""

import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from shared_components.data.files.images import SEGMENTATIONS, DataError, reading

ZIP = ".zip"
_ENDINGS = (".json", ".xml", ".yaml", ".txt", SEGMENTATIONS)
_MOST_BYTES = 1 << 30  # of all annotation files, unpacked
_MOST_FILES = 1 << 18  # in an archive, images included
_CHUNK = 1 << 20
_AGAIN = "export the annotations again, without images"


@contextmanager
def unpacked(place: Path) -> Iterator[Path]:
    """Yield a temporary folder with the annotation files of a zip file; yield another file or folder itself.

    Images in the archive are not unpacked. DataError for a damaged, encrypted or very large archive, or a name that
    leads out of it. Within the block, DataErrors name the archive and the file in it.
    """
    if place.suffix.lower() != ZIP or not place.is_file():
        yield place
        return
    with TemporaryDirectory(prefix="surgfl-") as name:
        folder = Path(name).resolve()
        damages = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
        with reading(place, "is not a readable zip file ({})", "download it again", *damages):
            with zipfile.ZipFile(place) as archive:
                _unpack(archive, folder, place)
        try:
            yield folder
        except DataError as error:
            if not error.file.is_relative_to(folder):
                raise
            what = error.what.replace(str(folder), str(place))
            raise DataError(place / error.file.relative_to(folder), what, error.what_to_do) from error


def _unpack(archive: zipfile.ZipFile, folder: Path, place: Path) -> None:
    entries = archive.infolist()
    if len(entries) > _MOST_FILES:
        raise DataError(place, f"contains {len(entries)} files, more than {_MOST_FILES}", _AGAIN)
    left = _MOST_BYTES
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in str(path):
            raise DataError(place, f"contains the name {entry.filename!r:.100}, which leads out of it", _AGAIN)
        if entry.is_dir() or stat.S_ISLNK(entry.external_attr >> 16) or not path.name.lower().endswith(_ENDINGS):
            continue
        if entry.flag_bits & 1:
            raise DataError(place, f"has the encrypted file {entry.filename!r:.100}", "unpack it with its password")
        target = folder / path
        if target.exists():
            raise DataError(place, f"contains {entry.filename!r:.100} twice", _AGAIN)
        left = _copy(archive, entry, target, left)
        if left < 0:
            raise DataError(place, f"contains more than {_MOST_BYTES} bytes of annotations", "export fewer frames")


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, left: int) -> int:
    """Unpack a file until `left` bytes are used up, whatever its header declares; return the rest, or -1."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            left -= len(chunk)
            if left < 0:
                return -1
            file.write(chunk)
    return left
