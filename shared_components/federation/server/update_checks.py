"""Refuse updates that must not be aggregated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

import torch

from shared_components.core.method import Update
from shared_components.core.partition import CheckExtra, Pieces
from shared_components.federation.messages.message import RejectedUpdate

MEASURED = frozenset({torch.float32, torch.float64})  # what methods measure, and sites send as extras
LARGEST_EXTRA = 1e9  # of any extra: losses, traces, sensitivities and prototypes are far below
LARGEST_RATIO = 100  # of a site's extra to the median of the others'


def check_header(header: Mapping[str, Any], *, round: int, largest_samples: int) -> int:
    """Return the samples that a parsed reply reports.

    Raises:
        RejectedUpdate: It is of another round, or has no sample count, or a larger one than the site enrolled with.
    """
    if header.get("round") != round:
        named = header["round"] + 1 if "round" in header else None  # people count rounds from 1
        raise RejectedUpdate(f"it is of round {named}, this is round {round + 1}")
    samples = header.get("samples")
    if samples is None or samples > largest_samples:
        raise RejectedUpdate(f"it reports {samples!r} samples; the site enrolled with {largest_samples}")
    return samples


def check_extras(
    groups: Mapping[str, Pieces], expected: Mapping[str, CheckExtra], shared: Pieces, *, method: str
) -> None:
    """Refuse, by a RejectedUpdate that names it, a group that the method does not declare or accept."""
    if set(groups) != set(expected):
        raise RejectedUpdate(f"it carries the extras {sorted(groups)}; {method} has {sorted(expected)}")
    for group, pieces in groups.items():
        if odd := [name for name, value in pieces.items() if value.dtype not in MEASURED]:
            raise RejectedUpdate(f"its {group}: {odd[0]} is {pieces[odd[0]].dtype}; a float32 or float64 is due")
        if any(not bool(torch.isfinite(value).all()) for value in pieces.values()):
            raise RejectedUpdate(f"its {group} has values that are not finite")
        try:
            expected[group](pieces, shared)
        except ValueError as error:
            raise RejectedUpdate(f"its {group}: {error}") from error
        if not (largest := _largest(pieces)) <= LARGEST_EXTRA:
            raise RejectedUpdate(f"its {group} goes up to {largest:.3g}; at most {LARGEST_EXTRA:g} is taken")


def outlying_extras(updates: Sequence[Update]) -> dict[str, str]:
    """Return the sites that report an extra far larger than the others do, with a reason for each.

    A group's size is its largest number. One that is over `LARGEST_RATIO` times the others' median, and over 1, would
    decide a softmax or a weighted mean alone. The upper median counts, so that of three sites one that reports
    next to nothing makes no other look large; of fewer than three it is not known which is wrong, and none is named.
    """
    found: dict[str, str] = {}
    for group in updates[0].extras if len(updates) > 2 else ():
        sizes = {update.site: _largest(update.extras[group]) for update in updates}
        for site, size in sizes.items():
            others = median_high(other for name, other in sizes.items() if name != site)
            if size > LARGEST_RATIO * max(others, 1 / LARGEST_RATIO):
                found[site] = (
                    f"its {group} goes up to {size:.3g}, over {LARGEST_RATIO} times the others' median of {others:.3g}"
                )
    return found


def _largest(pieces: Pieces) -> float:
    return max((float(value.abs().max()) for value in pieces.values() if value.numel()), default=0.0)
