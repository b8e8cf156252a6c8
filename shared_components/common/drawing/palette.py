"""The palette: colours of classes, of errors and of depth.

The colours of classes were searched for on a grid of sRGB, each at the largest distance (CIELAB) from those before it
and from the reds, pinks and yellows of tissue, with and without a deficiency of colour vision (Machado et al., IEEE
TVCG 2009); the first two are Okabe and Ito's (2008). Colours of depth and of its error grow in lightness, so that they
keep their order in grey.
"""

from collections.abc import Sequence

import cv2
import numpy as np

RGB = tuple[int, int, int]
Entry = tuple[str, RGB]
"""A name of a legend and its colour."""

# Row = class id. Row 0, the background, is never drawn.
CLASSES = np.array(
    [
        (0, 0, 0),
        (86, 180, 233),  # sky blue
        (240, 228, 66),  # yellow
        (135, 60, 255),  # violet
        (0, 255, 210),  # mint
        (210, 0, 135),  # magenta
        (90, 105, 210),  # blue
        (150, 225, 240),  # pale blue
        (225, 135, 180),  # pink
        (240, 60, 255),  # fuchsia
        (0, 120, 150),  # petrol
        (210, 255, 165),  # pale green
        (180, 180, 120),  # khaki
    ],
    dtype=np.uint8,
)
MISSED, EXTRA, CONFUSED = (213, 94, 0), (255, 255, 255), (204, 121, 167)
"""On a grey frame: pixels of a missed class, of a class that is not there, and of another class."""


def _table(name: int, *, turned: bool = False) -> np.ndarray:
    """Return one of OpenCV's colour maps as uint8 RGB (256, 3)."""
    table = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[:, None], name)[:, 0, ::-1]
    return table[::-1] if turned else table


DEPTH = _table(cv2.COLORMAP_VIRIDIS, turned=True)
"""From near, which is bright, to far: uint8 RGB (256, 3)."""
ERROR = _table(cv2.COLORMAP_INFERNO)
"""From no error, which is black, to the largest: uint8 RGB (256, 3)."""


def colour(class_id: int) -> RGB:
    """Return the RGB colour of a class; beyond the last colour they repeat, background excepted."""
    row = CLASSES[(class_id - 1) % (len(CLASSES) - 1) + 1] if class_id else CLASSES[0]
    return int(row[0]), int(row[1]), int(row[2])


def css(rgb: RGB) -> str:
    """Write a colour as pages do: ``#56b4e9``."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def class_entries(names: Sequence[str]) -> list[Entry]:
    """Pair class names in the order of their ids, background first, with their colours; the background has none."""
    return [(name, colour(class_id)) for class_id, name in enumerate(names) if class_id]
