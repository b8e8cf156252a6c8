"""The one entry: a kind of encoder and a site's text in, a vector out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.common.arguments import one_of
from shared_components.core.text import numbered
from shared_components.core.text.clip import open_clip
from shared_components.core.text.sentence import open_sentence
from shared_components.core.text.vector import TextError, Vector, one_line, require_width
from shared_components.core.text.vectors_file import precomputed


@dataclass(frozen=True)
class Kind:
    """How a kind of vector is made.

    Attributes:
        make: Takes the text and, by name, those of the settings that it takes.
        takes: Names of settings.
        needs: Those of them without which it makes nothing.
    """

    make: Callable[..., Vector]
    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def reads(self) -> bool:
        """Whether it reads the text."""
        return "site" not in self.takes


_NUMBERS = ("site", "sites", "width")
KINDS: dict[str, Kind] = {
    "precomputed": Kind(precomputed, ("file",)),
    "clip": Kind(lambda text, folder: open_clip(folder).encode(text), ("folder",), ("folder",)),
    "sentence": Kind(lambda text, folder=None: open_sentence(folder).encode(text), ("folder",)),
    "random": Kind(numbered.random, (*_NUMBERS, "seed"), _NUMBERS),
    "gaussian": Kind(numbered.gaussian, (*_NUMBERS, "seed"), _NUMBERS),
    "one_hot": Kind(numbered.one_hot, (*_NUMBERS, "seed"), _NUMBERS),
}
DEFAULT = "precomputed"
ENCODERS: dict[str, Callable[..., Any]] = {"sentence": open_sentence, "clip": open_clip}
"""What reads any text, and so can fill a file of vectors."""


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
        kind: ``precomputed``, the default of methods: looked up in a file. ``clip``, ``sentence``: read by a frozen
            encoder from this disk. ``random``, ``gaussian``, ``one_hot``: by the site's number alone.
        text: The site's, as in its site.yaml; the last three kinds keep it unread.
        folder: Of ``clip``, which needs it, and of ``sentence``: the encoder's.
        file: Of ``precomputed``: of vectors; default: the project's own.
        site: The site's number, from 0. This and the next two are facts of a federation: kinds that do not need
            them pass them over.
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
    made = chosen.make(
        one_line(text) if chosen.reads else text, **{n: v for n, v in given.items() if n in chosen.takes}
    )
    return require_width(made, width)
