"""Encode the text of a site, and condition a network on it as FedST's indicator (IEEE TMI 2026, Eq. 7)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.core.method import ConditionOnSite, SiteFacts
from shared_components.core.text.pretrained import open_clip, open_sentence
from shared_components.core.text.vectors import TextError, Vector, one_line, read_vectors
from shared_components.networks.parts import parts_of
from shared_components.networks.protocols import provides

DEVIATION = 0.1  # FedST, Section 4.3.4
NUMBERED_WIDTH = 384  # minimum length of a published vector without text, as for the shipped texts
STREAMS = {"random": 1, "gaussian": 2}  # separate streams of random numbers


class Encoder(Protocol):
    """Encoder of texts; files are read once, when it is opened."""

    def encode(self, text: str) -> Vector: ...


@dataclass(frozen=True)
class Numbered:
    """Encoder of sites by index instead of text, for comparison with FedST's text (Table 7).

    ``random`` is a random direction. ``one_hot`` is 1 at the index of the site, else 0. ``gaussian`` is the one-hot
    vector plus noise with standard deviation 0.1 ("centered at the one-hot value"; the paper can also be read as a mean
    equal to the site's index in all elements). The same seed and site give the same vector in every process. Raises
    ValueError if a number is out of range.
    """

    kind: str
    site: int  # index of the site, from 0
    sites: int  # number of sites, including held-out sites
    width: int  # length D; at least ``sites``, except for ``random``
    seed: int = 0

    def __post_init__(self) -> None:
        between(self.kind, "sites", self.sites, 1, whole=True)
        between(self.kind, "site", self.site, 0, self.sites - 1, whole=True)
        between(self.kind, "width", self.width, 1 if self.kind == "random" else self.sites, whole=True)
        between(self.kind, "seed", self.seed, 0, whole=True)

    def encode(self, text: str) -> Vector:
        """Return the vector of the site with norm 1, as in `open_sentence`: Table 7 compares only directions."""
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
    """Kind of encoder."""

    open: Callable[..., Encoder]  # returns the encoder, with the settings in ``takes`` as keyword arguments
    takes: tuple[str, ...]  # names of the supported settings of `encode`
    needs: tuple[str, ...] = ()  # names of the required settings

    @property
    def reads(self) -> bool:
        """Whether a vector depends on the text."""
        return "site" not in self.takes


EncoderKind = Literal["precomputed", "clip", "sentence", "random", "gaussian", "one_hot"]
_NUMBERS = ("site", "sites", "width")
KINDS: dict[str, Kind] = {
    "precomputed": Kind(read_vectors, ("file",)),
    "clip": Kind(open_clip, ("folder",), ("folder",)),
    "sentence": Kind(open_sentence, ("folder",)),
    **{n: Kind(partial(Numbered, n), (*_NUMBERS, "seed"), _NUMBERS) for n in ("random", "gaussian", "one_hot")},
}
DEFAULT: EncoderKind = "precomputed"


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

    The kind ``precomputed`` reads a ``file``, by default the shipped file. ``clip`` and ``sentence`` are local frozen
    encoders in a ``folder``, for ``sentence`` by default the installed package. ``random``, ``gaussian`` and
    ``one_hot`` ignore the text and use ``site``, ``sites`` and ``seed``, see `Numbered`. ``width`` is the required
    length of the vector. Raises ValueError if the kind is unknown, the text, encoder or file cannot be used, a setting
    is missing or not supported, or the vector has another length.
    """
    one_of("site text", "encoder", kind, KINDS)
    chosen = KINDS[kind]
    given = {"folder": folder, "file": file, "site": site, "sites": sites, "seed": seed, "width": width}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("folder", "file"):
        if name in given and name not in chosen.takes:
            raise TextError(f"site text: encoder {kind!r} does not use {name} ({given[name]}); leave it out")
    if missing := [name for name in chosen.needs if name not in given]:
        raise TextError(f"site text: encoder {kind!r} needs {' and '.join(missing)}; give it")
    text = one_line(text) if chosen.reads else text  # raises before any file is read
    vector = chosen.open(**{name: value for name, value in given.items() if name in chosen.takes}).encode(text)
    if width is not None and len(vector.values) != width:
        raise TextError(
            f"the vector of {vector.text!r} by {vector.model or vector.kind} has {len(vector.values)} numbers, but "
            f"{width} are needed; set the width to {len(vector.values)}, or use another encoder"
        )
    return vector


Wording = Literal["sentence", "letter", "plain", "task"]
BEGINNING, TASK_BEGINNING = "This is the Local site", "Dataset: "
_TABLES = read_own_yaml(Path(__file__).with_name("surgeries.yaml").read_text(encoding="utf-8"))
SURGERIES: tuple[str, ...] = tuple(_TABLES["surgeries"])
LETTERS = "ABCDE"  # names of FedST's sites

DATASETS: dict[str, list[str]] = _TABLES["datasets"]  # name in papers, and surgery
INSTRUMENT = frozenset({"instrument", "shaft", "wrist", "clasper", "manipulator"})  # parts of an instrument


def site_text(surgery: str, site: str = "") -> str:
    """Return FedST's sentence about a site (Section 3.2.2), optionally with the site's name."""
    place = f"{BEGINNING} {site}" if site else BEGINNING
    return f"{place} model and the surgery type is {surgery}"


def task_text(facts: SiteFacts) -> str:
    """Return SurgFed's sentence about a site (Section III-B), with the site's text as the surgery.

    Depth has no label. Segmentation with other classes than instruments is "Scene Segmentation".
    """
    classes = facts.classes[1:]
    kind = facts.task or ("segmentation" if classes else "depth")
    of_kind = {"depth": "Depth Estimation", "segmentation": "Scene Segmentation"}
    named = "Instrument Segmentation" if INSTRUMENT.issuperset(classes) else of_kind["segmentation"]
    task = named if kind == "segmentation" else of_kind.get(kind, kind.replace("_", " ").title())
    labels = ", ".join(name.replace("_", " ").title() for name in classes if kind == "segmentation")
    dataset = DATASETS.get(facts.dataset, (facts.dataset,))[0]
    text = f"{TASK_BEGINNING}{dataset}, Surgery: {one_line(facts.text)}, Task: {task}"
    return f"{text}, Label: {labels}" if labels else text


class TakesIndicator(Protocol):
    """A network with an indicator, such as `networks.pvt_fpn_clips.PvtFpnClips`."""

    indicator: Tensor

    def set_indicator(self, indicator: Tensor) -> None: ...


@dataclass(frozen=True)
class SiteText:
    """`Local.condition_on_site` that encodes the site's text as the network's indicator, before training.

    The job sets kind and wording for all sites. Each site sets its files in site.yaml: ``text_vectors`` for
    ``precomputed`` (default: the shipped file), and ``text_encoder`` for ``clip`` (required) and ``sentence``.

    Wordings: ``sentence`` is FedST's sentence without the site's name; ``letter`` adds a letter for the index of the
    site, A for the first. ``plain`` is the site's text, ``task`` SurgFed's sentence, see `task_text`. A text that
    already is one of these sentences is not changed.
    """

    kind: EncoderKind = DEFAULT  # see `encode`
    wording: Wording = "sentence"
    seed: int = 0  # seed of ``random`` and ``gaussian``

    def __call__(self, network: nn.Module, facts: SiteFacts) -> str:
        """Set the indicator; return the encoder's kind and SHA-256; ValueError as `encode`, or without indicator."""
        if not provides(network, TakesIndicator):
            raise TextError(
                f"{type(network).__name__} cannot use a site's text; choose a network with an indicator, such as "
                "PvtFpnClips with text 'selection' or 'prompt'"
            )
        conditioned = cast(TakesIndicator, network)
        vector = self.vector(facts, width=len(conditioned.indicator))
        conditioned.set_indicator(vector.values)
        return _encoder_of(vector)

    def published(self, facts: SiteFacts) -> dict[str, Any]:
        """Return the profile item `text_vector` of a site; errors as in `encode`."""
        vector = self.vector(facts, width=None if KINDS[self.kind].reads else max(NUMBERED_WIDTH, facts.sites))
        return {"encoder": _encoder_of(vector), "values": vector.values.tolist()}

    def vector(self, facts: SiteFacts, *, width: int | None = None) -> Vector:
        """Return the vector of a site; width and errors as in `encode`."""
        kind = KINDS[self.kind]
        if "folder" in kind.needs and facts.encoder is None:
            raise TextError(f"encoder {self.kind!r} needs a model; write its folder as 'text_encoder' in site.yaml")
        files = {"file": facts.vectors, "folder": facts.encoder}
        files = {name: path for name, path in files.items() if name in kind.takes}
        text = self._worded(facts) if kind.reads else facts.text
        return encode(self.kind, text, **files, site=facts.site, sites=facts.sites, seed=self.seed, width=width)

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
                f"wording 'letter' supports {len(ascii_uppercase)} sites, but this is site {facts.site + 1}; use "
                "wording 'sentence'"
            )
        return site_text(text, ascii_uppercase[facts.site])


def _encoder_of(vector: Vector) -> str:
    """Return kind and SHA-256 of an encoder, because equal encoders may have folders with different names."""
    return f"{vector.kind} {vector.sha256 or vector.model}".strip()


def if_it_has_an_indicator(describe: SiteText) -> ConditionOnSite:
    """Return a ``condition_on_site`` that skips networks without an indicator (the ablation without text)."""
    return lambda network, facts: describe(network, facts) if "indicator" in parts_of(network) else ""
