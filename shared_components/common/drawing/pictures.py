"""Draw masks over images, depth as colours, legends and scales."""

from collections.abc import Sequence

import cv2
import numpy as np

from shared_components.common.drawing.palette import Entry, colour

UNLABELLED = 255
"""Mask value of pixels without a label."""
PAPER, INK = (255, 255, 255), (30, 30, 30)
GAP = 6
"""Pixels between two adjacent pictures."""
_FONT, _FONT_SCALE, _BAR, _SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.5, 26, 44
_USUAL = 1280  # width in pixels; text grows with wider pictures


def overlay(image: np.ndarray, mask: np.ndarray, *, alpha: float = 0.45, contour: int = 2) -> np.ndarray:
    """Tint the pixels of each class and draw its outline; other background pixels are unchanged.

    `image` is uint8 RGB (H, W, 3); `mask` is uint8 class ids (H, W), whose `UNLABELLED` pixels are unchanged;
    ValueError if they differ in size. `alpha` is the tint's opacity from 0 to 1, `contour` the outline's thickness in
    pixels; 0 draws none.
    """
    check_size(image, mask, "mask")
    mask = np.where(mask == UNLABELLED, np.uint8(0), mask)
    colours = cv2.LUT(cv2.merge([mask, mask, mask]), np.array([[colour(i) for i in range(256)]], dtype=np.uint8))
    drawn = cv2.copyTo(cv2.addWeighted(image, 1 - alpha, colours, alpha, 0), mask, image.copy())
    there = np.flatnonzero(np.bincount(mask.ravel()))
    for class_id in there[there > 0] if contour else ():
        outlines, _ = cv2.findContours((mask == class_id).astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(drawn, outlines, -1, colour(int(class_id)), contour, cv2.LINE_AA)
    return drawn


def coloured(values: np.ndarray, known: np.ndarray, ends: tuple[float, float], table: np.ndarray) -> np.ndarray:
    """Map known values (H, W) between two ends to a table of 256 colours, and hatch the unknown pixels."""
    share = (np.where(known, values, ends[0]) - ends[0]) / (ends[1] - ends[0])
    colours = table[(255 * np.clip(share, 0, 1)).round().astype(np.uint8)]
    return np.where(known[..., None], colours, hatched(*known.shape))


def hatched(height: int, width: int) -> np.ndarray:
    """Draw hatching, the pattern of unknown pixels: uint8 RGB (height, width, 3)."""
    rows, columns = np.indices((height, width))
    return np.where(((rows + columns) % 12 < 3)[..., None], np.uint8(140), np.uint8(70)).repeat(3, axis=-1)


def legend(entries: Sequence[Entry], *, width: int) -> np.ndarray:
    """Draw colour swatches with names, and begin a new line if the next entry does not fit.

    Return uint8 RGB (26 per line, width, 3); text and lines grow beyond a width of 1280.
    """
    large = max(1.0, width / _USUAL)
    lines = [_paper(_BAR * large, width)]
    x = 4 * large
    for name, rgb in entries:
        needed = 22 * large + _text_width(name, large)
        if x > 4 * large and x + needed > width:
            lines.append(_paper(_BAR * large, width))
            x = 4 * large
        corners = (round(x), round(7 * large)), (round(x + 14 * large), round(20 * large))
        cv2.rectangle(lines[-1], *corners, rgb, cv2.FILLED)
        cv2.rectangle(lines[-1], *corners, INK, round(large))
        write(lines[-1], name, round(x + 20 * large), above=round(9 * large), large=large)
        x += needed + 18 * large
    return np.concatenate(lines, axis=0)


def scale_bar(ends: tuple[float, float], table: np.ndarray, width: int) -> np.ndarray:
    """Draw a colour bar of a table (256, 3) with numbers in mm below: uint8 RGB (44, width, 3)."""
    bar = _paper(_SCALE, width)
    bar[7:21] = table[np.linspace(0, 255, width).round().astype(np.uint8)]
    step = nice((ends[1] - ends[0]) / (width / 110))
    first, last = int(np.ceil(ends[0] / step - 1e-6)), int(np.floor(ends[1] / step + 1e-6))
    digits = max(0, int(-np.floor(np.log10(step))))
    for number in range(first, last + 1):
        x = round((number * step - ends[0]) / (ends[1] - ends[0]) * (width - 1))
        bar[19:24, max(0, x - 1) : x + 1] = INK
        text = f"{number * step:.{digits}f}" + (" mm" if number == last else "")
        size = _text_width(text)
        write(bar, text, int(np.clip(x - size // 2, 0, max(0, width - size - 1))), above=6)
    return bar


def unknown_box(width: int) -> np.ndarray:
    """Draw the legend of the hatching, as high as a colour bar: uint8 RGB (44, width, 3)."""
    box = _paper(_SCALE, width)
    box[7:21, 4:30] = hatched(14, 26)
    write(box, "unknown", 38, above=24)
    return box


def nice(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999))


def resized(array: np.ndarray, width: int) -> np.ndarray:
    """Resize to a width and keep the aspect ratio; masks (H, W) take the nearest id."""
    height = max(1, round(array.shape[0] * width / array.shape[1]))
    smooth = cv2.INTER_AREA if array.shape[1] > width else cv2.INTER_LINEAR
    return cv2.resize(array, (width, height), interpolation=smooth if array.ndim == 3 else cv2.INTER_NEAREST)


def captioned(panel: np.ndarray, caption: str) -> np.ndarray:
    bar = _paper(_BAR, panel.shape[1])
    write(bar, caption, 4)
    return np.concatenate([bar, panel], axis=0)


def side_by_side(panels: Sequence[np.ndarray]) -> np.ndarray:
    """Join pictures of the same height from left to right, with gaps between them."""
    gap = _paper(panels[0].shape[0], GAP)
    return np.concatenate([part for panel in panels for part in (gap, panel)][1:], axis=1)


def check_size(image: np.ndarray, mask: np.ndarray, name: str) -> None:
    """Raise ValueError with both shapes unless the image is (H, W, 3) and the mask (H, W)."""
    if image.shape[:2] != mask.shape or image.ndim != 3:
        raise ValueError(f"image of shape {image.shape} and {name} of shape {mask.shape} differ in size")


def write(bar: np.ndarray, text: str, x: int, *, above: int = 9, large: float = 1.0) -> None:
    """Write text into a picture, with the base line `above` pixels above the lower edge."""
    place = (x, bar.shape[0] - above)
    cv2.putText(bar, text, place, _FONT, _FONT_SCALE * large, INK, max(1, round(large)), cv2.LINE_AA)


def _paper(height: float, width: int) -> np.ndarray:
    return np.full((round(height), width, 3), PAPER, np.uint8)


def _text_width(text: str, large: float = 1.0) -> int:
    return cv2.getTextSize(text, _FONT, _FONT_SCALE * large, max(1, round(large)))[0][0]


def encoded(picture: np.ndarray, ending: str, options: Sequence[int] = ()) -> bytes:
    """Return the bytes of an image file, given uint8 RGB (H, W, 3) or one channel (H, W), and flags of cv2.imencode.

    OpenCV's own writer does not notice a full disk. ValueError if OpenCV cannot encode the picture as `ending`.
    """
    pixels = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
    try:
        done, data = cv2.imencode(ending, pixels, list(options))
    except cv2.error:
        done = False
    if not done:
        raise ValueError(f"a picture could not be encoded as {ending[1:]!r}; use .png, or install OpenCV's own wheel")
    return data.tobytes()
