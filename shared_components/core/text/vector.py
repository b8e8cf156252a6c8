"""What an encoder makes of a text, and how one that cannot be used is refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class TextError(ValueError):
    """A text, an encoder or a file of vectors that cannot be used; the message names it and says what to do."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A site's text as numbers.

    Attributes:
        values: float32 (D,), finite.
        kind: What made them, such as ``clip``; of vectors from a file the encoder that filled it.
        model: The encoder's name, empty where nothing was learnt.
        sha256: Of the encoder's weights; vectors compare only if it is equal. Empty likewise.
        text: What they stand for, with single spaces.
    """

    values: Tensor
    kind: str
    model: str = ""
    sha256: str = ""
    text: str = ""


def one_line(text: object) -> str:
    """Return a text with single spaces, as YAML that runs over several lines means it.

    Raises:
        TextError: It is no text, or an empty one.
    """
    if not isinstance(text, str) or not text.strip():
        raise TextError(f"the site's text is {text!r}; describe the site in words, such as 'porcine nephrectomy'")
    return " ".join(text.split())


def require_finite(values: Tensor, whose: str) -> Tensor:
    """Return vectors (..., D) if all their numbers are finite.

    Args:
        values: The vectors.
        whose: Begins the sentence.

    Raises:
        TextError: One is not.
    """
    if not torch.isfinite(values).all():
        raise TextError(f"{whose} has numbers that are NaN or infinite; its weights or its file are damaged")
    return values


def require_width(vector: Vector, width: int | None) -> Vector:
    """Return a vector if it has as many numbers as asked for; None asks for any.

    Raises:
        TextError: It has more or fewer.
    """
    if width is not None and len(vector.values) != width:
        raise TextError(
            f"the vector of {vector.text!r} by {vector.model or vector.kind} has {len(vector.values)} numbers, and "
            f"{width} are asked for; set that width to {len(vector.values)}, or use another encoder"
        )
    return vector
