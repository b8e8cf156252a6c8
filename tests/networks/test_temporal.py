"""The temporal layer: equations in loops over pixels and cells, errors."""

import math

import pytest
import torch
from torch import Tensor

from shared_components.networks.temporal import Sizes, TemporalLayer

GEOMETRIES = [  # window, receptive fields and kernels, oldest frame first
    (3, (9, 4, 3), (3, 2, 1)),
    (2, (6, 4, 3), (3, 1, 1)),
    (4, (10, 4), (5, 2)),
    (3, (5,), (1,)),
]


def toy(window: int, fields: tuple[int, ...], kernels: tuple[int, ...], channels: int = 4) -> TemporalLayer:
    """Return a layer with random weights."""
    layer = TemporalLayer(channels, heads=2, sizes=Sizes(window, fields, kernels))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer.double()


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return state[f"{name}.weight"] @ x + state[f"{name}.bias"]


def normed(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return (centred / (centred.square().mean() + 1e-6).sqrt()) * state[f"{name}.weight"] + state[f"{name}.bias"]


def seen_from(y: int, x: int, frame: Tensor, window: int, field: int, kernel: int):
    """Yield (rows from the pixel to a cell's first, columns likewise, mean of the cell) for a pixel of (C, H, W)."""
    _, H, W = frame.shape
    before = math.floor((window - field) / 2)
    for top in range(y // window * window + before, y // window * window + before + field, kernel):
        for left in range(x // window * window + before, x // window * window + before + field, kernel):
            pixels = [
                frame[:, row, column]
                for row in range(top, top + kernel)
                for column in range(left, left + kernel)
                if 0 <= row < H and 0 <= column < W
            ]
            if pixels:
                yield top - y, left - x, sum(pixels) / len(pixels)


def written_out(layer: TemporalLayer, frames: list[Tensor], geometry) -> Tensor:
    """Eqs. (3) and (4) for one sample, (C, H, W) each: one pixel, one head and one token at a time."""
    window, fields, kernels = geometry
    state, current = layer.state_dict(), frames[-1]
    C, H, W = current.shape
    result = torch.empty_like(current)
    for y in range(H):
        for x in range(W):
            query = linear(state, "q", normed(state, "norm_query", current[:, y, x]))
            logits, values = [], []
            for number, (frame, field, kernel) in enumerate(zip(frames, fields, kernels, strict=True)):
                nearest = math.floor((window - field) / 2) - (window - 1)  # the most negative distance there is
                for down, right, mean in seen_from(y, x, frame, window, field, kernel):
                    token = normed(state, "norm_context", linear(state, "refine", mean))
                    key, value = linear(state, "kv", token).split(C)
                    bias = state[f"views.{number}.bias"][:, down - nearest, right - nearest]
                    products = [sum(query[h : h + C // 2] * key[h : h + C // 2]) for h in (0, C // 2)]
                    logits.append(torch.stack(products) / math.sqrt(C // 2) + bias)
                    values.append(value)
            weights = [w / sum(map(torch.exp, logits)) for w in map(torch.exp, logits)]
            heads = [w.repeat_interleave(C // 2) * v for w, v in zip(weights, values, strict=True)]
            pixel = current[:, y, x] + linear(state, "proj", sum(heads))
            hidden = linear(state, "fc1", normed(state, "norm", pixel))
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
            result[:, y, x] = pixel + linear(state, "fc2", hidden)
    return result


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("size", [(6, 3), (5, 4), (2, 7), (1, 1)])
def test_the_layer_equals_its_equations_written_out(geometry, size):
    layer = toy(*geometry)
    frames = [torch.rand(2, 4, *size, dtype=torch.float64) for _ in geometry[1]]
    with torch.no_grad():
        result = layer(frames)
        for sample in range(2):
            expected = written_out(layer, [frame[sample] for frame in frames], geometry)
            torch.testing.assert_close(result[sample], expected)


@pytest.mark.parametrize(("sizes", "words"), [
    ({"receptive_fields": (9, 3), "kernels": (3, 2, 1)}, "one of each per frame, oldest first"),
    ({"receptive_fields": (), "kernels": ()}, "one of each per frame"),
    ({"receptive_fields": (9, 0), "kernels": (3, 1)}, "give positive whole numbers"),
    ({"receptive_fields": (9, 3), "kernels": (3, 0)}, "give positive whole numbers"),
    ({"receptive_fields": (50, 7), "kernels": (7, 1)}, "50 is not a multiple of its kernel 7; use 49"),
    ({"receptive_fields": (9, 4), "kernels": (3, 2)}, "field is 4, smaller than the window 7"),
    ({"window": 0}, "window is 0"), ({}, "takes maps of 4 frames, and got 3"),
])  # fmt: skip
def test_sizes_and_a_number_of_frames_that_do_not_fit_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        TemporalLayer(8, heads=2, sizes=Sizes(**sizes))([torch.rand(1, 8, 7, 7)] * 3)
