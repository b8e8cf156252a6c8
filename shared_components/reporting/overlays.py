"""Draw class masks over frames: what a clinician looks at.

Imported by the process that trains, so it needs numpy and cv2 only. Images are uint8 RGB (H, W, 3), masks
uint8 (H, W) with 0 as background. Colours follow Okabe and Ito (2008), which the common colour-vision
deficiencies keep apart; the first ones also stand out against red and pink tissue.
"""

from collections.abc import Sequence

import cv2
import numpy as np

# Row = class id. Row 0 is never drawn: the background stays as it is.
PALETTE = np.array(
    [
        (0, 0, 0),
        (86, 180, 233),  # sky blue
        (240, 228, 66),  # yellow
        (0, 158, 115),  # bluish green
        (230, 159, 0),  # orange
        (204, 121, 167),  # reddish purple
        (0, 114, 178),  # blue
        (213, 94, 0),  # vermilion
        (255, 255, 255),
    ],
    dtype=np.uint8,
)
MISSED, EXTRA, CONFUSED = (213, 94, 0), (255, 255, 255), (204, 121, 167)

_PAPER, _INK = (255, 255, 255), (30, 30, 30)
_FONT, _FONT_SCALE, _BAR, _GAP = cv2.FONT_HERSHEY_SIMPLEX, 0.5, 26, 6


def colour(class_id: int) -> tuple[int, int, int]:
    """Give the RGB colour of a class; more classes than colours start over, background excepted."""
    row = PALETTE[(class_id - 1) % (len(PALETTE) - 1) + 1] if class_id else PALETTE[0]
    return int(row[0]), int(row[1]), int(row[2])


def overlay(image: np.ndarray, mask: np.ndarray, *, alpha: float = 0.45, contour: int = 2) -> np.ndarray:
    """Tint every class's pixels and draw its outline; background pixels away from an outline are unchanged.

    Args:
        image: uint8 RGB (H, W, 3).
        mask: uint8 class ids (H, W).
        alpha: opacity of the tint, 0 (none) to 1 (the image is hidden).
        contour: thickness of the outline in pixels, 0 for none.

    Raises:
        ValueError: when image and mask differ in size.
    """
    _check_size(image, mask, "mask")
    colours = np.array([colour(i) for i in range(256)], dtype=np.uint8)[mask]
    tinted = cv2.addWeighted(image, 1 - alpha, colours, alpha, 0)
    drawn = np.where(mask[..., None] > 0, tinted, image)
    for class_id in np.unique(mask[mask > 0]) if contour else ():
        region = (mask == class_id).astype(np.uint8)
        outlines, _ = cv2.findContours(region, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(drawn, outlines, -1, colour(int(class_id)), contour, cv2.LINE_AA)
    return drawn


def errors(image: np.ndarray, truth: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Mark wrong pixels on the grey, dimmed frame: MISSED, EXTRA and, for a wrong class, CONFUSED."""
    _check_size(image, truth, "truth")
    _check_size(image, prediction, "prediction")
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) // 2
    drawn = np.repeat(grey[..., None], 3, axis=2)
    drawn[(truth > 0) & (prediction == 0)] = MISSED
    drawn[(truth == 0) & (prediction > 0)] = EXTRA
    drawn[(truth > 0) & (prediction > 0) & (truth != prediction)] = CONFUSED
    return drawn


def triptych(
    image: np.ndarray,
    truth: np.ndarray,
    prediction: np.ndarray,
    class_names: Sequence[str],
    *,
    panel_width: int = 400,
    error_map: bool = False,
) -> np.ndarray:
    """Lay out frame | truth | prediction side by side with captions and a legend of the classes.

    Args:
        image: uint8 RGB (H, W, 3).
        truth: uint8 class ids (H, W).
        prediction: uint8 class ids (H, W).
        class_names: names in the order of the ids, background first.
        panel_width: width in pixels each panel is scaled to, so that captions are legible for any frame size.
        error_map: add a fourth panel with the wrong pixels.

    Returns:
        uint8 RGB, about (panel height + 52, 3 * panel_width + 12, 3).
    """
    _check_size(image, truth, "truth")
    _check_size(image, prediction, "prediction")
    image, truth, prediction = (_scale(array, panel_width) for array in (image, truth, prediction))
    panels = [
        (image, "frame"),
        (overlay(image, truth), "truth" if truth.any() else "truth: no instrument"),
        (overlay(image, prediction), "prediction" if prediction.any() else "prediction: no instrument"),
    ]
    entries = [(name, colour(i)) for i, name in enumerate(class_names) if i]
    if error_map:
        panels.append((errors(image, truth, prediction), "errors"))
        entries += [("missed", MISSED), ("extra", EXTRA), ("wrong class", CONFUSED)]
    body = _side_by_side([_captioned(panel, caption) for panel, caption in panels])
    return np.concatenate([body, _legend(entries, width=body.shape[1])], axis=0)


def _check_size(image: np.ndarray, mask: np.ndarray, name: str) -> None:
    if image.shape[:2] != mask.shape or image.ndim != 3:
        raise ValueError(f"image of shape {image.shape} and {name} of shape {mask.shape} differ in size")


def _scale(array: np.ndarray, width: int) -> np.ndarray:
    """Resize to a width, keeping the aspect ratio; masks (two axes) take the nearest id."""
    height = max(1, round(array.shape[0] * width / array.shape[1]))
    smooth = cv2.INTER_AREA if array.shape[1] > width else cv2.INTER_LINEAR
    return cv2.resize(array, (width, height), interpolation=smooth if array.ndim == 3 else cv2.INTER_NEAREST)


def _captioned(panel: np.ndarray, caption: str) -> np.ndarray:
    bar = np.full((_BAR, panel.shape[1], 3), _PAPER, np.uint8)
    _write(bar, caption, 4)
    return np.concatenate([bar, panel], axis=0)


def _side_by_side(panels: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.full((panels[0].shape[0], _GAP, 3), _PAPER, np.uint8)
    spaced = [part for panel in panels for part in (gap, panel)]
    return np.concatenate(spaced[1:], axis=1)


def _legend(entries: Sequence[tuple[str, tuple[int, int, int]]], *, width: int) -> np.ndarray:
    """Draw swatches with names, starting a new line where the next entry would not fit."""
    lines = [np.full((_BAR, width, 3), _PAPER, np.uint8)]
    x = 4
    for name, rgb in entries:
        needed = 22 + cv2.getTextSize(name, _FONT, _FONT_SCALE, 1)[0][0]
        if x > 4 and x + needed > width:
            lines.append(np.full((_BAR, width, 3), _PAPER, np.uint8))
            x = 4
        cv2.rectangle(lines[-1], (x, 7), (x + 14, 20), rgb, cv2.FILLED)
        cv2.rectangle(lines[-1], (x, 7), (x + 14, 20), _INK, 1)
        _write(lines[-1], name, x + 20)
        x += needed + 18
    return np.concatenate(lines, axis=0)


def _write(bar: np.ndarray, text: str, x: int) -> None:
    cv2.putText(bar, text, (x, _BAR - 9), _FONT, _FONT_SCALE, _INK, 1, cv2.LINE_AA)
