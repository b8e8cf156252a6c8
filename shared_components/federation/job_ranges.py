"""The type and the range of everything that a job says, the same on both sides; a site's own limits are narrower."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from shared_components.common.arguments import between

LARGEST = 1_000_000_000  # of any number but a seed
LARGEST_SEED = 2**63 - 1
MOST_VALUES, LONGEST_TEXT, DEEPEST = 1000, 1000, 4  # of a section
SYNTHETIC = {
    "frames_per_video": (1, 100_000, True),
    "height": (1, 4096, True),
    "width": (1, 4096, True),
    "seed": (0, LARGEST_SEED, True),
    "clip": (1, 1024, True),
    "interval": (0, 3600, False),
}
"""Least, most and whether whole, of what a simulator's rendered site is made of."""
MOST_VIDEOS = 1000
PRIVACY: dict[str, tuple[float, float, Literal["(]", "()"]]] = {
    "clip": (0, 1_000_000, "(]"),
    "noise_multiplier": (0, 1_000_000, "(]"),
    "delta": (0, 0.1, "(]"),
    "epsilon": (0, LARGEST, "(]"),
}
"""Least, most and ends of what a job's and a site's ``privacy`` say; ``epsilon`` is a site's alone."""
SECURE_SUMS = {"threshold": (2, 10_000), "fraction_bits": (8, 48)}


def check_section(who: str, section: str, given: object, *, values: bool = True) -> None:
    """Refuse what is no mapping of names to plain values: texts, numbers, truth values, null, lists of these.

    Args:
        who: Begins the sentence.
        section: The job's key.
        given: What stands there.
        values: Whether to look at the values; else at the form of the section alone.

    Raises:
        ValueError: The sentence names the key below the section.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{who}: {section} is {given!r:.80}; write its settings as 'name: value'")
    if values and (count := _plain_values(who, section, given, 1)) > MOST_VALUES:
        raise ValueError(f"{who}: {section} has {count} values; at most {MOST_VALUES} are read")


def check_privacy(who: str, given: Mapping[str, object]) -> None:
    """Refuse a job's ``privacy`` that is not whole; an empty one is none.

    Raises:
        ValueError: The sentence names the key: unknown, missing, or out of its range.
    """
    if not given:
        return
    if missing := [key for key in ("clip", "noise_multiplier") if key not in given]:
        raise ValueError(f"{who}: privacy has no {missing[0]!r}; give clip and noise_multiplier")
    check_privacy_values(who, "privacy.", given, ("clip", "noise_multiplier", "delta"))


def check_privacy_values(who: str, prefix: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse unknown keys, and numbers that are none or out of their range.

    Raises:
        ValueError: The sentence names the key.
    """
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{who}: unknown key '{prefix}{key!s:.80}'; known keys: {', '.join(known)}")
        low, high, ends = PRIVACY[key]
        between(who, f"{prefix}{key}", value, low, high, ends=ends)


def check_synthetic(who: str, sizes: Mapping[str, object]) -> None:
    """Refuse sizes of a rendered site that are no numbers, or out of their range.

    Raises:
        ValueError: The sentence names the key.
    """
    for key, (least, most, whole) in SYNTHETIC.items():
        if key in sizes:
            between(who, f"synthetic.{key}", sizes[key], least, most, whole=whole)
    videos = sizes.get("videos", [1, 1, 1])
    if not isinstance(videos, Sequence) or isinstance(videos, str) or len(videos) != 3:
        raise ValueError(
            f"{who}: synthetic.videos is {videos!r:.80}; it is three whole numbers: train, validation, test"
        )
    for number in videos:
        between(who, "synthetic.videos", number, 0, MOST_VIDEOS, whole=True)


def check_secure_sums(who: str, section: Mapping[str, object]) -> None:
    """Refuse a section of secure sums that has an unknown key, no threshold, or a number out of its range.

    Raises:
        ValueError: The sentence names the key.
    """
    if unknown := sorted(set(section) - set(SECURE_SUMS)):
        raise ValueError(
            f"{who}: secure_sums has the unknown key {unknown[0]!r:.80}; known keys: {', '.join(SECURE_SUMS)}"
        )
    if section and "threshold" not in section:
        raise ValueError(
            f"{who}: secure_sums.threshold is missing; write how many sites a sum has at least, more than half of them"
        )
    for key, value in section.items():
        between(who, f"secure_sums.{key}", value, *SECURE_SUMS[key], whole=True)


def _plain_values(who: str, key: str, value: object, depth: int) -> int:
    """Return how many plain values there are."""
    if isinstance(value, Mapping | list | tuple) and depth > DEEPEST:
        raise ValueError(f"{who}: {key} is nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        if odd := [name for name in value if not isinstance(name, str) or len(name) > LONGEST_TEXT]:
            raise ValueError(f"{who}: {key} has the key {odd[0]!r:.80}; a key is a short text")
        return sum(_plain_values(who, f"{key}.{name}", item, depth + 1) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(_plain_values(who, key, item, depth + 1) for item in value)
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise ValueError(f"{who}: {key} is a text of {len(value)} characters; at most {LONGEST_TEXT}")
    elif isinstance(value, float) and not math.isfinite(value):
        return 1  # no method or task takes it: refused where it is read, with its range
    elif value is not None and not isinstance(value, bool):
        most = LARGEST_SEED if key.rpartition(".")[2] == "seed" else LARGEST
        between(who, key, value, -most, most)
    return 1
