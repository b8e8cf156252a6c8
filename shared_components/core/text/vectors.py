"""Read and write text vectors: safetensors files with the texts and the encoder in the header.

All vectors of a file are from one encoder, because vectors of different encoders do not compare. `surgfl text-vectors
--known` writes the shipped file, `vectors.safetensors`.
"""

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
NEAR = 3  # number of similar texts in an error message


class TextError(ValueError):
    """A text, an encoder or a file of vectors cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, eq=False)
class Vector:
    """Vector of a text."""

    values: Tensor  # float32 (D,), finite
    kind: str  # kind of the encoder, such as ``clip``
    model: str = ""  # name of the encoder; empty for encoders without training
    sha256: str = ""  # of the encoder's weights; vectors compare only if it is equal
    text: str = ""  # with single spaces


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of a file; works as an encoder of the texts in the file."""

    kind: str  # kind, model and sha256 as in `Vector`
    model: str
    sha256: str
    texts: tuple[str, ...]  # N different texts
    values: Tensor  # float32 (N, D), in the order of the texts
    file: str  # name of the file for error messages

    def __getitem__(self, text: str) -> Vector:
        return Vector(self.values[self.texts.index(text)], self.kind, self.model, self.sha256, text)

    def encode(self, text: str) -> Vector:
        """Return the vector of a text in the file; if it lacks the text, raise TextError with similar texts."""
        text = one_line(text)
        if text in self.texts:
            return self[text]
        near = difflib.get_close_matches(text, self.texts, n=NEAR, cutoff=0)
        raise TextError(
            f"{self.file} has no vector of the text {text!r}; similar texts: {', '.join(map(repr, near))}. Use one of "
            f"its {len(self.texts)} texts, or compute the vector with: "
            f"surgfl text-vectors --file my-vectors.safetensors {shlex.quote(text)}"
        )


def one_line(text: object) -> str:
    """Return a text with single spaces and without line breaks; TextError if it is not a text, or empty."""
    if not isinstance(text, str) or not text.strip():
        raise TextError(f"the site's text is {text!r}; describe the site in words, such as 'porcine nephrectomy'")
    return " ".join(text.split())


def require_finite(values: Tensor, what: str) -> None:
    """Raise TextError, starting with ``what``, if a number in vectors (..., D) is not finite."""
    if not torch.isfinite(values).all():
        raise TextError(f"{what} has numbers that are NaN or infinite; copy weights or file again")


def read_vectors(file: Path = SHIPPED) -> Vectors:
    """Read a file of vectors; TextError if it is missing, damaged, another kind of file, or not finite."""
    path = Path(file)
    if not path.is_file() or path.suffix != ".safetensors":
        raise TextError(f"{path} is not a file of text vectors; make a .safetensors file with `surgfl text-vectors`")
    try:
        header, state = load_metadata(path), load_weights(path)
    except CheckpointError as error:
        raise TextError(f"{path}: is damaged; copy it again, or make it again with `surgfl text-vectors`") from error
    facts, values = _parse_header(path, header), state.get(TENSOR)
    if values is None or values.shape[:1] != (len(facts["texts"]),) or values.dim() != 2 or not values.numel():
        raise TextError(f"{path}: does not contain one vector per text of its header; make it again")
    require_finite(values, f"{path}: a vector")
    return Vectors(**{**facts, "texts": tuple(facts["texts"])}, values=values.float(), file=path.name)


def _parse_header(path: Path, header: dict[str, str]) -> dict[str, Any]:
    """Return kind, model, sha256 and texts of a header; raise TextError if it is damaged or from another file."""
    try:
        facts = json.loads(header[HEADER])
        texts, names = facts["texts"], [facts[key] for key in ("kind", "model", "sha256")]
    except (KeyError, TypeError, ValueError) as error:
        raise TextError(f"{path}: has no header of text vectors; make a file with `surgfl text-vectors`") from error
    valid = isinstance(texts, list) and all(isinstance(item, str) for item in [*texts, *names])
    if not valid or len(set(texts)) != len(texts) or set(facts) != {"kind", "model", "sha256", "texts"}:
        raise TextError(f"{path}: its header is damaged; make it again with `surgfl text-vectors`")
    return facts


def add_vectors(path: Path, added: Sequence[Vector]) -> Vectors:
    """Add or replace vectors of one encoder in a file and return all; TextError if the file cannot be used."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise TextError(f"{path}: text vectors need a .safetensors file; give another name")
    old = read_vectors(path) if path.exists() else None
    by_text = {text: old[text] for text in old.texts} if old else {}
    by_text |= {vector.text: vector for vector in added}
    encoders = {(v.kind, v.model, v.sha256, len(v.values)) for v in by_text.values()}
    if len(encoders) != 1:
        listed = " and ".join(sorted(f"{model} ({sha[:8]})" for _, model, sha, _ in encoders))
        raise TextError(f"{path}: a file contains vectors of one encoder, not of {listed}; use another file")
    ((kind, model, sha256, _),) = encoders
    facts: dict[str, Any] = {"kind": kind, "model": model, "sha256": sha256, "texts": list(by_text)}
    values = torch.stack([vector.values for vector in by_text.values()])  # N times (D,) -> (N, D)
    save_weights(path, {TENSOR: values}, {HEADER: json.dumps(facts, ensure_ascii=False)})
    return Vectors(kind, model, sha256, tuple(by_text), values, path.name)
