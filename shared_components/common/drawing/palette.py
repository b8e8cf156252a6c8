"""Colour palette of classes, errors and depth.

Class colours come from a search over sRGB. Each has the largest CIELAB distance from the earlier colours and from the
reds, pinks and yellows of tissue, for normal and deficient colour vision (Machado et al., IEEE TVCG 2009). The first
two colours are from Okabe and Ito (2008). The lightness of the depth and error scales is monotonic, so they stay
readable in grey.
"""

from collections.abc import Sequence

import cv2
import numpy as np

RGB = tuple[int, int, int]
Entry = tuple[str, RGB]
"""Name and colour of a legend entry."""

# The row is the class id. Row 0, the background, is never drawn. The others are sky blue, yellow, violet, mint,
# magenta, blue, pale blue, pink, fuchsia, petrol, pale green and khaki.
CLASSES = np.array([
    (0, 0, 0), (86, 180, 233), (240, 228, 66), (135, 60, 255), (0, 255, 210), (210, 0, 135), (90, 105, 210),
    (150, 225, 240), (225, 135, 180), (240, 60, 255), (0, 120, 150), (210, 255, 165), (180, 180, 120),
], np.uint8)  # fmt: skip
MISSED, EXTRA, CONFUSED = (213, 94, 0), (255, 255, 255), (204, 121, 167)
"""Colours of errors on a grey frame: false negatives, false positives and confused classes."""


def _table(name: int, *, turned: bool = False) -> np.ndarray:
    """Return one of OpenCV's colour maps as uint8 RGB (256, 3)."""
    table = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[:, None], name)[:, 0, ::-1]
    return table[::-1] if turned else table


DEPTH = _table(cv2.COLORMAP_VIRIDIS, turned=True)
"""Colours from near (bright) to far (dark): uint8 RGB (256, 3)."""
ERROR = _table(cv2.COLORMAP_INFERNO)
"""Colours from no error (black) to the largest error: uint8 RGB (256, 3)."""


def colour(class_id: int) -> RGB:
    """Return the RGB colour of a class; ids beyond the palette repeat its colours, except the background's."""
    row = CLASSES[(class_id - 1) % (len(CLASSES) - 1) + 1] if class_id else CLASSES[0]
    return int(row[0]), int(row[1]), int(row[2])


def css(rgb: RGB) -> str:
    """Return a colour in CSS notation: ``#56b4e9``."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def class_entries(names: Sequence[str]) -> list[Entry]:
    """Pair class names with colours; names are in the order of ids, and the background (first) is left out."""
    return [(name, colour(class_id)) for class_id, name in enumerate(names) if class_id]
