"""Refuse updates that must not be aggregated."""

import math
from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

import torch
from torch import Tensor

from shared_components.core.method import Update
from shared_components.core.partition import CheckExtra, Pieces
from shared_components.federation.messages.message import RejectedUpdate

MEASURED = frozenset({torch.float32, torch.float64})  # types of extras
LARGEST_EXTRA = 1e9  # far above all losses, traces, sensitivities and prototypes
LARGEST_RATIO = 100  # of a site's extra to the median of the other sites


def check_header(header: Mapping[str, Any], *, round: int, largest_samples: int) -> int:
    """Return the number of samples in a parsed reply; RejectedUpdate for another round, or more than at enrolment."""
    if header.get("round") != round:
        named = header["round"] + 1 if "round" in header else None  # messages count rounds from 1
        raise RejectedUpdate(f"it is of round {named}, this is round {round + 1}")
    samples = header.get("samples")
    if samples is None or samples > largest_samples:
        raise RejectedUpdate(f"it reports {samples!r} samples; the site enrolled with {largest_samples}")
    return samples


def check_extras(
    groups: Mapping[str, Pieces], expected: Mapping[str, CheckExtra], shared: Pieces, *, method: str
) -> None:
    """Refuse a group that the method does not declare or accept; RejectedUpdate names it."""
    if set(groups) != set(expected):
        raise RejectedUpdate(f"it carries the extras {sorted(groups)}; {method} has {sorted(expected)}")
    for group, pieces in groups.items():
        if wrong := [name for name, value in pieces.items() if value.dtype not in MEASURED]:
            raise RejectedUpdate(f"its {group}: {wrong[0]} is {pieces[wrong[0]].dtype}; a float32 or float64 is due")
        if not math.isfinite(largest := _largest(pieces)):
            raise RejectedUpdate(f"its {group} has values that are not finite")
        try:
            expected[group](pieces, shared)
        except ValueError as error:
            raise RejectedUpdate(f"its {group}: {error}") from error
        if largest > LARGEST_EXTRA:
            raise RejectedUpdate(f"its {group} goes up to {largest:.3g}; at most {LARGEST_EXTRA:g} is accepted")


def outlying_extras(updates: Sequence[Update]) -> dict[str, str]:
    """Return the sites that report a far larger extra than the other sites, with a reason for each.

    A group's size is its largest number. A size over 1, and over `LARGEST_RATIO` times the others' median, would decide
    a softmax or a weighted mean. The upper median protects two sites from a third that reports almost nothing. With
    fewer than three sites the result is empty: the server cannot know which site is wrong.
    """
    outliers: dict[str, str] = {}
    for group in updates[0].extras if len(updates) > 2 else ():
        sizes = {update.site: _largest(update.extras[group]) for update in updates}
        for site, size in sizes.items():
            others = median_high(other for name, other in sizes.items() if name != site)
            if size > LARGEST_RATIO * max(others, 1 / LARGEST_RATIO):
                ratio = f"over {LARGEST_RATIO} times the others' median of {others:.3g}"
                outliers[site] = f"its {group} goes up to {size:.3g}, {ratio}"
    return outliers


def _largest(pieces: Mapping[str, Tensor]) -> float:
    """Return the largest absolute value, or NaN if there is one."""
    bounds = [abs(float(bound)) for value in pieces.values() if value.numel() for bound in value.aminmax()]
    return math.nan if any(map(math.isnan, bounds)) else max(bounds, default=0.0)
