"""Published layouts of a ViT's weights: strictly, by name."""

import argparse
import re

import pytest
import torch

from shared_components.networks.checkpoints import CheckpointError, save_weights
from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.vit_checkpoint import load_vit
from shared_components.networks.vit_frames import VitFrames


@pytest.fixture(scope="module")
def source():
    torch.manual_seed(5)
    return {name: torch.randn_like(value) for name, value in MaeVit().state_dict().items()}


def saved(tmp_path, content, name="model.pth"):
    path = tmp_path / name
    torch.save(content, path) if path.suffix != ".safetensors" else save_weights(path, content)
    return path


def of_encoder(state):
    return {name: value for name, value in state.items() if not name.startswith(("decoder", "mask"))}


LAYOUTS = {
    "imagenet": lambda state: {"model": state},
    "endovit": lambda state: {
        "model": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "epoch": 3, "scaler": {"scale": 1.0},
        "args": argparse.Namespace(mask_ratio=0.75, output_dir="out", betas=(0.9, 0.95), distributed=False),
    },
    "average": lambda state: {
        "model": {f"module.{name}": value for name, value in state.items()} | {"n_averaged": torch.tensor(4)}
    },
    "alone": lambda state: state,
}  # fmt: skip


@pytest.mark.parametrize("layout", [*LAYOUTS, "safetensors"])
def test_an_autoencoder_takes_every_layout_whole(tmp_path, source, layout):
    network, ours = MaeVit(), layout == "safetensors"
    path = saved(tmp_path, source if ours else LAYOUTS[layout](source), f"model.{layout if ours else 'pth'}")
    assert load_vit(network, path) == []
    assert all(torch.equal(value, source[name]) for name, value in network.state_dict().items())


def test_a_file_without_a_decoder_leaves_the_decoder_and_says_so(tmp_path, source):
    network = MaeVit()
    before = network.decoder_pred.weight.clone()
    fresh = load_vit(network, saved(tmp_path, {"model": of_encoder(source)}))
    assert set(fresh) == {name for name in source if name.startswith(("decoder", "mask"))}
    assert torch.equal(network.decoder_pred.weight, before) and torch.equal(network.cls_token, source["cls_token"])


def test_the_normalisation_of_a_pooled_fine_tuning_is_the_norm_and_its_head_is_left(tmp_path, source):
    state = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: v for name, v in source.items()}
    state = of_encoder(state) | {"head.weight": torch.ones(1000, 192), "head.bias": torch.ones(1000)}
    network = VitFrames(pool="mean")
    assert load_vit(network, saved(tmp_path, {"model": state})) == ["head.weight", "head.bias"]
    assert torch.equal(network.norm.weight, source["norm.weight"])


@pytest.mark.parametrize(("change", "words"), [
    (lambda s: s.pop("blocks.3.norm1.bias"), "it lacks blocks.3.norm1.bias"),
    (lambda s: s.update({"blocks.9.x": torch.ones(1)}), "it has blocks.9.x"),
    (lambda s: s.update({"cls_token": torch.ones(1, 1, 5)}), r"cls_token is \[1, 1, 5\] and .* \[1, 1, 192\]"),
    (lambda s: s["norm.bias"].fill_(torch.nan), "contains NaN or infinity in norm.bias"),
    (lambda s: s.update({"fc_norm.bias": torch.ones(192)}), "has both norm and fc_norm"),
])  # fmt: skip
def test_what_differs_is_named_in_one_sentence_and_the_network_keeps_its_weights(tmp_path, source, change, words):
    state = {name: value.clone() for name, value in source.items()}
    change(state)
    network = MaeVit()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=words) as caught:
        load_vit(network, saved(tmp_path, {"model": state}))
    assert "\n" not in str(caught.value) and re.search(r"model\.pth", str(caught.value))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
