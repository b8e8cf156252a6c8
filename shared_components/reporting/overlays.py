"""Draw frames with ground truth, prediction and errors: masks, depth as colours, restored frames.

Images are uint8 RGB (H, W, 3). Masks are uint8 class ids (H, W) with 0 as background and `IGNORED`. Depth is float32
(H, W) in mm; 0 and values that are not finite are unknown. Arrays of different sizes raise ValueError. Each panel is
scaled to `panel_width` pixels, so that captions are legible for any frame size. The colours are in `drawing.palette`.
This file needs only numpy and cv2, because training imports it.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from shared_components.common.drawing import pictures
from shared_components.common.drawing.palette import CONFUSED, DEPTH, ERROR, EXTRA, MISSED, class_entries
from shared_components.common.drawing.pictures import check_size, coloured, hatched, overlay, resized
from shared_components.common.drawing.sheets import Panel, Scale, Sheet
from shared_components.data.files.classes import IGNORED

Array = np.ndarray


def errors(image: np.ndarray, truth: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Mark wrong pixels on the grey, dimmed frame: MISSED, EXTRA, or CONFUSED for a wrong class."""
    drawn = np.repeat((cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) // 2)[..., None], 3, axis=2)
    there = (truth > 0) & (truth != IGNORED)
    drawn[there & (prediction == 0)] = MISSED
    drawn[(truth == 0) & (prediction > 0)] = EXTRA
    drawn[there & (prediction > 0) & (truth != prediction)] = CONFUSED
    return drawn


def segmentation_sheet(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, class_names: Sequence[str], *, panel_width: int = 400
) -> Sheet:
    """Lay out frame | truth | prediction | errors; pixels without a label are hatched and not compared.

    `class_names` are in the order of the ids, background first.
    """
    check_size(image, truth, "truth")
    check_size(image, prediction, "prediction")
    labelled = truth != IGNORED
    share = f"{100 * np.mean((truth != prediction)[labelled]):.1f} % of the pixels" if labelled.any() else ""
    image, truth, prediction = (resized(array, panel_width) for array in (image, truth, prediction))
    hidden = truth == IGNORED
    true, wrong = overlay(image, np.where(hidden, 0, truth)), errors(image, truth, prediction)
    for drawn in (true, wrong):
        drawn[hidden] = hatched(*hidden.shape)[hidden]
    names = ("missed", MISSED), ("false", EXTRA), ("wrong class", CONFUSED)
    panels = (
        Panel("frame", image),
        Panel("truth", true, "" if truth.any() else "no instrument"),
        Panel("prediction", overlay(image, prediction), "" if prediction.any() else "no instrument"),
        Panel("errors", wrong, share, legend=names),
    )
    return Sheet(panels, legend=tuple(class_entries(class_names)), hatched=not labelled.all())


def depth_sheet(image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, *, panel_width: int = 304) -> Sheet:
    """Lay out frame | truth | prediction | errors; depth has the scale of the truth in mm.

    Near is bright, far is dark. Pixels with unknown depth are hatched and not compared.
    """
    check_size(image, truth, "truth")
    check_size(image, prediction, "prediction")
    image, truth, prediction = (resized(array, panel_width) for array in (image, truth, prediction))
    known, shown = np.isfinite(truth) & (truth > 0), np.isfinite(prediction)
    both = known & shown
    off = np.where(both, np.abs(prediction - truth), 0)
    depths = Scale(_depth_range(truth[known] if known.any() else prediction[shown]), DEPTH)
    top = max(1e-3, float(np.percentile(off[both], 98))) if both.any() else 1.0
    wrong = Scale((0.0, pictures.nice(top)), ERROR)
    mean = f"mean {off[both].mean():.1f} mm" if both.any() else "nothing to compare"
    panels = (
        Panel("frame", image),
        Panel("truth", coloured(truth, known, depths.ends, DEPTH), "" if known.any() else "unknown", scale=depths),
        Panel("prediction", coloured(prediction, shown, depths.ends, DEPTH), scale=depths),
        Panel("errors", coloured(off, both, wrong.ends, ERROR), mean, scale=wrong),
    )
    return Sheet(panels, hatched=True)


def depth_overlay(image: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Lay out frame | depth side by side, with a scale in mm below; near is bright, far is dark."""
    check_size(image, depth, "depth")
    image, depth = (resized(array, 400) for array in (image, depth))
    known = np.isfinite(depth)
    ends = _depth_range(depth[known])
    panels = {"frame": image, "prediction": coloured(depth, known, ends, DEPTH)}
    body = pictures.side_by_side([pictures.captioned(panel, name) for name, panel in panels.items()])
    return np.concatenate([body, pictures.scale_bar(ends, DEPTH, body.shape[1])], axis=0)


def reconstruction_sheet(image: Array, masked: Array, restored: Array, *, panel_width: int = 400) -> Sheet:
    """Lay out frame | masked | restored, three images: the network's input is the second, its output the third."""
    for name, other in (("masked", masked), ("restored", restored)):
        if image.shape != other.shape or image.ndim != 3:
            raise ValueError(f"image of shape {image.shape} and {name} of shape {other.shape} differ in size")
    named = {"frame": image, "masked": masked, "restored": restored}
    return Sheet(tuple(Panel(name, resized(part, panel_width)) for name, part in named.items()))


def _depth_range(known: np.ndarray) -> tuple[float, float]:
    """Return the ends of the scale in mm: the 1st and 99th percentile of the known depths."""
    if not known.size:
        return 0.0, 1.0
    low, high = float(np.percentile(known, 1)), float(np.percentile(known, 99))
    return low, max(high, low + 1.0)
