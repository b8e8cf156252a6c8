"""Vectors that were computed once: a file of safetensors whose header says of which texts, and by which encoder.

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

from shared_components.core.text.vector import TextError, Vector, one_line, require_finite
from shared_components.networks.checkpoints import CheckpointError, load_metadata, load_weights, save_weights

SHIPPED = Path(__file__).with_name("vectors.safetensors")
HEADER, TENSOR = "text_vectors", "vectors"
SHOWN = 3
"""Near texts that an error names."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of one encoder.

    Attributes:
        kind, model, sha256: The encoder, as in a :class:`Vector`.
        texts: N texts, none twice.
        values: float32 (N, D), in their order.
    """

    kind: str
    model: str
    sha256: str
    texts: tuple[str, ...]
    values: Tensor

    def __getitem__(self, text: str) -> Vector:
        return Vector(self.values[self.texts.index(text)], self.kind, self.model, self.sha256, text)


def read_vectors(path: Path = SHIPPED) -> Vectors:
    """Read a file of vectors.

    Raises:
        TextError: It is missing, damaged, another kind of file, or holds numbers that are not finite.
    """
    path = Path(path)
    if not path.is_file() or path.suffix != ".safetensors":
        raise TextError(f"{path} is no file of text vectors; make a .safetensors file with `surgfl text-vectors`")
    try:
        header, state = load_metadata(path), load_weights(path)
    except CheckpointError as error:
        raise TextError(f"{path}: is damaged; copy it again, or make it anew with `surgfl text-vectors`") from error
    facts, values = _facts(path, header), state.get(TENSOR)
    if values is None or values.shape[:1] != (len(facts["texts"]),) or values.dim() != 2 or not values.numel():
        raise TextError(f"{path}: does not hold one vector per text of its header; make it anew")
    require_finite(values, f"{path}: a vector")
    return Vectors(**{**facts, "texts": tuple(facts["texts"])}, values=values.float())


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
    values = torch.stack([vector.values for vector in found.values()])
    save_weights(path, {TENSOR: values}, {HEADER: json.dumps(facts, ensure_ascii=False)})
    return Vectors(kind, model, sha256, tuple(found), values)


def precomputed(text: str, *, file: Path | None = None) -> Vector:
    """Look a text's vector up.

    Args:
        text: The site's.
        file: Of vectors; default: the project's own.

    Raises:
        TextError: The file cannot be used, or has no such text; the sentence lists near ones.
    """
    path = Path(file) if file else SHIPPED
    vectors, text = read_vectors(path), one_line(text)
    if text in vectors.texts:
        return vectors[text]
    near = difflib.get_close_matches(text, vectors.texts, n=SHOWN, cutoff=0)
    raise TextError(
        f"{path.name} has no vector of the text {text!r}; near are {', '.join(map(repr, near))}. Use one of its "
        f"{len(vectors.texts)} texts, or compute its vector with: "
        f"surgfl text-vectors --file my-vectors.safetensors {shlex.quote(text)}"
    )


def _facts(path: Path, header: dict[str, str]) -> dict[str, Any]:
    """Return what a header says.

    Raises:
        TextError: It is another file's.
    """
    try:
        facts = json.loads(header[HEADER])
        texts, plain = facts["texts"], [facts[key] for key in ("kind", "model", "sha256")]
    except (KeyError, TypeError, ValueError) as error:
        raise TextError(
            f"{path}: is no file of text vectors by its header; make one with `surgfl text-vectors`"
        ) from error
    named = isinstance(texts, list) and all(isinstance(item, str) for item in [*texts, *plain])
    if not named or len(set(texts)) != len(texts) or set(facts) != {"kind", "model", "sha256", "texts"}:
        raise TextError(f"{path}: its header is damaged; make it anew with `surgfl text-vectors`")
    return facts
