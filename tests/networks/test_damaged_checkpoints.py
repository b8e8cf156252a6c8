"""Weights that were cut off, changed, of another thing or no numbers are refused by the file's name."""

import math

import pytest
import torch
from torch import nn

from shared_components.core.trained_model import input_size
from shared_components.networks.checkpoints import (
    CheckpointError,
    header_of,
    load_into,
    load_metadata,
    load_weights,
    save_pt,
    save_weights,
)

STATE = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
SAVED = {"model.safetensors": save_weights, "model.pt": save_pt}


@pytest.mark.parametrize("name", SAVED)
def test_no_cut_and_no_changed_byte_raises_anything_else(name, tmp_path):
    path = tmp_path / name
    SAVED[name](path, STATE, {"method": "fedavg"})
    good, refused = path.read_bytes(), 0
    cut = [good[:length] for length in range(0, len(good), 7)]
    changed = [good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :] for at in range(len(good)) for flip in (1, 255)]
    for data in [*cut, *changed, b"\x80\x02}q\x00.", b"PK\x03\x04", b"\x80\x04\x95" + b"\xff" * 40]:
        path.write_bytes(data)
        for read in (load_weights, load_metadata):
            try:
                read(path)
            except CheckpointError as error:
                assert str(path) in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SAVED)
def test_weights_that_are_no_numbers_are_refused_and_the_network_keeps_its_own(name, value, tmp_path):
    network, path = nn.Linear(3, 2), tmp_path / name
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    bad = STATE["weight"].clone()
    bad[1, 2] = value
    SAVED[name](path, {**STATE, "weight": bad}, {})
    with pytest.raises(CheckpointError, match="holds NaN or infinity in weight; take one from before"):
        load_into(network, path)
    assert all(torch.equal(before[key], tensor) for key, tensor in network.state_dict().items())


@pytest.mark.parametrize("said", ["abc", "", "-64", "6.4", "0", "1" * 500, "\u0663"])
def test_a_header_whose_size_is_none_is_refused(said):
    assert input_size({"height": "64"}, 512, 640) == (64, 640)
    for name in ("height", "width"):
        with pytest.raises(CheckpointError, match=f"its header's {name} is "):
            input_size({name: said}, 512, 640)


@pytest.mark.parametrize("key", ["outputs", "classes"])
@pytest.mark.parametrize(
    "names", [",".join(map(str, range(100_000))), "background,\x1b[2Jshaft", "background,a\nb", "x" * 101]
)
def test_a_header_with_odd_names_of_classes_is_refused_at_once(key, names, tmp_path):
    save_weights(tmp_path / "a.safetensors", STATE, {key: names})
    with pytest.raises(CheckpointError, match=rf"its header's '{key}' are no names: at most 256, each of one line"):
        header_of(tmp_path / "a.safetensors")
