"""Draw test frames with ground truth and the predictions before and after a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shared_components.common.drawing.sheets import Panel, Sheet
from shared_components.core.card import Metric

BEFORE, AFTER = "before", "after"


def before_and_after(sheets: Sequence[tuple[Sheet, Sheet]], captions: Sequence[tuple[str, str]]) -> np.ndarray:
    """Lay out frame | truth | before | after, a frame a row, as uint8 RGB (H, W, 3).

    Args:
        sheets: Of each frame the task's sheets of both predictions, see `task.Task.sheet`.
        captions: Of each frame what stands above both predictions, such as their Dice.

    Raises:
        ValueError: A sheet has no panel "prediction".
    """
    rows = [_row(*pair, *notes) for pair, notes in zip(sheets, captions, strict=True)]
    legends = [sheet.legend for sheet, _ in sheets]
    last = len(rows) - 1
    images = [Sheet(row, legends[n] if n == last else ()).image() for n, row in enumerate(rows)]
    width = min(image.shape[1] for image in images)
    return np.concatenate([image[:, :width] for image in images])


def _row(before: Sheet, after: Sheet, said_before: str, said_after: str) -> tuple[Panel, ...]:
    panels: Mapping[str, Panel] = {panel.name: panel for panel in after.panels}
    earlier = {panel.name: panel for panel in before.panels}
    if "prediction" not in panels or "prediction" not in earlier:
        raise ValueError(f"a sheet of {', '.join(panels)} shows no prediction, and nothing can be compared in it")
    predictions = (
        replace(earlier["prediction"], name=BEFORE, note=said_before),
        replace(panels["prediction"], name=AFTER, note=said_after),
    )
    return (*(panels[name] for name in ("frame", "truth") if name in panels), *predictions)


def score_text(metric: Metric, value: float | None) -> str:
    """Write a score above a picture: ``Dice 0.384``."""
    return f"{metric.label} {metric.with_unit(float('nan') if value is None else value)}"
