"""Shapes of targets: a map of pixels (H, W), a vector (N,) of a frame or video, or a scalar ().

Only maps are resized, flipped, cropped, rotated and compared with the frame's size. If all frames of a sample have a
target, T comes first: (T, H, W), (T, N) or (T,).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shared_components.data.files.images import DataError

DIMENSIONS = {"map": 2, "vector": 1, "scalar": 0}
_EXPECTED = {"map": "a map (H, W)", "vector": "a vector (N,)", "scalar": "one number"}
FORMS: dict[str, str] = {
    **dict.fromkeys(("label", "depth"), "map"),
    **dict.fromkeys(("triplets", "instruments", "verbs", "anatomy", "tools"), "vector"),  # uint8 0 or 1
    **dict.fromkeys(("phase", "action", "bleeding", "smoke", "grade"), "scalar"),  # int64 ids
}
"""Form of each target that a reader may give."""


def form_of(name: str) -> str:
    """Return a target's form; ValueError for an unknown target."""
    if name not in FORMS:
        raise ValueError(f"target {name!r} has no form; add it to FORMS in data/targets.py")
    return FORMS[name]


def is_map(name: str) -> bool:
    """Return whether a target has pixels."""
    return form_of(name) == "map"


def refuse_other_form(name: str, target: np.ndarray, file: Path) -> None:
    """Raise a DataError for the file if a frame's target has another form than its name."""
    form = form_of(name)
    if target.ndim != DIMENSIONS[form]:
        what = f"gives {name!r} of shape {target.shape}, which is no {form}: {_EXPECTED[form]}"
        raise DataError(file, what, "correct the file or its reader")


def maps_of(targets: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the targets that have pixels."""
    return {name: target for name, target in targets.items() if is_map(name)}


def of_last_frame(name: str, target: np.ndarray) -> np.ndarray:
    """Return the last frame's part of a target of one frame or of all frames."""
    return target[-1] if target.ndim > DIMENSIONS[form_of(name)] else target


def over_time(targets: Sequence[np.ndarray]) -> np.ndarray:
    """Stack a target of T frames, each (...), to (T, ...); a single frame's target stays as it is."""
    return targets[0] if len(targets) == 1 else np.stack(targets)
