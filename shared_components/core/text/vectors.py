"""Vectors of texts, and files of them: safetensors whose header has the texts and the encoder.

All vectors of a file are of one encoder: those of two do not compare. The project's own file is `vectors.safetensors`,
made by `surgfl text-vectors --known`.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared_components.networks.checkpoints import CheckpointError, load_metadata, load_weights, save_weights

SHIPPED = Path(__file__).with_name("vectors.safetensors")
HEADER, TENSOR = "text_vectors", "vectors"
NEAR = 3  # texts that an error suggests


class TextError(ValueError):
    """A text, an encoder or a file of vectors that cannot be used; the message names it and says what to do."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A text as numbers.

    Attributes:
        values: float32 (D,), finite.
        kind: Of the encoder, such as ``clip``; of a vector from a file, of the encoder that filled it.
        model: The encoder's name; empty where nothing was learnt.
        sha256: Of the encoder's weights; vectors compare only if it is equal. Empty where nothing was learnt.
        text: The text, with single spaces.
    """

    values: Tensor
    kind: str
    model: str = ""
    sha256: str = ""
    text: str = ""


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of a file, which is an encoder of the texts that it holds.

    Attributes:
        kind, model, sha256: Of the encoder that computed them, as in a `Vector`.
        texts: N texts, none twice.
        values: float32 (N, D), in the order of the texts.
        file: The file's name, for errors.
    """

    kind: str
    model: str
    sha256: str
    texts: tuple[str, ...]
    values: Tensor
    file: str

    def __getitem__(self, text: str) -> Vector:
        return Vector(self.values[self.texts.index(text)], self.kind, self.model, self.sha256, text)

    def encode(self, text: str) -> Vector:
        """Look a text's vector up.

        Raises:
            TextError: The file has no such text; the sentence lists near ones.
        """
        text = one_line(text)
        if text in self.texts:
            return self[text]
        near = difflib.get_close_matches(text, self.texts, n=NEAR, cutoff=0)
        raise TextError(
            f"{self.file} has no vector of the text {text!r}; near are {', '.join(map(repr, near))}. Use one of its "
            f"{len(self.texts)} texts, or compute its vector with: "
            f"surgfl text-vectors --file my-vectors.safetensors {shlex.quote(text)}"
        )


def one_line(text: object) -> str:
    """Return a text with single spaces, as YAML that runs over several lines means it.

    Raises:
        TextError: It is no text, or an empty one.
    """
    if not isinstance(text, str) or not text.strip():
        raise TextError(f"the site's text is {text!r}; describe the site in words, such as 'porcine nephrectomy'")
    return " ".join(text.split())


def require_finite(values: Tensor, what: str) -> None:
    """Raise TextError, which begins with ``what``, if a number of some vectors (..., D) is not finite."""
    if not torch.isfinite(values).all():
        raise TextError(f"{what} has numbers that are NaN or infinite; its weights or its file are damaged")


def read_vectors(file: Path = SHIPPED) -> Vectors:
    """Read a file of vectors.

    Raises:
        TextError: It is missing, damaged, another kind of file, or holds numbers that are not finite.
    """
    path = Path(file)
    if not path.is_file() or path.suffix != ".safetensors":
        raise TextError(f"{path} is no file of text vectors; make a .safetensors file with `surgfl text-vectors`")
    try:
        header, state = load_metadata(path), load_weights(path)
    except CheckpointError as error:
        raise TextError(f"{path}: is damaged; copy it again, or make it anew with `surgfl text-vectors`") from error
    facts, values = _parse_header(path, header), state.get(TENSOR)
    if values is None or values.shape[:1] != (len(facts["texts"]),) or values.dim() != 2 or not values.numel():
        raise TextError(f"{path}: does not hold one vector per text of its header; make it anew")
    require_finite(values, f"{path}: a vector")
    return Vectors(**{**facts, "texts": tuple(facts["texts"])}, values=values.float(), file=path.name)


def _parse_header(path: Path, header: dict[str, str]) -> dict[str, Any]:
    """Return kind, model, sha256 and texts of a header; raise TextError where it is another file's or damaged."""
    try:
        facts = json.loads(header[HEADER])
        texts, names = facts["texts"], [facts[key] for key in ("kind", "model", "sha256")]
    except (KeyError, TypeError, ValueError) as error:
        raise TextError(
            f"{path}: is no file of text vectors by its header; make one with `surgfl text-vectors`"
        ) from error
    valid = isinstance(texts, list) and all(isinstance(item, str) for item in [*texts, *names])
    if not valid or len(set(texts)) != len(texts) or set(facts) != {"kind", "model", "sha256", "texts"}:
        raise TextError(f"{path}: its header is damaged; make it anew with `surgfl text-vectors`")
    return facts


def add_vectors(path: Path, added: Sequence[Vector]) -> Vectors:
    """Add vectors of one encoder to a file, which is made where it does not exist; a text's old vector is replaced.

    Returns:
        All that the file holds then, old texts first.

    Raises:
        TextError: The file cannot be used, or is of another encoder; it stays as it was.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise TextError(f"{path}: text vectors are kept in a .safetensors file; give it such a name")
    old = read_vectors(path) if path.exists() else None
    found = {text: old[text] for text in old.texts} if old else {}
    found |= {vector.text: vector for vector in added}
    encoders = {(v.kind, v.model, v.sha256, len(v.values)) for v in found.values()}
    if len(encoders) != 1:
        listed = " and ".join(sorted(f"{model} ({sha[:8]})" for _, model, sha, _ in encoders))
        raise TextError(f"{path}: a file holds vectors of one encoder, not of {listed}; use another file")
    ((kind, model, sha256, _),) = encoders
    facts: dict[str, Any] = {"kind": kind, "model": model, "sha256": sha256, "texts": list(found)}
    values = torch.stack([vector.values for vector in found.values()])  # N times (D,) -> (N, D)
    save_weights(path, {TENSOR: values}, {HEADER: json.dumps(facts, ensure_ascii=False)})
    return Vectors(kind, model, sha256, tuple(found), values, path.name)
