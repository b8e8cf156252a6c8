"""The texts whose vectors the project ships."""

from __future__ import annotations

from shared_components.data.synthetic.looks import LOOKS, look_named

SURGERIES = (
    "porcine nephrectomy",  # EndoVis 2017 and 2018: FedST's sites A and B
    "nephrectomy",
    "robot-assisted radical prostatectomy",  # SAR-RARP50: site C
    "prostatectomy",  # GraSP
    "hysterectomy",  # site D
    "lobectomy",  # site E, outside the federation
    "gastrectomy",  # Sisvse: the server's
    "cholecystectomy",
    "laparoscopic colorectal surgery",  # EndoVis 2015
)
LETTERS = "ABCDE"  # how FedST calls its sites
BEGINNING = "This is the Local site"


def site_text(surgery: str, site: str = "") -> str:
    """Return FedST's sentence about a site (section 3.2.2).

    Args:
        surgery: What is operated there.
        site: What the site is called; left out: the sentence does without.
    """
    place = f"{BEGINNING} {site}" if site else BEGINNING
    return f"{place} model and the surgery type is {surgery}"


def known_texts() -> tuple[str, ...]:
    """Return surgeries and looks as `site.yaml` may say them, the paper's sentence of each, and of its five sites."""
    looks = [f"synthetic: {look_named(name).text}" for name in (*LOOKS, "random-0")]  # as rendered sites say
    plain = [*SURGERIES, *looks]
    of_letters = [site_text(surgery, letter) for surgery in SURGERIES for letter in LETTERS]
    return (*plain, *map(site_text, plain), *of_letters)
