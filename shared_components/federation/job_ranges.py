"""Types and ranges of a job's sections, the same on both sides; a site's own limits are narrower."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from shared_components.common.arguments import between
from shared_components.common.reject_code import refuse_code
from shared_components.common.schema import Schema, shown
from shared_components.federation.secure_sums.fixed_point import FRACTION_BITS

LARGEST = 1_000_000_000  # of any number but a seed
LARGEST_SEED = 2**63 - 1
MOST_VALUES, LONGEST_TEXT, DEEPEST = 1000, 1000, 4  # of a section
Side = Annotated[int, Meta(ge=1, le=4096)]
Videos = Annotated[int, Meta(ge=0, le=1000)]
SYNTHETIC: Mapping[str, Any] = {
    "frames_per_video": Annotated[int, Meta(ge=1, le=100_000)],
    "height": Side,
    "width": Side,
    "seed": Annotated[int, Meta(ge=0, le=LARGEST_SEED)],
    "clip": Annotated[int, Meta(ge=1, le=1024)],
    "interval": Annotated[float, Meta(ge=0, le=3600)],
    "videos": Annotated[
        list[Videos], Meta(min_length=3, max_length=3, description="it is three whole numbers: train, validation, test")
    ],
}
"""What a simulator's rendered site is made of."""


class SecureSums(Schema, frozen=True):
    """How many sites a sum has at least, more than half of them, and the bits of a weight behind the binary point."""

    threshold: Annotated[int, Meta(ge=2, le=10_000)]
    fraction_bits: Annotated[int, Meta(ge=8, le=48)] = FRACTION_BITS


def check_section(who: str, section: str, given: object, *, values: bool = True) -> None:
    """Refuse what is no mapping of names to plain values: texts, numbers, truth values, null, lists of these.

    Args:
        who: Begins the sentence.
        section: The job's key.
        given: Its value.
        values: Check ranges and the number of values as well; else the form, and that it holds no code.

    Raises:
        ValueError: The sentence names the key below the section.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{who}: {section} is {shown(given)}; write its settings as 'name: value'")
    if values and (count := _plain_values(who, section, given, 1)) > MOST_VALUES:
        raise ValueError(f"{who}: {section} has {count} values; at most {MOST_VALUES} are read")
    refuse_code(given, f"{who}: {section}")


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
