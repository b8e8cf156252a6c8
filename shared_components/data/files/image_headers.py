"""Read facts from an image file's header: size, completeness, pages, orientation, polarity."""

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG"
UPRIGHT = 1  # EXIF orientation of an image stored upright
# tags of TIFF and EXIF
_ORIENTATION, _DESCRIPTION, _SUBFILE, _PHOTOMETRIC, _SAMPLES, _DEPTH = 274, 270, 254, 262, 277, 32997
_REDUCED_OR_MASK = 1 | 4  # TIFF pages that are no frame: small copy, transparency mask
_MARKER = re.compile(rb"\xff+([^\x00\xff])")  # of JPEG; \xff\x00 is pixel data
_END, _BEGIN = 0xD9, 0xD8
_TABLES = (0xC4, 0xC8, 0xCC)  # markers among the codes of frame headers that are none
_COLOUR_TYPE, _ALPHA = 25, 4  # offset of a PNG's colour type, and its bit for alpha
_EXIF, _EXIF_STARTS = b"Exif\0\0", 1 << 20  # all segments before a JPEG's pixels lie in its first megabyte
_OTHERS = ("BMP", "TIFF", "GIF", "WEBP")
_UNREADABLE = (OSError, ValueError, SyntaxError, LookupError, ArithmeticError, TypeError)


@dataclass(frozen=True)
class Header:
    size: tuple[int, int] | None  # (H, W), if the header has it
    complete: bool = True  # whether the file reaches the end of its picture; bytes after the end do not matter
    pictures: int = 1  # frames or pages, without reduced copies of a TIFF page
    min_is_white: bool = False  # whether a grey TIFF stores white as 0


def read_header(data: bytes) -> Header:
    """Read the header of an image file; ValueError if the image is too large for Pillow."""
    if data.startswith(JPEG):
        return _jpeg(data)
    return _png(data) if data.startswith(PNG) else _other(data)


def orientation(path: Path) -> int:
    """Return the EXIF orientation of an image file, 1 to 8; `UPRIGHT` without one, or for other files."""
    try:
        with path.open("rb") as file:
            start = file.read(_EXIF_STARTS)
            png = start + file.read() if start.startswith(PNG) else b""
    except OSError:
        return UPRIGHT
    contents = [png[begin:end] for name, begin, end in _chunks(png) if name == b"eXIf"]
    if (png and not contents) or (start.startswith(JPEG) and _EXIF not in start):
        return UPRIGHT
    from PIL import Image  # late: few frames have an orientation

    try:
        if png:  # Image.open would decode the pixels first
            exif = Image.Exif()
            exif.load(contents[-1])
        else:
            with Image.open(path) as image:
                exif = image.getexif()
        value = exif.get(_ORIENTATION)
    except (*_UNREADABLE, Image.DecompressionBombError):
        return UPRIGHT
    return int(value) if value is not None and value in range(1, 9) else UPRIGHT


def is_transparent(data: bytes) -> bool:
    """Return whether an image file has a pixel that is not opaque."""
    if data.startswith(JPEG):
        return False
    if data.startswith(PNG) and not (data[_COLOUR_TYPE] & _ALPHA or any(name == b"tRNS" for name, *_ in _chunks(data))):
        return False
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("PNG", *_OTHERS)) as image:
            alpha = image.convert("RGBA").getchannel("A").tobytes() if image.has_transparency_data else b"\xff"
            return min(alpha) < 255
    except _UNREADABLE:
        return False  # nor can the decoder see transparency in such a file


def _jpeg(data: bytes) -> Header:
    """Go from marker to marker and skip stray bytes between segments, as libjpeg does."""
    place, size = 2, None
    while match := _MARKER.search(data, place):
        marker, place = data[match.end() - 1], match.end()
        if marker in (_END, _BEGIN):  # a second start: the first picture was cut off
            return Header(size, marker == _END)
        if marker < 0xC0 or 0xD0 <= marker <= 0xD7:  # without a segment
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _TABLES and size is None and place + 7 <= len(data):
            size = _big(data, place + 3, 2), _big(data, place + 5, 2)
        place += _big(data, place, 2)
    return Header(size, False)


def _png(data: bytes) -> Header:
    size, pictures = None, 1
    for name, start, _ in _chunks(data):
        if name == b"IHDR":
            size = _big(data, start + 4), _big(data, start)
        elif name == b"acTL":
            pictures = _big(data, start)
        elif name == b"IEND":
            return Header(size, True, pictures)
    return Header(size, False, pictures)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of the content of each complete chunk of a PNG."""
    place = 8
    while (end := place + 12 + _big(data, place)) <= len(data):
        yield data[place + 4 : place + 8], place + 8, end - 4
        place = end


def _big(data: bytes, place: int, length: int = 4) -> int:
    return int.from_bytes(data[place : place + length], "big")


def _other(data: bytes) -> Header:
    from PIL import Image  # late: most frames are PNG or JPEG

    try:
        with Image.open(io.BytesIO(data), formats=_OTHERS) as image:
            size, tags = (image.height, image.width), dict(getattr(image, "tag_v2", {}))
            return Header(size, True, _pictures(image, tags), tags.get(_PHOTOMETRIC) == 0)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    except _UNREADABLE:
        return Header(None, bool(data))  # the decoder reports the error


def _pictures(image: Any, tags: dict[int, Any]) -> int:
    """Count frames, and TIFF pages that only the description or the depth tag counts."""
    count, values = getattr(image, "n_frames", 1), image.width * image.height * int(tags.get(_SAMPLES, 1))
    if not tags:
        return count
    if count > 1:
        frames = 0
        for page in range(count):
            image.seek(page)
            frames += not int(image.tag_v2.get(_SUBFILE, 0)) & _REDUCED_OR_MASK
        count = frames
    return max(count, int(tags.get(_DEPTH, 1)), _described_pictures(str(tags.get(_DESCRIPTION, "")), values))


def _described_pictures(text: str, values: int) -> int:
    """Read the number of pictures from the description by ImageJ or tifffile, else 1; ``values`` is one's size."""
    if text.startswith("ImageJ=") and (match := re.search(r"^images=(\d{1,9})$", text, re.MULTILINE)):
        return int(match[1])
    if match := re.match(r'\{"shape": \[([\d, ]{1,99})\]', text):
        return math.prod(map(int, re.findall(r"\d+", match[1]))) // values
    return 1
