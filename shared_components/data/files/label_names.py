"""Read and write files with the names of labels: ITK-SNAP's label descriptions, CVAT's labelmap.txt."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared_components.common.drawing.palette import colour
from shared_components.data.files.images import DataError, read_text

Colour = tuple[int, int, int]  # red, green, blue
Value = int | Colour
_TITLE = "ITK-SnAP Label Description File"
_COLOUR_TITLE = "# label:color_rgb"  # the first line of CVAT's labelmap.txt
_ROW = re.compile(r'\s*(?P<id>\d{1,9})(\s+[\d.]+){4}(\s+[01]){2}\s+"(?P<name>[^"]*)"\s*')
_COLOUR_ROW = re.compile(r"(?P<name>[^:]+):(?P<red>\d{1,3}),(?P<green>\d{1,3}),(?P<blue>\d{1,3}):[^:]*:[^:]*")
_MOST_BYTES = 1 << 20


def described(names: Mapping[int, str]) -> str:
    """Return ITK-SNAP's label description file for class names by id, background included."""
    lines = [f"# {_TITLE}", "# IDX -R- -G- -B- -A- VIS MSH LABEL"]
    for number, name in names.items():
        red, green, blue = colour(number)
        visible = int(number > 0)
        quoted = name.replace('"', "'")
        lines.append(f'{number:5} {red:5} {green:4} {blue:4} {visible:5} {visible:2} {visible:2}    "{quoted}"')
    return "\n".join(lines) + "\n"


def label_names(folders: Sequence[Path]) -> dict[Value, str]:
    """Return names by number or colour from the file in one of the folders.

    Background is left out. DataError for two files or an invalid line.
    """
    paths = [path for folder in folders for end in ("txt", "label") for path in sorted(folder.glob(f"*.{end}"))]
    texts = {path: text for path in paths if (text := _text(path)) is not None}
    if len(texts) > 1:
        first, second = list(texts)[:2]
        raise DataError(second, f"names labels, as {first} does", "keep one of the two")
    names: dict[Value, str] = {}
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            if not line.startswith("#") and line.strip():
                value, name = _row(line, path, number, coloured=text.startswith(_COLOUR_TITLE))
                names[value] = name
    return {value: name for value, name in names.items() if value not in (0, (0, 0, 0))}


def _text(path: Path) -> str | None:
    """Return the text of a file that names labels; None for another file."""
    if not path.is_file():  # a pipe or a folder
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
        if _TITLE not in text and not text.startswith(_COLOUR_TITLE):
            return None
        return read_text(path, _MOST_BYTES, errors="replace")
    except OSError as error:
        raise DataError(path, f"cannot be opened ({error.strerror})", "check its rights") from error


def _row(line: str, path: Path, number: int, *, coloured: bool) -> tuple[Value, str]:
    if coloured and (row := _COLOUR_ROW.fullmatch(line.strip())):
        red, green, blue = (min(255, int(row[channel])) for channel in ("red", "green", "blue"))
        return (red, green, blue), row["name"].strip()
    if not coloured and (row := _ROW.fullmatch(line)):
        return int(row["id"]), row["name"]
    what = f"has no label description in line {number} ({line.strip():.60})"
    raise DataError(path, what, "save the descriptions again, or move the file away")
