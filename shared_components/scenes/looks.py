"""Looks of synthetic sites: named looks from `looks.yaml`, and numbered looks from `drawn_looks`."""

import re

import msgspec

from shared_components.common.plain_yaml import beside, read_own_yaml
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.look import Look

SIMULATED = "simulated"
"""Name of the computer-graphics look, for example for a server that trains before the sites share anything."""


BY_NAME, PART_LOOKS = (
    {name: msgspec.convert({"name": name, **fields}, Look) for name, fields in section.items()}
    for section in read_own_yaml(beside(__file__, "looks.yaml")).values()
)
LOOKS: tuple[str, ...] = tuple(BY_NAME)
"""Names of the looks that sites cycle through; the last look, `SIMULATED`, is visibly not from a camera."""
SITE_LOOKS: tuple[str, ...] = tuple(name for name, look in BY_NAME.items() if not look.flat)


def numbered(look: str, number: int) -> str:
    """Return the look of a video: "<family>-*" becomes "<family>-<number>", other names stay."""
    return f"{look[:-1]}{number}" if look.endswith("-*") else look


def look_named(name: str) -> Look:
    """Return the look `name`, or the look drawn from a number for "<family>-<number>", such as "random-7".

    A ValueError for an unknown look lists the known looks.
    """
    if (drawn := re.fullmatch(r"([a-z]+)-(\d{1,15})", name)) and drawn[1] in FAMILIES:
        return FAMILIES[drawn[1]](int(drawn[2]))
    if (look := BY_NAME.get(name) or PART_LOOKS.get(name)) is None:
        families = ", ".join(f"{family}-<number>" for family in FAMILIES)
        raise ValueError(f"look {name!r} is unknown; known looks: {', '.join(LOOKS)}, and {families}")
    return look
