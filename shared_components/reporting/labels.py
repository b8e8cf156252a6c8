"""Draw labels of frames and videos: classes with the highest scores, phases over time, confusion matrices.

Frames are uint8 RGB (H, W, 3). Strips below frames of the same size have the same height, so that they fit a video.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from shared_components.common.counted import counted
from shared_components.common.drawing.palette import CLASSES, MISSED, RGB, colour
from shared_components.common.drawing.pictures import GAP, INK, PAPER, legend, resized, write
from shared_components.common.drawing.sheets import Panel, Sheet

Array = np.ndarray
RIGHT, GREY, PALE = colour(1), (150, 150, 150), (232, 232, 232)
"""Bar colours: class is present, class is absent or unknown, background of a bar."""
_LINE, _BAR = 22, 0.3  # height of a line in pixels; length of a full bar as a share of the width
_USUAL = 400  # width in pixels; text grows with wider pictures
_PANEL = 400
_COLUMNS = 800  # width of a timeline in pixels

Row = tuple[str, float | None, RGB]
"""Text, bar length in [0, 1] (None draws a square) and colour of a line."""


def strip(rows: Sequence[Row], *, width: int, lines: int) -> Array:
    """Draw lines of bar, number and text: uint8 RGB (H, width, 3), with at least 18 pixels per line."""
    large = max(1.0, width / _USUAL) * 0.85
    high = round(_LINE * large)
    drawn = np.full((high * lines, width, 3), PAPER, np.uint8)
    for number, (text, share, rgb) in enumerate(rows[:lines]):
        line = drawn[high * number : high * (number + 1)]
        left, right, top, base = round(4 * large), round(_BAR * width), round(5 * large), high - round(5 * large)
        if share is None:
            cv2.rectangle(line, (left, top), (left + base - top, base), rgb, cv2.FILLED)
            write(line, text, left + base - top + round(6 * large), above=round(7 * large), large=0.95 * large)
            continue
        cv2.rectangle(line, (left, top), (right, base), PALE, cv2.FILLED)
        cv2.rectangle(line, (left, top), (left + round(share * (right - left)), base), rgb, cv2.FILLED)
        write(line, f"{share:.2f}  {text}", right + round(6 * large), above=round(7 * large), large=0.95 * large)
    return drawn


def draw_class_scores(
    image: Array,
    scores: Array,  # (C,) in [0, 1]
    names: Sequence[str],
    *,
    shown: int,  # number of classes
    ranked: bool = True,  # the highest scores come first, otherwise the order of the names
    colours: Sequence[RGB] | None = None,  # of the bars of all C classes
) -> Array:
    """Draw bars of the classes' scores below a frame."""
    order: list[int] = (np.argsort(-scores, kind="stable") if ranked else np.arange(len(scores))).tolist()
    best = int(scores.argmax())
    paint = colours or [RIGHT if ranked or c == best else GREY for c in range(len(scores))]
    rows = [(_words(names[c]), float(scores[c]), paint[c]) for c in order[:shown]]
    return np.concatenate([image, strip(rows, width=image.shape[1], lines=shown)])


def several_sheet(image: Array, truth: Array, scores: Array, names: Sequence[str], *, shown: int) -> Sheet:
    """Lay out a frame with its true classes, bool (C,), and the frame with the classes of the highest scores."""
    image = resized(image, _PANEL)
    there: list[int] = np.flatnonzero(truth).tolist()
    rows: list[Row] = [(_words(names[c]), float(scores[c]), RIGHT if scores[c] >= 0.5 else MISSED) for c in there]
    left = np.concatenate([image, strip(rows or [("none", None, GREY)], width=_PANEL, lines=shown)])
    colours = [RIGHT if known else GREY for known in truth]
    panels = (
        Panel("truth", left, f"{counted(len(there), 'label')}, with scores"),
        Panel("prediction", draw_class_scores(image, scores, names, shown=shown, colours=colours), "highest scores"),
    )
    return Sheet(panels, legend=(("present", RIGHT), ("present, score below 0.5", MISSED), ("absent", GREY)))


def one_sheet(image: Array, true: int, scores: Array, names: Sequence[str]) -> Sheet:
    """Lay out a frame and the probabilities of all classes, exactly one of them true."""
    image, best = resized(image, _PANEL), int(scores.argmax())
    colours = [RIGHT if c == true else MISSED if c == best else GREY for c in range(len(names))]
    drawn = draw_class_scores(image, scores, names, shown=len(names), ranked=False, colours=colours)
    left = np.concatenate([image, strip([(_words(names[true]), None, RIGHT)], width=_PANEL, lines=len(names))])
    note = "correct" if best == true else f"{_words(names[best])} instead"
    panels = Panel("truth", left), Panel("prediction", drawn, note)
    return Sheet(panels, legend=(("true class", RIGHT), ("predicted instead", MISSED)))


