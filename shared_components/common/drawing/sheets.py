"""Draw the panels of one sample side by side, and record their boxes for pages that show each panel separately."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared_components.common.drawing.palette import Entry, css
from shared_components.common.drawing.pictures import GAP, captioned, legend, scale_bar, side_by_side, unknown_box

_STOPS = 17  # colour stops of the gradient on a page


@dataclass(frozen=True, eq=False)
class Scale:
    """Colour scale of a panel: a table (256, 3) between two ends in mm."""

    ends: tuple[float, float]
    table: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Return both ends and `_STOPS` colours between them."""
        chosen = self.table[np.linspace(0, len(self.table) - 1, _STOPS).round().astype(int)]
        colours = [css((int(r), int(g), int(b))) for r, g, b in chosen]
        return {"low": self.ends[0], "high": self.ends[1], "unit": "mm", "colours": colours}


@dataclass(frozen=True, eq=False)
class Panel:
    name: str  # such as frame, truth, prediction, errors
    image: np.ndarray  # uint8 RGB (H, W, 3)
    note: str = ""  # short text of the caption
    legend: tuple[Entry, ...] = ()  # colours that only this panel has
    scale: Scale | None = None  # if colours are numbers


@dataclass(frozen=True, eq=False)
class Sheet:
    """Panels of the same size, from left to right."""

    panels: tuple[Panel, ...]
    legend: tuple[Entry, ...] = ()  # colours that several panels share
    hatched: bool = False  # whether unknown values are hatched

    def image(self) -> np.ndarray:
        """Draw the sheet, uint8 RGB (H, W, 3): captions above the panels, scales and legends below."""
        captions = [f"{panel.name}: {panel.note}" if panel.note else panel.name for panel in self.panels]
        panels = [captioned(panel.image, text) for panel, text in zip(self.panels, captions, strict=True)]
        rows = [side_by_side(panels)]
        if any(panel.scale for panel in self.panels):
            rows.append(side_by_side([_below(panel) for panel in self.panels]))
        if entries := [*self.legend, *(entry for panel in self.panels for entry in panel.legend)]:
            rows.append(legend(entries, width=rows[0].shape[1]))
        return np.concatenate(rows, axis=0)

    def to_json(self) -> dict[str, Any]:
        """Return the box of each panel in `image` and the meaning of its colours."""
        height, width = self.panels[0].image.shape[:2]
        above = captioned(self.panels[0].image, "").shape[0] - height
        return {
            "panels": [
                {
                    "name": panel.name, "note": panel.note, "box": [number * (width + GAP), above, width, height],
                    "legend": _named(panel.legend), "scale": panel.scale.to_json() if panel.scale else None,
                }
                for number, panel in enumerate(self.panels)
            ],
            "legend": _named(self.legend),
            "hatched": self.hatched,
        }  # fmt: skip


def _below(panel: Panel) -> np.ndarray:
    """Draw a panel's scale, or the legend of the hatching."""
    width = panel.image.shape[1]
    return unknown_box(width) if panel.scale is None else scale_bar(panel.scale.ends, panel.scale.table, width)


def _named(entries: Sequence[Entry]) -> list[dict[str, str]]:
    return [{"name": name, "colour": css(rgb)} for name, rgb in entries]
