"""Draw what a clinician looks at: class masks over frames, depth as colour, restored frames.

Imported by the process that trains, so it needs numpy and cv2 only. Images are uint8 RGB (H, W, 3), masks
uint8 (H, W) with 0 as background, depth float32 (H, W) in mm with 0 where it is unknown. Colours of classes
follow Okabe and Ito (2008), which the common colour-vision deficiencies keep apart; the first ones also stand
out against red and pink tissue. Colours of depth and error grow in lightness, so that grey keeps their order.
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


def _table(name: int, *, turned: bool = False) -> np.ndarray:
    """Give one of OpenCV's colour maps as uint8 RGB (256, 3)."""
    table = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[:, None], name)[:, 0, ::-1]
    return table[::-1] if turned else table


_DEPTH, _ERROR = _table(cv2.COLORMAP_VIRIDIS, turned=True), _table(cv2.COLORMAP_INFERNO)
_PAPER, _INK = (255, 255, 255), (30, 30, 30)
_FONT, _FONT_SCALE, _BAR, _GAP, _SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.5, 26, 6, 44


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
    table = np.array([[colour(i) for i in range(256)]], dtype=np.uint8)
    colours = cv2.LUT(cv2.merge([mask, mask, mask]), table)
    drawn = cv2.copyTo(cv2.addWeighted(image, 1 - alpha, colours, alpha, 0), mask, image.copy())
    there = np.flatnonzero(np.bincount(mask.ravel()))
    for class_id in there[there > 0] if contour else ():
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
    _check_size(image, truth, "truth")
    _check_size(image, prediction, "prediction")
    image, truth, prediction = (_scale(array, panel_width) for array in (image, truth, prediction))
    known, shown = np.isfinite(truth) & (truth > 0), np.isfinite(prediction)
    both = known & shown
    off = np.where(both, np.abs(prediction - truth), 0)
    depths, errors = _depth_range(truth[known], prediction[shown]), (0.0, _nice(_top(off[both])))
    mean = f"error, mean {off[both].mean():.1f} mm" if both.any() else "error: nothing to compare"
    panels = [
        (image, "frame"),
        (_coloured(truth, known, depths, _DEPTH), "truth" if known.any() else "truth: unknown"),
        (_coloured(prediction, shown, depths, _DEPTH), "prediction"),
        (_coloured(off, both, errors, _ERROR), mean),
    ]
    body = _side_by_side([_captioned(panel, caption) for panel, caption in panels])
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
    _check_size(image, depth, "depth")
    image, depth = (_scale(array, panel_width) for array in (image, depth))
    known = np.isfinite(depth)
    ends = _depth_range(depth[known], depth[known])
    body = _side_by_side(
        [_captioned(image, "frame"), _captioned(_coloured(depth, known, ends, _DEPTH), "prediction")]
    )
    return np.concatenate([body, _scale_bar(ends, _DEPTH, body.shape[1])], axis=0)


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
    return _side_by_side([_captioned(_scale(part, panel_width), name) for name, part in panels.items()])


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


def _nice(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999))


def _coloured(
    values: np.ndarray, known: np.ndarray, ends: tuple[float, float], table: np.ndarray
) -> np.ndarray:
    """Look every known value up in a table of 256 colours, and hatch the others."""
    share = (np.where(known, values, ends[0]) - ends[0]) / (ends[1] - ends[0])
    colours = table[(255 * np.clip(share, 0, 1)).round().astype(np.uint8)]
    return np.where(known[..., None], colours, _hatched(*known.shape))


def _hatched(height: int, width: int) -> np.ndarray:
    rows, columns = np.indices((height, width))
    return np.where(((rows + columns) % 12 < 3)[..., None], np.uint8(140), np.uint8(70)).repeat(3, axis=-1)


def _scales(depths: tuple[float, float], errors: tuple[float, float], width: int) -> np.ndarray:
    """Draw the legend of the hatching, the scale of depth under its two panels and that of the error."""
    box = np.full((_SCALE, width, 3), _PAPER, np.uint8)
    box[7:21, 4:30] = _hatched(14, 26)
    _write(box, "unknown", 38, above=24)
    wide = _scale_bar(depths, _DEPTH, 2 * width + _GAP)
    return _side_by_side([box, wide, _scale_bar(errors, _ERROR, width)])


def _scale_bar(ends: tuple[float, float], table: np.ndarray, width: int) -> np.ndarray:
    """Draw a colour scale with its numbers in mm below."""
    bar = np.full((_SCALE, width, 3), _PAPER, np.uint8)
    bar[7:21] = table[np.linspace(0, 255, width).round().astype(np.uint8)]
    step = _nice((ends[1] - ends[0]) / (width / 110))
    first, last = int(np.ceil(ends[0] / step - 1e-6)), int(np.floor(ends[1] / step + 1e-6))
    digits = max(0, int(-np.floor(np.log10(step))))
    for number in range(first, last + 1):
        x = round((number * step - ends[0]) / (ends[1] - ends[0]) * (width - 1))
        bar[19:24, max(0, x - 1) : x + 1] = _INK
        text = f"{number * step:.{digits}f}" + (" mm" if number == last else "")
        size = cv2.getTextSize(text, _FONT, _FONT_SCALE, 1)[0][0]
        _write(bar, text, int(np.clip(x - size // 2, 0, max(0, width - size - 1))), above=6)
    return bar


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


def _write(bar: np.ndarray, text: str, x: int, *, above: int = 9) -> None:
    cv2.putText(bar, text, (x, bar.shape[0] - above), _FONT, _FONT_SCALE, _INK, 1, cv2.LINE_AA)