def ribbon(ids: Array, *, width: int) -> Array:
    """Draw the classes (N,) of a video's frames from left to right: uint8 RGB (26, width, 3)."""
    return _stretched(CLASSES[ids % (len(CLASSES) - 1) + 1], width, 26)


def _stretched(colours: Array, width: int, height: int) -> Array:
    """Draw one colour per frame (N, 3) from left to right: (height, width, 3)."""
    columns = np.minimum(np.arange(width) * len(colours) // width, len(colours) - 1)
    return np.repeat(colours[columns][None], height, axis=0)


def timeline(truth: Array, prediction: Array, names: Sequence[str], *, title: str = "", width: int = _COLUMNS) -> Array:
    """Draw a timeline of a video: ribbons of truth (N,), prediction (N,) and errors, with a legend."""
    wrong = np.where((truth == prediction)[:, None], PALE, MISSED).astype(np.uint8)  # (N, 3)
    share = f"{100 * np.mean(truth == prediction):.1f} % of {counted(len(truth), 'frame')} correct"
    rows = [
        _line(f"{title}: {share}" if title else share, width),
        _line("truth", width),
        ribbon(truth, width=width),
        _line("prediction", width),
        ribbon(prediction, width=width),
        _stretched(wrong, width, 8),
        legend([*((_words(name), _colour(c)) for c, name in enumerate(names)), ("wrong", MISSED)], width=width),
    ]
    return np.concatenate(rows)


def predicted_phases(image: Array, probabilities: Array, names: Sequence[str]) -> Array:
    """Draw the probabilities (T, C) of the last frame below it, and for T > 1 a ribbon of the predicted phases."""
    colours = [_colour(c) for c in range(len(names))]
    drawn = draw_class_scores(image, probabilities[-1], names, shown=len(names), ranked=False, colours=colours)
    if len(probabilities) == 1:
        return drawn
    return np.concatenate([drawn, ribbon(probabilities.argmax(1), width=image.shape[1])])


def phases_sheet(image: Array, truth: Array, prediction: Array, names: Sequence[str]) -> Sheet:
    """Lay out the last frame and the timeline of a sequence."""
    drawn = timeline(truth, prediction, names, width=_PANEL)
    frame = resized(image, _PANEL)
    high = max(len(drawn), len(frame))
    padded = [np.concatenate([p, np.full((high - len(p), _PANEL, 3), PAPER, np.uint8)]) for p in (frame, drawn)]
    return Sheet((Panel("last frame", padded[0]), Panel("timeline", padded[1])))


def confusion_table(counts: Array, names: Sequence[str]) -> Array:
    """Draw a confusion matrix (C, C) of true (rows) and predicted classes; darker is a larger share of the row."""
    C, cell = len(names), 54
    left, top = 16 + max(_wide(f"{c + 1} {_words(name)}") for c, name in enumerate(names)), 56
    drawn = np.full((top + C * cell + GAP, max(left + C * cell + GAP, 330), 3), PAPER, np.uint8)
    _put(drawn, "rows: truth, columns: prediction, frames or samples", 6, 20)
    for row in range(C):
        _put(drawn, f"{row + 1} {_words(names[row])}", 8, top + row * cell + cell // 2 + 5)
        _put(drawn, str(row + 1), left + row * cell + cell // 2 - 5, top - 10)
        for column in range(C):
            x, y, text = left + column * cell, top + row * cell, str(counts[row, column])
            share = counts[row, column] / max(counts[row].sum(), 1)
            mixed = [round(255 + share * (c - 255)) for c in (RIGHT if row == column else MISSED)]
            cv2.rectangle(drawn, (x, y), (x + cell - 2, y + cell - 2), mixed, cv2.FILLED)
            cv2.rectangle(drawn, (x, y), (x + cell - 2, y + cell - 2), PALE, 1)
            _put(drawn, text, x + (cell - _wide(text)) // 2, y + cell // 2 + 5)
    return drawn


def _colour(c: int) -> RGB:
    """Return the colour of a class; class 0 has a colour, because there is no background."""
    return colour(c + 1)


def _words(name: str) -> str:
    return name.replace("/", " ").replace("_", " ")


def _line(text: str, width: int) -> Array:
    bar = np.full((20, width, 3), PAPER, np.uint8)
    write(bar, text, 4, above=5)
    return bar


def _put(drawn: Array, text: str, x: int, y: int) -> None:
    cv2.putText(drawn, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.5, INK, 1, cv2.LINE_AA)


def _wide(text: str) -> int:
    return cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.5, 1)[0][0]
