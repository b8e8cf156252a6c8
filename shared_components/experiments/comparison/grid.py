"""Draw test frames by method as one picture: all sites (SurgFed, Figure 4) or the held-out site (FedST, Figure 4)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from shared_components.common.drawing.pictures import captioned, resized, side_by_side
from shared_components.experiments.comparison.pictures import OUTSIDE, Picture, gallery
from shared_components.experiments.comparison.results import Comparison

OUTSIDE_PICTURES = "held-out pictures"
LAYOUTS = ("pictures", OUTSIDE_PICTURES)
WIDTH, HEIGHT = 160, 128  # of a cell, in pixels
WHITE = 255


def grid(comparison: Comparison) -> np.ndarray | None:
    """Draw a row per place: its first shown frame, the truth and every method's answer; uint8 RGB, None without any.

    Places are the sites or, by the layout, the site outside.
    """
    rows = [side_by_side(list(_cells(site, pictures))) for site, pictures in _places(comparison)]
    if not rows:
        return None
    width = max(row.shape[1] for row in rows)
    return np.vstack([np.pad(r, ((0, 4), (0, width - r.shape[1]), (0, 0)), constant_values=WHITE) for r in rows])


def _places(comparison: Comparison) -> Iterator[tuple[str, Sequence[Picture]]]:
    for group in comparison.groups:
        found = gallery(comparison, group)
        for site, rows in found.places if found else ():
            if (site == OUTSIDE) == (comparison.layout == OUTSIDE_PICTURES):
                yield site, [*rows[0].known, *rows[0].answers]


def _cells(site: str, pictures: Sequence[Picture]) -> Iterator[np.ndarray]:
    for place, picture in enumerate(pictures):
        name = f"{site}: {picture.name}" if place == 0 else picture.name
        yield captioned(_cell(picture), f"{name} {picture.text}".strip())


def _cell(picture: Picture) -> np.ndarray:
    """Return a picture in a cell's size, with white below; white alone where there is none."""
    cell = np.full((HEIGHT, WIDTH, 3), WHITE, np.uint8)
    if picture.uri:
        data = np.frombuffer(base64.b64decode(picture.uri.partition(",")[2]), np.uint8)
        shown = resized(np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)), WIDTH)[:HEIGHT]
        cell[: len(shown)] = shown
    return cell
