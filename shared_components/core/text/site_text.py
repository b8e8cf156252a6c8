"""Text encoders by kind, and FedST's indicator (IEEE TMI 2026, Eq. 7): a network conditioned on the site's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of
from shared_components.core.method import ConditionOnSite, SiteFacts
from shared_components.core.text.pretrained import open_clip, open_sentence
from shared_components.core.text.vectors import TextError, Vector, one_line, read_vectors
from shared_components.networks.parts import parts_of
from shared_components.networks.protocols import provides

DEVIATION = 0.1  # FedST, section 4.3.4
NUMBERED_WIDTH = 384  # of a published vector that is not a text's, at least: that of the project's texts
STREAMS = {"random": 1, "gaussian": 2}  # of random numbers: the two kinds share none


class Encoder(Protocol):
    """Computes vectors of texts; what it needs of the disk is read once, when it is opened."""

    def encode(self, text: str) -> Vector:
        """Return the vector of a text; ValueError where it has none."""
        ...


@dataclass(frozen=True)
class Numbered:
    """Vectors of sites that are numbered and not described: what FedST compares its text with (Table 7).

    Attributes:
        kind: ``random``: a direction independent of all else. ``gaussian``: the site's one-hot vector plus noise of
            standard deviation 0.1; the paper's sentence can also be read as a mean equal to the site's number
            throughout, "centered at the one-hot value" is followed here. ``one_hot``: 1 at the site's number, else 0.
        site: The site's number, from 0.
        sites: How many there are, those outside the federation included.
        width: D; unless random, ``sites`` or more.
        seed: Of the run; the same seed and site give the same numbers in every process.

    Raises:
        ValueError: A number is out of its range.
    """

    kind: str
    site: int
    sites: int
    width: int
    seed: int = 0

    def __post_init__(self) -> None:
        between(self.kind, "sites", self.sites, 1, whole=True)
        between(self.kind, "site", self.site, 0, self.sites - 1, whole=True)
        between(self.kind, "width", self.width, 1 if self.kind == "random" else self.sites, whole=True)
        between(self.kind, "seed", self.seed, 0, whole=True)

    def encode(self, text: str) -> Vector:
        """Return the site's vector, of length 1 as a text's (`open_sentence`): Table 7 compares directions alone."""
        if self.kind == "random":
            values = self._noise()
        else:
            values = torch.eye(1, self.width)[0].roll(self.site)  # (1, D) -> (D,)
        if self.kind == "gaussian":
            values = values + DEVIATION * self._noise()
        return Vector(values / values.norm(), self.kind, text=text)

    def _noise(self) -> Tensor:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, self.site, STREAMS[self.kind]))))
        return torch.from_numpy(rng.standard_normal(self.width, dtype=np.float32))  # (D,)


@dataclass(frozen=True)
class Kind:
    """A kind of encoder.

    Attributes:
        open: Returns the encoder; takes, by name, those settings of `encode` that ``takes`` lists.
        takes: Names of settings.
        needs: Those of them that have no default.
    """

    open: Callable[..., Encoder]
    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def reads(self) -> bool:
        """Whether a vector depends on the text."""
        return "site" not in self.takes


_NUMBERS = ("site", "sites", "width")
KINDS = {
    "precomputed": Kind(read_vectors, ("file",)),
    "clip": Kind(open_clip, ("folder",), ("folder",)),
    "sentence": Kind(open_sentence, ("folder",)),
    **{n: Kind(partial(Numbered, n), (*_NUMBERS, "seed"), _NUMBERS) for n in ("random", "gaussian", "one_hot")},
}
DEFAULT = "precomputed"
READERS = [name for name, kind in KINDS.items() if "folder" in kind.takes]  # of any text: they can fill a file


def encode(
    kind: str,
    text: str,
    *,
    folder: Path | None = None,
    file: Path | None = None,
    site: int | None = None,
    sites: int | None = None,
    seed: int | None = None,
    width: int | None = None,
) -> Vector:
    """Return the vector of a site's text, before any training.

    Args:
        kind: ``precomputed``: looked up in a file. ``clip``, ``sentence``: computed by a frozen encoder from this
            disk. ``random``, ``gaussian``, ``one_hot``: by the site's number alone, see `Numbered`.
        text: As in the site's site.yaml; the last three kinds do not read it.
        folder: Of the encoder, which ``clip`` needs; ``sentence``: default: the installed package's.
        file: Of ``precomputed``: the vectors; default: the project's own.
        site: The site's number, from 0. This and the next two are facts of a federation, which other kinds ignore.
        sites: How many there are, those outside the federation included.
        seed: Of the run; default: 0.
        width: How many numbers the vector must have; the last three kinds make as many.

    Raises:
        ValueError: The kind is unknown, the text cannot be read, an encoder or file cannot be used, a setting is
            missing or not the kind's, or the vector has another width. One sentence, which says what to do.
    """
    one_of("site text", "encoder", kind, KINDS)
    chosen = KINDS[kind]
    given = {"folder": folder, "file": file, "site": site, "sites": sites, "seed": seed, "width": width}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("folder", "file"):
        if name in given and name not in chosen.takes:
            raise TextError(f"site text: encoder {kind!r} reads no {name}, and {given[name]} is given; leave it out")
    if missing := [name for name in chosen.needs if name not in given]:
        raise TextError(f"site text: encoder {kind!r} needs {' and '.join(missing)}; give it")
    text = one_line(text) if chosen.reads else text  # refused before anything is read from disk
    vector = chosen.open(**{name: value for name, value in given.items() if name in chosen.takes}).encode(text)
    if width is not None and len(vector.values) != width:
        raise TextError(
            f"the vector of {vector.text!r} by {vector.model or vector.kind} has {len(vector.values)} numbers, and "
            f"{width} are asked for; set that width to {len(vector.values)}, or use another encoder"
        )
    return vector


WORDINGS = ("sentence", "letter", "plain", "task")
BEGINNING, TASK_BEGINNING = "This is the Local site", "Dataset: "
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

DATASETS = {  # as papers write them, and what is operated there
    "endovis2017": ("EndoVis2017", "porcine nephrectomy"),
    "endovis2018": ("EndoVis2018", "porcine nephrectomy"),
    "autolaparo": ("AutoLaparo", "hysterectomy"),
    "scared": ("SCARED", "porcine cadaver abdomen"),
    "stereomis": ("StereoMIS", "porcine in vivo"),
    "sar_rarp50": ("SAR-RARP50", "robot-assisted radical prostatectomy"),
    "grasp": ("GraSP", "prostatectomy"),
    "sisvse": ("Sisvse", "gastrectomy"),
    "endovis2015_rigid": ("EndoVis2015", "laparoscopic colorectal surgery"),
}
INSTRUMENT = frozenset({"instrument", "shaft", "wrist", "clasper", "manipulator"})  # classes that are parts of it


def site_text(surgery: str, site: str = "") -> str:
    """Return FedST's sentence about a site (Section 3.2.2), with the site's name or without it."""
    place = f"{BEGINNING} {site}" if site else BEGINNING
    return f"{place} model and the surgery type is {surgery}"


def task_text(facts: SiteFacts) -> str:
    """Return SurgFed's sentence about a site (Section III-B), and in it the surgery, its text.

    "Dataset: EndoVis2017, Surgery: porcine nephrectomy, Task: Instrument Segmentation, Label: Shaft, Wrist, Clasper".
    Depth has no label; a segmentation of more than instruments is one of the scene.
    """
    classes = facts.classes[1:]
    kind = facts.task or ("segmentation" if classes else "depth")
    of_kind = {"depth": "Depth Estimation", "segmentation": "Scene Segmentation"}
    named = "Instrument Segmentation" if INSTRUMENT.issuperset(classes) else of_kind["segmentation"]
    task = named if kind == "segmentation" else of_kind.get(kind, kind.replace("_", " ").title())
    labels = ", ".join(name.replace("_", " ").title() for name in classes if kind == "segmentation")
    dataset = DATASETS.get(facts.dataset, (facts.dataset,))[0]
    return f"{TASK_BEGINNING}{dataset}, Surgery: {one_line(facts.text)}, Task: {task}" + f", Label: {labels}" * bool(
        labels
    )


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
        kind: See `encode`.
        wording: What is encoded. ``sentence``: the paper's, without the site's name. ``letter``: the paper's, with the
            letter of the site's number, A for the first. ``plain``: the site's text. ``task``: SurgFed's, see
            `task_text`. A text that is one of these sentences already is taken as it is.
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
        if not provides(network, TakesIndicator):
            raise TextError(
                f"{type(network).__name__} cannot be told a site's text; choose a network with an indicator, such as "
                "PvtFpnClips with text 'selection' or 'prompt'"
            )
        conditioned = cast(TakesIndicator, network)
        vector = self.vector(facts, width=len(conditioned.indicator))
        conditioned.set_indicator(vector.values)
        return _encoder_of(vector)

    def published(self, facts: SiteFacts) -> dict[str, Any]:
        """Return the profile item `text_vector` of a site; errors as of `encode`."""
        vector = self.vector(facts, width=None if KINDS[self.kind].reads else max(NUMBERED_WIDTH, facts.sites))
        return {"encoder": _encoder_of(vector), "values": vector.values.tolist()}

    def vector(self, facts: SiteFacts, *, width: int | None = None) -> Vector:
        """Return the vector of a site; width and errors as of `encode`."""
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
        if self.wording == "plain" or text.startswith((BEGINNING, TASK_BEGINNING)):
            return text
        if self.wording == "task":
            return task_text(facts)
        if self.wording == "sentence":
            return site_text(text)
        if facts.site >= len(ascii_uppercase):
            raise TextError(
                f"wording 'letter' names {len(ascii_uppercase)} sites, and this is site {facts.site + 1}; use wording "
                "'sentence'"
            )
        return site_text(text, ascii_uppercase[facts.site])


def _encoder_of(vector: Vector) -> str:
    """Return an encoder's kind and the SHA-256 of its weights: the name of its folder may differ where they do not."""
    return f"{vector.kind} {vector.sha256 or vector.model}".strip()


def if_it_has_an_indicator(describe: SiteText) -> ConditionOnSite:
    """Condition networks that have an indicator; those without are a method's ablation without text."""
    return lambda network, facts: describe(network, facts) if "indicator" in parts_of(network) else ""
