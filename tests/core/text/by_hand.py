"""What two encoders compute, in numpy, word by word and head by head; after the papers and not after a library."""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

Array = np.ndarray


def clip_vector(state: dict[str, Tensor], ids: Sequence[int], *, heads: int, end: int) -> Array:
    """CLIP's text tower: norms first, no word looks ahead, the end token's row is projected."""
    own = as_arrays(state)
    words = own["text_model.embeddings.token_embedding.weight"][list(ids)]
    rows = words + own["text_model.embeddings.position_embedding.weight"][: len(ids)]
    for number in range(layers_of(own, "text_model.encoder.layers.")):
        layer = Part(own, f"text_model.encoder.layers.{number}.")
        read = layer.norm("layer_norm1", rows, 1e-5)
        queries, keys, values = (layer.linear(f"self_attn.{name}_proj", read) for name in "qkv")
        rows = rows + layer.linear("self_attn.out_proj", attention(queries, keys, values, heads, ahead=False))
        inner = layer.linear("mlp.fc1", layer.norm("layer_norm2", rows, 1e-5))
        rows = rows + layer.linear("mlp.fc2", inner / (1 + np.exp(-1.702 * inner)))
    last = Part(own, "text_model.").norm("final_layer_norm", rows, 1e-5)[list(ids).index(end)]
    return own["text_projection.weight"] @ last


def sentence_vector(state: dict[str, Tensor], ids: Sequence[int], *, heads: int) -> Array:
    """A BERT: norms last, every word sees every other; the mean row, of length 1."""
    own, top = as_arrays(state), Part(as_arrays(state), "embeddings.")
    rows = own["embeddings.word_embeddings.weight"][list(ids)]
    rows = rows + own["embeddings.position_embeddings.weight"][: len(ids)]
    rows = top.norm("LayerNorm", rows + own["embeddings.token_type_embeddings.weight"][0], 1e-12)
    for number in range(layers_of(own, "encoder.layer.")):
        layer = Part(own, f"encoder.layer.{number}.")
        names = ("query", "key", "value")
        queries, keys, values = (layer.linear(f"attention.self.{name}", rows) for name in names)
        seen = layer.linear("attention.output.dense", attention(queries, keys, values, heads, ahead=True))
        rows = layer.norm("attention.output.LayerNorm", rows + seen, 1e-12)
        inner = layer.linear("intermediate.dense", rows)
        inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        rows = layer.norm("output.LayerNorm", rows + layer.linear("output.dense", inner), 1e-12)
    mean = rows.mean(axis=0)
    return mean / math.sqrt(sum(number * number for number in mean))


def as_arrays(state: dict[str, Tensor]) -> dict[str, Array]:
    return {name: value.double().numpy() for name, value in state.items()}


def layers_of(own: dict[str, Array], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in own if name.startswith(prefix)})


def attention(queries: Array, keys: Array, values: Array, heads: int, *, ahead: bool) -> Array:
    """Weigh the values (T, D) that each word may see, head by head."""
    count, width = queries.shape
    size = width // heads
    seen = np.zeros_like(values)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for word in range(count):
            others = range(count if ahead else word + 1)
            weights = [math.exp(queries[word, part] @ keys[n, part] / math.sqrt(size)) for n in others]
            for number, weight in zip(others, weights, strict=True):
                seen[word, part] += weight / sum(weights) * values[number, part]
    return seen


class Part:
    """Tensors below a prefix."""

    def __init__(self, own: dict[str, Array], prefix: str) -> None:
        self.own, self.prefix = own, prefix

    def linear(self, name: str, rows: Array) -> Array:
        return rows @ self.own[f"{self.prefix}{name}.weight"].T + self.own[f"{self.prefix}{name}.bias"]

    def norm(self, name: str, rows: Array, epsilon: float) -> Array:
        centred = rows - rows.mean(axis=1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
        return unit * self.own[f"{self.prefix}{name}.weight"] + self.own[f"{self.prefix}{name}.bias"]
