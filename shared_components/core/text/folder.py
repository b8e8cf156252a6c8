"""Read a text encoder from a folder in the layout of Hugging Face: from this disk alone, and whole or not at all.

The library `transformers` loads a folder that lacks weights or a vocabulary with a warning or none: the weights are
then random, the vocabulary has two words. So the files are read here, and the library lends its networks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.shipped_weights import sha256_of
from shared_components.core.text.vector import TextError, Vector, one_line, require_finite
from shared_components.networks.checkpoints import load_weights, require_equal

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
OLDEST = 5  # major version of the library; older tokenizers do not tell their merges


@dataclass(frozen=True)
class Encoder:
    """An encoder, ready to read texts.

    Attributes:
        kind: Of encoder, such as ``clip``.
        model: Its name.
        sha256: Of its file of weights.
        folder: Where it was read from.
        longest: Tokens of a text at most, start and end included.
        tokens: Cuts a text into token ids.
        pooled: Makes of ids (1, T) a vector (D,).
    """

    kind: str
    model: str
    sha256: str
    folder: Path
    longest: int
    tokens: Callable[[str], list[int]]
    pooled: Callable[[Tensor], Tensor]

    def encode(self, text: str) -> Vector:
        """Return the vector of a text.

        Raises:
            TextError: The text is empty or too long, or the weights make no finite numbers of it.
        """
        text = one_line(text)
        ids = self.tokens(text)
        if len(ids) > self.longest:
            raise TextError(
                f"the text {text!r:.60} has {len(ids)} tokens, and {self.model} takes at most {self.longest}, "
                "start and end included; shorten it"
            )
        with torch.no_grad():
            values = self.pooled(torch.tensor([ids])).float()
        require_finite(values, f"{self.folder}: the vector of {text!r:.60}")
        return Vector(values, self.kind, self.model, self.sha256, text)


def library() -> ModuleType:
    """Import `transformers`, which takes seconds, and which nothing else here needs.

    Raises:
        TextError: It is not installed, or too old.
    """
    try:
        import transformers
    except ImportError:
        raise TextError(
            "text encoders clip and sentence need the package transformers, which is not installed: "
            f"pip install 'transformers>={OLDEST}', or use precomputed vectors"
        ) from None
    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise TextError(
            f"transformers {transformers.__version__} is too old for text encoders: "
            f"pip install 'transformers>={OLDEST}'"
        )
    return transformers


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        TextError: The file is missing or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TextError(f"{path} does not exist; give the whole folder of the encoder") from None
    except (OSError, ValueError) as error:
        raise TextError(f"{path}: cannot be read ({error}); copy the encoder's folder again") from error
    if not isinstance(found, dict):
        raise TextError(f"{path}: holds no JSON object; copy the encoder's folder again")
    return found


def read_config(folder: Path, kinds: Collection[str]) -> dict[str, Any]:
    """Read `config.json`, and refuse a folder of another kind of model.

    Args:
        folder: The encoder's.
        kinds: What ``model_type`` may be.

    Raises:
        TextError: There is no such folder, or it is of another model.
    """
    if not folder.is_dir():
        raise TextError(f"{folder} is no folder; give one with config.json, {' or '.join(WEIGHTS)}, and tokenizer.json")
    config = read_json(folder / "config.json")
    if config.get("model_type") not in kinds:
        raise TextError(
            f"{folder}: is of model type {config.get('model_type')!r} by its config.json; "
            f"give a folder of {' or '.join(kinds)}"
        )
    return config


def weights_in(folder: Path) -> Path:
    """Return the file of weights in a folder.

    Raises:
        TextError: There is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise TextError(f"{folder}: holds no weights; put {' or '.join(WEIGHTS)} there, in one piece")


def built(make: Callable[[], nn.Module], folder: Path, what: str, parts: Collection[str] = ()) -> nn.Module:
    """Build a network and give it the weights of a folder, every one of them; chance elsewhere is left as it was.

    Args:
        make: Builds the network.
        folder: With the weights.
        what: Names the network in errors.
        parts: Of a file that holds more: beginnings of the names that count. Empty: all count.

    Raises:
        TextError: There are no weights.
        CheckpointError: They are damaged or another network's.
    """
    path = weights_in(folder)
    with torch.random.fork_rng(devices=[]):
        network = make().float().eval()
    own, state = network.state_dict(), load_weights(path)
    counted = {name: value for name, value in state.items() if not parts or name.startswith(tuple(parts))}
    found = {n: value for n, value in counted.items() if n in own or not n.endswith("position_ids")}  # 0, 1, 2...
    require_equal(own, found, path, what)
    network.load_state_dict(found)
    return network.requires_grad_(False)


def tokenizer_in(folder: Path, kind: Any, layouts: Collection[tuple[str, ...]], words: int) -> Any:
    """Read a folder's tokenizer, with as many tokens as the encoder has weights for.

    Args:
        folder: The encoder's.
        kind: The library's class of it.
        layouts: Names of files, any of which will do: the library makes do with none, and knows two tokens then.
        words: How many tokens there are.

    Raises:
        TextError: Its files are missing or damaged, or tokens are missing.
    """
    if not any(all((folder / name).is_file() for name in names) for names in layouts):
        listed = ", or ".join(" and ".join(names) for names in layouts)
        raise TextError(f"{folder}: holds no vocabulary; put {listed} there")
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of any kind: the library's Rust part raises Exception itself
        raise TextError(f"{folder}: its vocabulary cannot be read ({error!s:.200}); copy the files again") from error
    if len(tokenizer) != words:
        raise TextError(
            f"{folder}: its vocabulary has {len(tokenizer)} tokens, and the encoder {words}; "
            "the files are cut short or of another encoder, copy them again"
        )
    return tokenizer


def cutter(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return what cuts a text into all its token ids: tokenizer files may say to shorten and to fill up."""

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"])

    return tokens


def digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's file of weights."""
    return sha256_of(weights_in(folder))
