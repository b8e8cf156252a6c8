"""Small pictures of a few test frames, the same frames for every method, written when a run is scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
from torch import nn

from shared_components.common.atomic import write_bytes
from shared_components.common.drawing.pictures import encoded, resized
from shared_components.common.drawing.sheets import Sheet
from shared_components.core.evaluation import first_value, plain, predicted
from shared_components.core.task import Task
from shared_components.data.samples import Sample

TESTED = "tested"
"""The folder of the pictures beside a site's models."""
FRAMES = 3  # of a site
WIDTH = 288  # pixels, somewhat more than a page gives them
_QUALITY = 80  # of WebP
_ANSWER = "prediction"  # what a task calls the picture of a model's answer, where it has another name the last one


def chosen(count: int) -> list[int]:
    """Return the numbers of the samples that are shown: the middles of equal stretches of them, whatever is seen."""
    shown = min(count, FRAMES)
    return [(2 * i + 1) * count // (2 * shown) for i in range(shown)]


def write_pictures(
    network: nn.Module, task: Task, samples: Sequence[Sample], *, size: tuple[int, int], folder: Path
) -> list[dict[str, Any]]:
    """Write pictures of a few samples of a split, of the truth and of a model's prediction.

    The network's input has the (height, width) `size`; the folder gets ``<number>-<name>.webp``.

    Returns:
        For each sample its name, the score by the task's first metric (None: not counted), the pictures' names and
        files, with the prediction last, and the meaning of the colours.
    """
    records = []
    for number in chosen(len(samples)):
        answer, item = predicted(network, task, samples[number], number, size=size)
        score = first_value(task, plain(task.summarise([task.score(answer, item, quick=True)])))
        drawn = _write(task.sheet(answer, item), folder, f"{number:04d}")
        name = f"{samples[number].video}, frame {samples[number].index}"
        records.append({"sample": name, "value": plain(score), **drawn})
    return records


def _write(sheet: Sheet, folder: Path, stem: str) -> dict[str, Any]:
    """Write the panels up to the prediction, without the errors."""
    names = [panel.name for panel in sheet.panels]
    last = names.index(_ANSWER) if _ANSWER in names else len(names) - 1
    panels = sheet.panels[: last + 1]
    files = [[panel.name, f"{stem}-{panel.name}.webp"] for panel in panels]
    for panel, (_, file) in zip(panels, files, strict=True):
        small = resized(panel.image, min(WIDTH, panel.image.shape[1]))
        write_bytes(folder / file, encoded(small, ".webp", (cv2.IMWRITE_WEBP_QUALITY, _QUALITY)))
    values, scale = sheet.to_json(), panels[-1].scale
    legend, hatched = values["legend"], values["hatched"]
    return {"files": files, "legend": legend, "scale": scale.to_json() if scale else None, "hatched": hatched}
