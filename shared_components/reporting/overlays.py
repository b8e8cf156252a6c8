"""Lay out what a clinician looks at: frames beside truth, prediction and errors; depth as colour; restored frames.

Imported by the process that trains, so it needs numpy and cv2 only. Images are uint8 RGB (H, W, 3), masks
uint8 (H, W) with 0 as background, depth float32 (H, W) in mm with 0 where it is unknown. Colours are those of
`drawing.palette`.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from shared_components.data.classes import IGNORED
from shared_components.drawing.palette import CONFUSED, DEPTH, ERROR, EXTRA, MISSED, class_entries
from shared_components.drawing.pictures import (
    GAP,
    captioned,
    check_size,
    coloured,
    legend,
    nice,
    overlay,
    resized,
    scale_bar,
    side_by_side,
    unknown_box,
)


def errors(image: np.ndarray, truth: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Mark wrong pixels on the grey, dimmed frame: MISSED, EXTRA and, for a wrong class, CONFUSED."""
    check_size(image, truth, "truth")
    check_size(image, prediction, "prediction")
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) // 2
    drawn = np.repeat(grey[..., None], 3, axis=2)
    there = (truth > 0) & (truth != IGNORED)
    drawn[there & (prediction == 0)] = MISSED
    drawn[(truth == 0) & (prediction > 0)] = EXTRA
    drawn[there & (prediction > 0) & (truth != prediction)] = CONFUSED
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
    check_size(image, truth, "truth")
    check_size(image, prediction, "prediction")
    image, truth, prediction = (resized(array, panel_width) for array in (image, truth, prediction))
    panels = [
        (image, "frame"),
        (overlay(image, truth), "truth" if truth.any() else "truth: no instrument"),
        (overlay(image, prediction), "prediction" if prediction.any() else "prediction: no instrument"),
    ]
    entries = class_entries(class_names)
    if error_map:
        panels.append((errors(image, truth, prediction), "errors"))
        entries += [("missed", MISSED), ("extra", EXTRA), ("wrong class", CONFUSED)]
    body = side_by_side([captioned(panel, caption) for panel, caption in panels])
    return np.concatenate([body, legend(entries, width=body.shape[1])], axis=0)


def depth_picture(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, *, panel_width: int = 304
) -> np.ndarray:
    """Lay out frame | truth | prediction | error side by side, with one scale in mm for truth and prediction.

    Near is bright, far is dark. Hatched: no depth is known there, and nothing is compared.

    Args:
        image: uint8 RGB (H, W, 3).
        truth: float32 (H, W) in mm; 0 or not finite where it is unknown.
        prediction: float32 (H, W) in mm.
        panel_width: width in pixels each panel is scaled to.

    Returns:
        uint8 RGB, about (panel height + 70, 4 * panel_width + 18, 3).

    Raises:
        ValueError: when image, truth and prediction differ in size.
    """
    check_size(image, truth, "truth")
    check_size(image, prediction, "prediction")
    image, truth, prediction = (resized(array, panel_width) for array in (image, truth, prediction))
    known, shown = np.isfinite(truth) & (truth > 0), np.isfinite(prediction)
    both = known & shown
    off = np.where(both, np.abs(prediction - truth), 0)
    depths, errors = _depth_range(truth[known], prediction[shown]), (0.0, nice(_top(off[both])))
    mean = f"error, mean {off[both].mean():.1f} mm" if both.any() else "error: nothing to compare"
    panels = [
        (image, "frame"),
        (coloured(truth, known, depths, DEPTH), "truth" if known.any() else "truth: unknown"),
        (coloured(prediction, shown, depths, DEPTH), "prediction"),
        (coloured(off, both, errors, ERROR), mean),
    ]
    body = side_by_side([captioned(panel, caption) for panel, caption in panels])
    return np.concatenate([body, _scales(depths, errors, panel_width)], axis=0)


def depth_overlay(image: np.ndarray, depth: np.ndarray, *, panel_width: int = 400) -> np.ndarray:
    """Lay out frame | depth side by side, with a scale in mm below; near is bright, far is dark.

    Args:
        image: uint8 RGB (H, W, 3).
        depth: float32 (H, W) in mm.
        panel_width: width in pixels each panel is scaled to.

    Raises:
        ValueError: when image and depth differ in size.
    """
    check_size(image, depth, "depth")
    image, depth = (resized(array, panel_width) for array in (image, depth))
    known = np.isfinite(depth)
    ends = _depth_range(depth[known], depth[known])
    body = side_by_side(
        [captioned(image, "frame"), captioned(coloured(depth, known, ends, DEPTH), "prediction")]
    )
    return np.concatenate([body, scale_bar(ends, DEPTH, body.shape[1])], axis=0)


def reconstruction_picture(
    image: np.ndarray, masked: np.ndarray, restored: np.ndarray, *, panel_width: int = 400
) -> np.ndarray:
    """Lay out frame | masked | restored side by side with captions.

    Args:
        image: uint8 RGB (H, W, 3).
        masked: uint8 RGB (H, W, 3), what the network was given.
        restored: uint8 RGB (H, W, 3), what it made of it.
        panel_width: width in pixels each panel is scaled to.

    Returns:
        uint8 RGB, about (panel height + 26, 3 * panel_width + 12, 3).

    Raises:
        ValueError: when the three differ in size.
    """
    for name, other in (("masked", masked), ("restored", restored)):
        if image.shape != other.shape or image.ndim != 3:
            raise ValueError(f"image of shape {image.shape} and {name} of shape {other.shape} differ in size")
    panels = {"frame": image, "masked": masked, "restored": restored}
    return side_by_side([captioned(resized(part, panel_width), name) for name, part in panels.items()])


def _depth_range(truth: np.ndarray, prediction: np.ndarray) -> tuple[float, float]:
    """Give the scale's ends in mm: those of both without outliers, but wild predictions do not flatten truth."""
    low, high = _ends(truth if truth.size else prediction)
    if truth.size and prediction.size:
        near, far = _ends(prediction)
        low, high = min(low, max(near, 0.0)), max(high, min(far, 2 * high))
    return low, max(high, low + 1.0)


def _ends(values: np.ndarray) -> tuple[float, float]:
    return (float(np.percentile(values, 1)), float(np.percentile(values, 99))) if values.size else (0.0, 1.0)


def _top(values: np.ndarray) -> float:
    return max(1e-3, float(np.percentile(values, 98))) if values.size else 1.0


def _scales(depths: tuple[float, float], errors: tuple[float, float], width: int) -> np.ndarray:
    """Draw the legend of the hatching, the scale of depth under its two panels and that of the error."""
    wide = scale_bar(depths, DEPTH, 2 * width + GAP)
    return side_by_side([unknown_box(width), wide, scale_bar(errors, ERROR, width)])
