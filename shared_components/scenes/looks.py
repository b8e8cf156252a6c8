"""Looks of synthetic sites, by name or number.

This file has the named looks; `drawn_looks` draws the numbered ones. Looks of Endo700k's parts are used only by name,
not when sites cycle through looks.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.look import Look, Organs
from shared_components.scenes.part_looks import PART_LOOKS

SIMULATED = "simulated"  # the look of computer graphics, such as a server has that teaches what sites share

# fmt: off
_PERITONEUM: Organs = (
    ((196, 92, 92), "membrane"), ((176, 70, 72), "muscle"), ((226, 188, 180), "membrane"), ((158, 44, 48), "plain"),
)
_PALE_TISSUE: Organs = (
    ((214, 170, 150), "membrane"), ((196, 130, 116), "muscle"), ((228, 200, 176), "tubular"),
    ((178, 92, 84), "membrane"),
)
_NARROWBAND = Look(
    name="narrowband", text="narrow-band light: green and blue alone, vessels nearly black",
    organs=(
        ((206, 150, 140), "membrane"), ((186, 120, 110), "tubular"),
        ((220, 180, 150), "membrane"), ((170, 96, 92), "muscle"),
    ),
    vessel=(60, 10, 8), vessels=2.2, blood=0.2, gauze=0.3,
    light=(90, 255, 235), exposure=0.95, contrast=1.25, vignette=0.7, gloss=1.4,
    noise=3.5, blur=2.0, tint=0.75, hue=(70, 230, 215),
    shaft=(96, 100, 102), metal=(206, 210, 214), tarnish=0.35,
)
_LOOKS = (
    Look(
        name="rose", text="pink peritoneum with fine vessels, white light, carbon shafts",
        organs=_PERITONEUM,
        vessels=1.6, gauze=0.3,
    ),
    Look(
        name="amber", text="yellow fat with lobules, warm light, blood, grey shafts",
        organs=(
            ((222, 150, 62), "lobular"), ((236, 172, 84), "lobular"),
            ((176, 84, 52), "muscle"), ((228, 190, 120), "lobular"),
        ),
        vessel=(150, 40, 20), vessels=0.7, blood=0.3,
        light=(255, 232, 196), exposure=1.05, vignette=0.65, glint=0.13,
        noise=3.5,
        shaft=(92, 92, 90), metal=(200, 192, 176), tarnish=0.3,
    ),
    Look(
        name="crimson", text="deep red, bloody and dark, strong contrast, black shafts",
        organs=(
            ((142, 22, 20), "muscle"), ((168, 36, 28), "muscle"),
            ((110, 16, 20), "plain"), ((196, 96, 60), "lobular"),
        ),
        vessel=(70, 4, 10), blood=0.55, gauze=0.35, thread=0.6,
        light=(255, 236, 226), exposure=0.9, contrast=1.2, vignette=0.85, gloss=1.5, glint=0.08,
        noise=4.5,
        shaft=(26, 25, 26), metal=(176, 170, 170), tarnish=0.5,
    ),
    Look(
        name="violet", text="pale violet serosa in cool light through a circular aperture, pale shafts",
        organs=(
            ((182, 146, 176), "membrane"), ((206, 182, 196), "membrane"),
            ((150, 96, 132), "tubular"), ((222, 206, 190), "lobular"),
        ),
        vessel=(104, 30, 84), vessels=1.3, blood=0.08, gauze=0.3,
        light=(226, 236, 255), exposure=0.95, vignette=0.6, gloss=1.2, glint=0.12, haze=0.04,
        noise=3.0, blur=2.2, aperture="circle",
        shaft=(150, 152, 154), metal=(188, 196, 210), accent=(120, 150, 170), tarnish=0.08,
    ),
    Look(
        name="ivory", text="beige bowel and liver in a veil of smoke, cut corners, soft focus",
        organs=(
            ((206, 170, 140), "tubular"), ((220, 190, 158), "tubular"),
            ((112, 58, 44), "plain"), ((224, 186, 128), "lobular"),
        ),
        vessel=(160, 80, 70), vessels=0.8, blood=0.05, gauze=0.3,
        light=(250, 255, 236), exposure=0.95, contrast=0.9, vignette=0.45, gloss=0.7, glint=0.2, haze=0.16, smoke=0.5,
        noise=2.0, blur=3.2, aperture="corners",
        shaft=(70, 84, 92), metal=(190, 198, 194), tarnish=0.1,
    ),
    _NARROWBAND,
    replace(
        _NARROWBAND,
        name="bluelight", text="narrow-band light as another maker's processor shows it: blue, pale tissue",
        organs=_PALE_TISSUE,
        light=(120, 170, 255),
        hue=(90, 150, 255),
    ),
    replace(
        _NARROWBAND,
        name="greenlight",
        text="narrow-band light as a third maker's processor shows it: green, through a circular aperture",
        organs=_PERITONEUM,
        light=(140, 255, 120),
        aperture="circle", hue=(90, 255, 120),
    ),
    Look(
        name="fluorescence",
        text="near-infrared light: a dark picture in which perfused tissue glows green, and metal is dim",
        organs=(
            ((60, 66, 60), "plain"), ((196, 208, 190), "tubular"),
            ((100, 108, 98), "lobular"), ((228, 236, 220), "membrane"),
        ),
        vessel=(240, 250, 236), blood=0.3,
        light=(150, 255, 150), contrast=1.25, vignette=0.75, gloss=0.2, glint=0.2, haze=0.05,
        noise=4.0, blur=2.0, tint=0.95, hue=(60, 255, 90),
        shaft=(52, 56, 52), metal=(184, 192, 184), accent=(100, 106, 100), shine=0.2, tarnish=0.2,
    ),
    Look(
        name="fibrescope",
        text="a bundle of fibres, each a dot of the picture, behind a small round aperture; pale tissue, pale shafts",
        organs=_PALE_TISSUE,
        vessels=1.2, blood=0.1, gauze=0.4,
        light=(255, 240, 214), exposure=0.9, vignette=0.8, gloss=0.9, haze=0.08,
        noise=3.0, blur=1.8, aperture="circle", field=(0.46, 0.48), fibres=84,
        shaft=(178, 170, 160), metal=(206, 198, 184), tarnish=0.1,
    ),
    Look(
        name=SIMULATED, text="computer graphics: flat colours, no wetness, no noise",
        organs=(
            ((222, 120, 110), "plain"), ((196, 84, 92), "plain"),
            ((236, 190, 110), "plain"), ((150, 60, 80), "plain"),
        ),
        vessels=0.25, blood=0.0, thread=0.0,
        light=(255, 255, 255), vignette=0.1, gloss=0.0, smoke=0.0,
        noise=0.0, blur=1.0,
        shaft=(84, 96, 110), metal=(164, 176, 190), accent=(90, 140, 200), tarnish=0.0,
        flat=True,
    ),
)
# fmt: on

BY_NAME: dict[str, Look] = {look.name: look for look in _LOOKS}
LOOKS: tuple[str, ...] = tuple(BY_NAME)
"""Names of all looks; the last one, `SIMULATED`, is visibly not from a camera."""
SITE_LOOKS: tuple[str, ...] = tuple(look.name for look in _LOOKS if not look.flat)


def numbered(look: str, number: int) -> str:
    """Return the look of one video: "<family>-*" stands for a new number each, other names for themselves."""
    return f"{look[:-1]}{number}" if look.endswith("-*") else look


def look_named(name: str) -> Look:
    """Return the look called `name`, or the one drawn from a number for "<family>-<number>", such as "random-7".

    Raises:
        ValueError: it is unknown; the sentence lists the known names.
    """
    if (drawn := re.fullmatch(r"([a-z]+)-(\d{1,15})", name)) and drawn[1] in FAMILIES:
        return FAMILIES[drawn[1]](int(drawn[2]))
    if name in PART_LOOKS:
        return PART_LOOKS[name]
    if name not in BY_NAME:
        families = ", ".join(f"{family}-<number>" for family in FAMILIES)
        raise ValueError(f"look {name!r} is unknown; known looks: {', '.join(LOOKS)}, and {families}")
    return BY_NAME[name]
