"""Rates by layer, mirrored on the decoder, and weight decay that leaves out vectors and tokens."""

import pytest
import torch
from torch import nn

from shared_components.core.parameter_groups import is_vector, parameter_groups
from shared_components.core.training_settings import Training
from shared_components.networks.parts import trained_parameters
from shared_components.networks.vit import vit_layers


class Autoencoder(nn.Module):
    """Three encoder and two decoder blocks under the names of MAE."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 4, 2)
        self.cls_token, self.mask_token = (nn.Parameter(torch.zeros(1, 1, 4)) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)
        self.decoder_embed = nn.Linear(4, 4)
        self.decoder_blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.decoder_norm = nn.LayerNorm(4)
        self.decoder_pred = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def layers(self):
        return vit_layers(3, 2)


DEPTHS = {
    "head": 0, "norm": 0, "decoder_embed": 0, "mask_token": 0, "blocks.2": 1, "blocks.1": 2, "blocks.0": 3,
    "patch_embed": 4, "cls_token": 4, "decoder_blocks.0": 1, "decoder_blocks.1": 2, "decoder_norm": 3,
    "decoder_pred": 3,
}  # fmt: skip


def of_each(network, settings, key, default):
    groups = parameter_groups(network, settings)
    found = {id(value): group.get(key, default) for group in groups for value in group["params"]}
    return {name: found[id(value)] for name, value in trained_parameters(network).items()}


def test_rates_fall_from_the_features_into_encoder_and_decoder_alike():
    for name, rate in of_each(Autoencoder(), Training(learning_rate=0.1, layer_decay=0.5), "lr", None).items():
        place = next(place for place in DEPTHS if name == place or name.startswith(f"{place}."))
        assert rate == pytest.approx(0.1 * 0.5 ** DEPTHS[place]), name


def test_the_mae_of_the_paper_has_the_released_depths_and_a_decoder_may_be_deeper():
    layers = vit_layers(12, 8)
    depth = {name: number for number, names in enumerate(layers) for name in names}
    assert len(layers) == 14 and depth["patch_embed"] == depth["cls_token"] == 13 and depth["blocks.11"] == 1
    assert [depth[f"decoder_blocks.{j}"] for j in range(8)] == list(range(1, 9))
    assert depth["decoder_norm"] == depth["decoder_pred"] == 9
    assert vit_layers(1, 3)[-1] == ("decoder_norm", "decoder_pred")


def test_vectors_biases_and_tokens_do_not_decay_but_a_weight_with_one_output_does():
    network = Autoencoder()
    decays = of_each(network, Training(weight_decay=0.05, decay_free=True), "weight_decay", 0.05)
    assert {name for name, decay in decays.items() if not decay} == {
        name for name, value in trained_parameters(network).items() if value.dim() == 1 or "token" in name
    }
    assert not is_vector(torch.zeros(1, 8)) and not is_vector(torch.zeros(1, 1, 3, 3)) and is_vector(torch.zeros(()))


def test_parts_keep_their_own_rates_and_without_settings_there_is_one_group():
    settings = Training(learning_rate=0.1, learning_rates={"head": 0.3, "blocks.0": 0.2}, layer_decay=0.5)
    rates = of_each(Autoencoder(), settings, "lr", None)
    assert rates["head.weight"] == 0.3 and rates["blocks.0.weight"] == pytest.approx(0.2 / 8)
    network = Autoencoder()
    (group,) = parameter_groups(network, Training(learning_rate=0.1))
    assert list(group) == ["params", "lr"] and group["lr"] == 0.1
    assert [id(p) for p in group["params"]] == [id(p) for p in network.parameters()]


def test_a_network_without_layers_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"^training: layer_decay is 0.65, but Linear declares no ordered layers.*: 1$"
    ):
        parameter_groups(nn.Linear(2, 2), Training(layer_decay=0.65))
