"""Read the header of an image file: size, completeness, pages, orientation, polarity."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG"
UPRIGHT = 1
"""EXIF orientation of an image that is stored as it is shown."""
_ORIENTATION, _DESCRIPTION, _SUBFILE, _PHOTOMETRIC, _SAMPLES, _DEPTH = (
    274,
    270,
    254,
    262,
    277,
    32997,
)  # tags of TIFF and EXIF
_REDUCED_OR_MASK = 1 | 4  # kinds of TIFF pages that are no frame: a small copy, a transparency mask
_MARKER = re.compile(rb"\xff+([^\x00\xff])")  # in JPEG; \xff\x00 is a pixel's byte
_END, _BEGIN = 0xD9, 0xD8
_TABLES = (0xC4, 0xC8, 0xCC)  # of the codes that else begin a frame
_COLOUR_TYPE, _ALPHA = 25, 4  # place of a PNG's colour type, and its bit for an alpha channel
_EXIF, _EXIF_STARTS = b"Exif\0\0", 1 << 20  # all segments before a JPEG's pixels lie in its first megabyte
_OTHERS = ("BMP", "TIFF", "GIF", "WEBP")
_UNREADABLE = (OSError, ValueError, SyntaxError, LookupError, ArithmeticError, TypeError)


@dataclass(frozen=True)
class Header:
    """Facts from an image's header.

    Attributes:
        size: (H, W); None if the header has none.
        complete: Whether the file reaches the end of its picture; what follows the end does not matter.
        pictures: Number of frames or pages; reduced copies of a TIFF page do not count.
        min_is_white: Whether a grey TIFF stores white as 0.
    """

    size: tuple[int, int] | None
    complete: bool = True
    pictures: int = 1
    min_is_white: bool = False


def read_header(data: bytes) -> Header:
    """Read the header of an image file.

    Raises:
        ValueError: The image is so large that Pillow refuses to look at it.
    """
    if data.startswith(JPEG):
        return _jpeg(data)
    if data.startswith(PNG):
        return _png(data)
    return _other(data)


def orientation(path: Path) -> int:
    """Return the EXIF orientation, 1 to 8, of an image file; `UPRIGHT` of any other file, or without one."""
    try:
        with path.open("rb") as file:
            start = file.read(_EXIF_STARTS)
            if start.startswith(PNG):  # Pillow would decode its pixels first
                found = _png_orientation(start + file.read())
            elif start.startswith(JPEG) and _EXIF not in start:
                return UPRIGHT
            else:
                found = _pillow_orientation(path)
    except OSError:
        return UPRIGHT
    return int(found) if found in range(1, 9) else UPRIGHT


def _pillow_orientation(path: Path) -> Any:
    from PIL import Image  # late: nearly all frames have no orientation

    try:
        with Image.open(path) as image:
            return image.getexif().get(_ORIENTATION)
    except (*_UNREADABLE, Image.DecompressionBombError):
        return None


def _png_orientation(data: bytes) -> Any:
    content = [data[start:end] for name, start, end in _chunks(data) if name == b"eXIf"]
    if not content:
        return None
    from PIL import Image

    exif = Image.Exif()
    try:
        exif.load(content[-1])
    except _UNREADABLE:
        return None
    return exif.get(_ORIENTATION)


def is_transparent(data: bytes) -> bool:
    """Return whether some pixel of an image file is not opaque; JPEG has no transparency."""
    if data.startswith(JPEG) or (data.startswith(PNG) and not _has_alpha(data)):
        return False
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("PNG", *_OTHERS)) as image:
            alpha = image.convert("RGBA").getchannel("A").tobytes() if image.has_transparency_data else b"\xff"
            return min(alpha) < 255
    except _UNREADABLE:
        return False  # the decoder knows no transparency of such a file


def _has_alpha(data: bytes) -> bool:
    return bool(data[_COLOUR_TYPE] & _ALPHA) or any(name == b"tRNS" for name, _, _ in _chunks(data))


def _jpeg(data: bytes) -> Header:
    """Go from marker to marker; as libjpeg does, pass over bytes between segments that belong to none."""
    place = 2
    size: tuple[int, int] | None = None
    while match := _MARKER.search(data, place):
        marker, place = data[match.end() - 1], match.end()
        if marker in (_END, _BEGIN):  # a second beginning: the first picture was cut off
            return Header(size, marker == _END)
        if marker < 0xC0 or 0xD0 <= marker <= 0xD7:  # without a segment
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _TABLES and size is None and place + 7 <= len(data):
            size = (
                int.from_bytes(data[place + 3 : place + 5], "big"),
                int.from_bytes(data[place + 5 : place + 7], "big"),
            )
        place += int.from_bytes(data[place : place + 2], "big")
    return Header(size, False)


def _png(data: bytes) -> Header:
    size, pictures = None, 1
    for name, start, _ in _chunks(data):
        if name == b"IHDR":
            width, height = (int.from_bytes(data[place : place + 4], "big") for place in (start, start + 4))
            size = height, width
        elif name == b"acTL":
            pictures = int.from_bytes(data[start : start + 4], "big")
        elif name == b"IEND":
            return Header(size, True, pictures)
    return Header(size, False, pictures)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name of each whole chunk of a PNG, and where its content starts and ends."""
    place = 8
    while (end := place + 12 + int.from_bytes(data[place : place + 4], "big")) <= len(data):
        yield data[place + 4 : place + 8], place + 8, end - 4
        place = end


def _other(data: bytes) -> Header:
    from PIL import Image  # late: nearly all frames are PNG or JPEG

    try:
        with Image.open(io.BytesIO(data), formats=_OTHERS) as image:
            size, tags = (image.height, image.width), dict(getattr(image, "tag_v2", {}))
            return Header(size, True, _pictures(image, tags), tags.get(_PHOTOMETRIC) == 0)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    except _UNREADABLE:
        return Header(None, bool(data))  # the decoder will tell


def _pictures(image: Any, tags: dict[int, Any]) -> int:
    """Count frames, and pages of a TIFF that only its description or its depth counts."""
    count, values = getattr(image, "n_frames", 1), image.width * image.height * int(tags.get(_SAMPLES, 1))
    if not tags:
        return count
    if count > 1:
        kinds = []
        for page in range(count):
            image.seek(page)
            kinds.append(int(image.tag_v2.get(_SUBFILE, 0)))
        count = sum(not kind & _REDUCED_OR_MASK for kind in kinds)
    return max(count, int(tags.get(_DEPTH, 1)), _described_pictures(str(tags.get(_DESCRIPTION, "")), values))


def _described_pictures(text: str, values: int) -> int:
    """Return the number of pictures by the description of ImageJ or tifffile, else 1; a picture has so many values."""
    if text.startswith("ImageJ=") and (found := re.search(r"^images=(\d{1,9})$", text, re.MULTILINE)):
        return int(found[1])
    if found := re.match(r'\{"shape": \[([\d, ]{1,99})\]', text):
        return math.prod(map(int, re.findall(r"\d+", found[1]))) // values
    return 1
