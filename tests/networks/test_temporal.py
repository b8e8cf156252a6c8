"""The temporal layer: equations in loops over pixels and cells, values by hand, errors."""

import math

import pytest
import torch
from torch import Tensor

from shared_components.networks.temporal import Sizes, TemporalLayer, View, join, split

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
    scaled = centred / (centred.square().mean() + 1e-6).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


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


def test_what_is_outside_of_the_map_gets_no_attention():
    """On a map of one pixel every frame has one token, and with equal logits each counts a third."""
    layer = TemporalLayer(2, heads=1, sizes=Sizes(3, (9, 4, 3), (3, 2, 1)))
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        for norm in (layer.norm_context, layer.norm_query):
            norm.weight.fill_(1)
        layer.refine.weight.copy_(torch.eye(2))
        layer.kv.weight[2:].copy_(torch.eye(2))  # the values
        layer.proj.weight.copy_(torch.eye(2))
    frames = [torch.tensor(pixel).reshape(1, 2, 1, 1) for pixel in ([3.0, 1.0], [1.0, 3.0], [5.0, 2.0])]
    # normalised: (1, -1), (-1, 1), (1, -1), whose mean is (1/3, -1/3)
    torch.testing.assert_close(layer(frames).flatten(), torch.tensor([5 + 1 / 3, 2 - 1 / 3]))


def test_a_cell_at_the_border_is_the_mean_of_the_pixels_that_the_map_has():
    view = View(window=2, field=4, kernel=2, heads=1)  # from -1 to 3 around the only window
    features = torch.tensor([[1.0, 2.0], [3.0, 10.0]])[None, :, :, None]
    cells, which, bias = view(features)
    assert cells[0, which[0], 0].tolist() == [1.0, 2.0, 3.0, 10.0]
    assert bool(torch.isfinite(bias).all())
    features = torch.tensor([[1.0, 2.0, 6.0]])[None, :, :, None]  # two windows; the second one's begins at 1
    cells, which, bias = view(features)
    seen = torch.isfinite(bias[:, 0, 0])
    assert [cells[0, which[w][seen[w]], 0].tolist() for w in (0, 1)] == [[1.0, 4.0], [4.0]]


def test_farther_frames_are_seen_from_farther_and_coarser():
    """The window of rows 7 to 13 sees the oldest frame from -14 to 35, then 0 to 20, 7 to 13 and its own 7 to 14."""
    layer = TemporalLayer(4, heads=2, sizes=Sizes())
    torch.nn.init.normal_(layer.proj.weight)
    frames = [torch.rand(1, 4, 40, 40, requires_grad=True) for _ in range(4)]
    layer(frames)[0, :, 9, 11].sum().backward()
    reached = [frame.grad[0].abs().sum(0) > 0 for frame in frames]
    for result, (start, stop) in zip(reached, [(0, 35), (0, 20), (7, 13), (7, 14)], strict=True):
        expected = torch.zeros(40, 40, dtype=torch.bool)
        expected[start:stop, start:stop] = True
        assert torch.equal(result, expected)
    distinct = [len(frame.grad[0, 0].unique()) - 1 for frame in frames]  # besides zero
    assert distinct == [5 * 5, 5 * 5, 3 * 3, 7 * 7]


def test_fresh_layer_is_the_identity_on_the_current_frame():
    frames = [torch.rand(2, 160, 5, 9) for _ in range(4)]
    assert torch.equal(TemporalLayer(160, heads=5, sizes=Sizes())(frames), frames[-1])


@pytest.mark.parametrize(
    ("channels", "heads", "by_hand"),
    [
        # refine and q: C^2 + C each, kv 2C^2 + 2C, proj C^2 + C, three norms 2C each, feed-forward 4C^2 + 3C, and a
        # bias per head and distance: 49^2 + 23^2 + 11^2 + 13^2
        (160, 5, 9 * 160**2 + 14 * 160 + 5 * 3220),
        (256, 8, 9 * 256**2 + 14 * 256 + 8 * 3220),
    ],
)
def test_the_number_of_parameters_is_what_is_counted_by_hand(channels, heads, by_hand):
    count = sum(parameter.numel() for parameter in TemporalLayer(channels, heads=heads, sizes=Sizes()).parameters())
    assert count == by_hand == {160: 248_740, 256: 619_168}[channels]


def test_every_parameter_trains_from_the_second_step_on():
    """In the first step the zero weights of the last layers stop the gradient."""
    layer = TemporalLayer(8, heads=2, sizes=Sizes())
    frames = [torch.rand(2, 8, 5, 9) for _ in range(4)]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(frames).square().mean().backward()
        reached = {name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()}
        optimizer.step()
    assert reached == {name for name, _ in layer.named_parameters()}


def test_half_precision_gives_nearly_the_same():
    layer = toy(7, (49, 20, 6, 7), (7, 4, 2, 1), channels=16).float()
    frames = [torch.rand(2, 16, 9, 10) for _ in range(4)]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(frames)
    with torch.no_grad():
        exact = layer(frames)
    assert float((mixed - exact).norm() / exact.norm()) < 0.02


def test_squares_are_cut_row_by_row_and_joined_again():
    numbers = torch.arange(2 * 4 * 6).reshape(2, 4, 6, 1)
    squares = split(numbers, 2)
    assert squares[:2, :, 0].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9]] and squares[6, 0] == 24
    assert torch.equal(join(squares, 2, 4, 6), numbers)


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
