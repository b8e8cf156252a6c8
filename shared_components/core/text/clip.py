"""The text tower of CLIP (Radford et al., ICML 2021), with which FedST makes its indicator (section 3.2.2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.core.text import folder as folders
from shared_components.core.text.folder import Encoder
from shared_components.core.text.vector import TextError

LAYOUTS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
PARTS = ("text_model.", "text_projection.")  # of a whole CLIP the half that reads text
END_OF_WORD = "</w>"
FIRST_RELEASE_END = 2  # what OpenAI's own folders say, and the library takes for the largest id


def open_clip(folder: Path) -> Encoder:
    """Read CLIP's text tower from a folder: a whole CLIP's, or one of the text model with its projection.

    A vector is the projection of the last layer at the text's end token, as CLIP compares it with pictures, not
    brought to length 1: 512 numbers of ViT-B, 768 of ViT-L/14.

    Args:
        folder: With config.json; model.safetensors or pytorch_model.bin; tokenizer.json, or vocab.json and
            merges.txt.

    Raises:
        ValueError: A file is missing, damaged, cut short or another model's, or `transformers` is not installed.
    """
    folder = Path(folder)
    told = folders.read_config(folder, ("clip", "clip_text_model"))
    library = folders.library()
    config = _config(library, folder, whole=told["model_type"] == "clip")
    tower = folders.built(lambda: library.CLIPTextModelWithProjection(config), folder, "CLIP's text tower", PARTS)
    tokenizer = folders.tokenizer_in(folder, library.CLIPTokenizer, LAYOUTS, config.vocab_size)
    _refuse_missing_merges(folder, tokenizer)
    _refuse_other_end(folder, tokenizer, config)

    def pooled(ids: Tensor) -> Tensor:
        return tower(input_ids=ids).text_embeds[0]

    tokens = folders.cutter(tokenizer)
    longest = config.max_position_embeddings
    return Encoder("clip", folder.resolve().name, folders.digest(folder), folder, longest, tokens, pooled)


def _config(library: Any, folder: Path, *, whole: bool) -> Any:
    if not whole:
        return library.CLIPTextConfig.from_pretrained(folder, local_files_only=True)
    config = library.CLIPConfig.from_pretrained(folder, local_files_only=True)
    config.text_config.projection_dim = config.projection_dim  # what a whole CLIP is built by
    return config.text_config


def _refuse_missing_merges(folder: Path, tokenizer: Any) -> None:
    """Refuse merges that were cut short: words would silently fall into letters.

    Raises:
        TextError: A token of several letters is made by no merge.
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    made = {first + second for first, second in model["merges"]} | set(tokenizer.all_special_tokens)
    longer = [token for token in model["vocab"] if len(token.removesuffix(END_OF_WORD)) > 1]
    if missing := [token for token in longer if token not in made]:
        raise TextError(
            f"{folder}: {len(missing)} tokens of its vocabulary, such as {missing[0]!r}, are made by no merge; "
            "merges.txt or tokenizer.json is cut short, copy it again"
        )


def _refuse_other_end(folder: Path, tokenizer: Any, config: Any) -> None:
    """Refuse a tower that looks for another end than texts have: it would give all texts one vector.

    Raises:
        TextError: The config's end token is not the vocabulary's.
    """
    last = max(tokenizer.get_vocab().values())
    end = last if config.eos_token_id == FIRST_RELEASE_END else config.eos_token_id
    if end != tokenizer.eos_token_id:
        raise TextError(
            f"{folder}: texts end with token {tokenizer.eos_token_id} by its vocabulary and {end} by its config.json; "
            "take both from one encoder"
        )
