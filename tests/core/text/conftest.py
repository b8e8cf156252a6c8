"""Tiny encoders in the layout of Hugging Face, whose tensors are named and drawn here, and not by that library."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

WIDTH, INNER, HEADS, LAYERS, POSITIONS, PROJECTED = 16, 32, 2, 2, 12, 6
MERGES = ("s i", "si t", "sit e</w>")
START, END = "<|startoftext|>", "<|endoftext|>"
WORDPIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "site", "a", "b", "robot", "##ic", ":")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Let no test of texts reach for the network: nothing is ever downloaded."""

    def refuse(*address: object) -> None:
        raise AssertionError(f"tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def clip_words() -> list[str]:
    """Return CLIP's vocabulary with three merges: each byte as a letter, as the end of a word, and what is merged."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in shown] + [chr(256 + number) for number in range(256 - len(shown))]
    return [*letters, *(f"{letter}</w>" for letter in letters), "si", "sit", "site</w>", START, END]


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw tensors far from what a network starts with; norms' weights are about 1."""
    rng = torch.Generator().manual_seed(3)
    state = {name: torch.randn(shape, generator=rng) * 0.4 for name, shape in shapes.items()}
    return {n: v + 1 if "norm" in n.lower() and n.endswith("weight") else v for n, v in state.items()}


def linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def clip_state() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "text_model.embeddings.token_embedding.weight": (len(clip_words()), WIDTH),
        "text_model.embeddings.position_embedding.weight": (POSITIONS, WIDTH),
        **norm("text_model.final_layer_norm"),
        "text_projection.weight": (PROJECTED, WIDTH),
    }
    for number in range(LAYERS):
        layer = f"text_model.encoder.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{layer}.self_attn.{name}", WIDTH, WIDTH)
        shapes |= norm(f"{layer}.layer_norm1") | norm(f"{layer}.layer_norm2")
        shapes |= linear(f"{layer}.mlp.fc1", INNER, WIDTH) | linear(f"{layer}.mlp.fc2", WIDTH, INNER)
    return drawn(shapes)


def sentence_state() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDPIECES), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **norm("embeddings.LayerNorm"),
        **linear("pooler.dense", WIDTH, WIDTH),
    }
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{layer}.attention.{name}", WIDTH, WIDTH)
        shapes |= norm(f"{layer}.attention.output.LayerNorm") | norm(f"{layer}.output.LayerNorm")
        shapes |= linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        shapes |= linear(f"{layer}.output.dense", WIDTH, INNER)
    return drawn(shapes)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def clip_folder(tmp_path) -> Path:
    """Return a folder of CLIP's text tower: 2 layers of width 16."""
    folder, words = tmp_path / "tiny-clip", clip_words()
    config = {
        "model_type": "clip_text_model", "vocab_size": len(words), "hidden_size": WIDTH, "intermediate_size": INNER,
        "projection_dim": PROJECTED, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS, "hidden_act": "quick_gelu", "bos_token_id": words.index(START),
        "eos_token_id": words.index(END),
    }  # fmt: skip
    write_json(folder / "config.json", config)
    write_json(folder / "vocab.json", {word: number for number, word in enumerate(words)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    save_file(clip_state(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def sentence_folder(tmp_path) -> Path:
    """Return a folder of a BERT of sentence-transformers: 2 layers of width 16."""
    folder = tmp_path / "tiny-sentences"
    config = {
        "model_type": "bert", "vocab_size": len(WORDPIECES), "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    write_json(folder / "config.json", config)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": POSITIONS - 4})
    (folder / "vocab.txt").write_text("\n".join(WORDPIECES) + "\n", encoding="utf-8")
    position_ids = torch.arange(POSITIONS)[None]  # older files keep them
    save_file({**sentence_state(), "embeddings.position_ids": position_ids}, folder / "model.safetensors")
    return folder


def changed(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **values})
