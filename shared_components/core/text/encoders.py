"""The kinds of text encoder by name, and one entry for all: a kind and a site's text in, a vector out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shared_components.common.arguments import between, one_of
from shared_components.core.text.pretrained import open_clip, open_sentence
from shared_components.core.text.vectors import TextError, Vector, one_line, read_vectors

DEVIATION = 0.1  # FedST, section 4.3.4
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
