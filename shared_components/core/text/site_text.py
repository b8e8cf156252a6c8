"""Condition a site's network on its description of the surgery: FedST's indicator (IEEE TMI 2026, Eq. 7)."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Protocol, cast, runtime_checkable

from torch import Tensor, nn

from shared_components.common.arguments import between, one_of
from shared_components.core.method import SiteFacts
from shared_components.core.text.encoders import DEFAULT, KINDS, encode
from shared_components.core.text.vectors import TextError, Vector, one_line
from shared_components.data.synthetic.looks import LOOKS, look_named

WORDINGS = ("sentence", "letter", "plain")
BEGINNING = "This is the Local site"
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


def site_text(surgery: str, site: str = "") -> str:
    """Return FedST's sentence about a site (Section 3.2.2), with the site's name or without it."""
    place = f"{BEGINNING} {site}" if site else BEGINNING
    return f"{place} model and the surgery type is {surgery}"


def known_texts() -> tuple[str, ...]:
    """Return the texts whose vectors the project ships.

    Surgeries and looks as `site.yaml` may have them, the paper's sentence of each, and the surgeries' of its five
    sites.
    """
    looks = [f"synthetic: {look_named(name).text}" for name in (*LOOKS, "random-0")]  # as in rendered sites' files
    plain = [*SURGERIES, *looks]
    of_letters = [site_text(surgery, letter) for surgery in SURGERIES for letter in LETTERS]
    return (*plain, *map(site_text, plain), *of_letters)


@runtime_checkable
class TakesIndicator(Protocol):
    """A network that takes an indicator, such as `networks.pvt_fpn_clips.PvtFpnClips`."""

    indicator: Tensor

    def set_indicator(self, indicator: Tensor) -> None:
        """Set the indicator (D,)."""
        ...


@dataclass(frozen=True)
class SiteText:
    """A method's ``condition_on_site``: encode the site's text, before any training, as the network's indicator.

    A job chooses kind and wording, one for all sites; files and folders are the site's own and stand in its site.yaml:
    ``text_vectors`` for ``precomputed`` (default: the project's own), ``text_encoder`` for ``clip``, which needs it,
    and ``sentence``. The vector has as many numbers as the network's indicator.

    Attributes:
        kind: See `encoders.encode`.
        wording: What is encoded. ``sentence``: the paper's, without the site's name. ``letter``: the paper's, with the
            letter of the site's number, A for the first. ``plain``: the site's text. A text that is the paper's
            sentence already is taken as it is.
        seed: Of ``random`` and ``gaussian``.

    Raises:
        ValueError: An attribute is unknown or out of its range.
    """

    kind: str = DEFAULT
    wording: str = "sentence"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("site text", "encoder", self.kind, KINDS)
        one_of("site text", "wording", self.wording, WORDINGS)
        between("site text", "seed", self.seed, 0, whole=True)

    def __call__(self, network: nn.Module, facts: SiteFacts) -> str:
        """Set the network's indicator; return the encoder's name: its kind, and the SHA-256 of its weights.

        Raises:
            ValueError: The network takes no indicator, the text has no vector or cannot be read, an encoder or a file
                cannot be used, or the vector has another width than the indicator. One sentence.
        """
        if not isinstance(network, TakesIndicator):
            raise TextError(
                f"{type(network).__name__} cannot be told a site's text; choose a network with an indicator, such as "
                "PvtFpnClips with text 'selection' or 'prompt'"
            )
        conditioned = cast(TakesIndicator, network)
        vector = self.vector(facts, width=len(conditioned.indicator))
        conditioned.set_indicator(vector.values)
        # a learnt encoder's name is its folder's, which may differ where the weights do not
        return f"{vector.kind} {vector.sha256 or vector.model}".strip()

    def vector(self, facts: SiteFacts, *, width: int | None = None) -> Vector:
        """Return the vector of a site; width and errors as of `encoders.encode`."""
        kind = KINDS[self.kind]
        if "folder" in kind.needs and facts.encoder is None:
            raise TextError(
                f"encoder {self.kind!r} reads texts with a model of the site's own; write its folder as 'text_encoder' "
                "in site.yaml"
            )
        return encode(
            self.kind,
            self._worded(facts) if kind.reads else facts.text,
            file=facts.vectors if "file" in kind.takes else None,
            folder=facts.encoder if "folder" in kind.takes else None,
            site=facts.site,
            sites=facts.sites,
            seed=self.seed,
            width=width,
        )

    def _worded(self, facts: SiteFacts) -> str:
        text = one_line(facts.text)
        if self.wording == "plain" or text.startswith(BEGINNING):
            return text
        if self.wording == "sentence":
            return site_text(text)
        if facts.site >= len(ascii_uppercase):
            raise TextError(
                f"wording 'letter' names {len(ascii_uppercase)} sites, and this is site {facts.site + 1}; use wording "
                "'sentence'"
            )
        return site_text(text, ascii_uppercase[facts.site])
