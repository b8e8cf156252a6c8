"""What a network takes of a checkpoint of another bundle: what both have, named beside what stays fresh."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from shared_components.core.card import Card
from shared_components.core.initial_weights import begin
from shared_components.core.shipped_weights import sha256_of
from shared_components.networks.checkpoints import CheckpointError, save_weights
from tests.federation.conftest import same

LABELS = Card("segmentation", ("background", "a", "b"))


def from_file(network, path, card=LABELS):
    return begin(network, "file", card=card, bundle="toy", file=path)


def state_of(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


class Encoder(nn.Module):
    """Two blocks and a head, as a network for labels has."""

    parts: ClassVar = {"head": ("head",)}

    def __init__(self, outputs=3, width=4):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)


class Autoencoder(Encoder):
    """The same encoder under the same names, and a decoder."""

    parts: ClassVar = {}

    def __init__(self, width=4):
        super().__init__(width=width)
        self.head, self.decoder = None, nn.Linear(width, 5)


class Strict(Encoder):
    fresh_elsewhere = ("norm",)


def pretrained(tmp_path, network, **notes):
    torch.manual_seed(7)
    save_weights(tmp_path / "mae.safetensors", network.state_dict(), {"bundle": "mae", **notes})
    return tmp_path / "mae.safetensors"


def test_an_autoencoders_encoder_goes_into_a_network_for_labels_and_its_head_is_the_seeds(tmp_path):
    given, network = Autoencoder(), Encoder()
    before, path = state_of(network), pretrained(tmp_path, given)
    facts = from_file(network, path, Card("phases", ("a", "b", "c")))
    after = network.state_dict()
    assert facts["fresh"] == ["head"] and facts["sha256"] == sha256_of(path)
    for name, value in after.items():
        assert torch.equal(value, before[name] if name.startswith("head") else given.state_dict()[name]), name


def test_a_head_of_the_same_task_and_outputs_is_taken_by_name_and_of_another_task_it_is_not(tmp_path):
    given, card = Encoder(), Card("phases", ("c", "d", "a"))
    given.extra = nn.Linear(1, 1)
    path = pretrained(tmp_path, given, task="phases", outputs="a,b,c")
    network = Encoder()
    own = network.head.bias.detach().clone()
    facts = from_file(network, path, card)
    assert facts["fresh"] == ["head.weight of d", "head.bias of d"]
    assert network.head.bias.tolist() == [given.head.bias[2].item(), own[1].item(), given.head.bias[0].item()]
    other = Encoder()
    assert from_file(other, path, Card("triplets", ("c", "d", "a")))["fresh"] == ["head.weight", "head.bias"]


def test_a_file_that_shares_only_a_head_or_is_not_finite_is_refused(tmp_path):
    network = Encoder()
    before = state_of(network)
    with pytest.raises(CheckpointError, match=r"mae.safetensors is of bundle 'mae' and shares no tensor with Encoder"):
        from_file(network, pretrained(tmp_path, Autoencoder(width=8)))
    assert same(before, network.state_dict())
    given = Autoencoder()
    nn.init.constant_(given.norm.bias, float("nan"))
    with pytest.raises(CheckpointError, match=r"NaN or infinity in norm.bias"):
        from_file(Encoder(), pretrained(tmp_path, given))


def test_tensors_of_other_shapes_are_the_seeds_unless_the_class_needs_them(tmp_path):
    given = Autoencoder()
    given.blocks[1], given.norm = nn.Linear(4, 2), nn.LayerNorm(2)
    path = pretrained(tmp_path, given)
    assert from_file(Encoder(), path)["fresh"] == ["blocks.1.weight", "blocks.1.bias", "norm", "head"]
    with pytest.raises(CheckpointError, match=r"lacks blocks.1.weight and 1 more with the shape in Strict; give"):
        from_file(Strict(), path)
    given.blocks[1] = nn.Linear(4, 4)
    assert from_file(Strict(), pretrained(tmp_path, given))["fresh"] == ["norm", "head"]


def test_of_the_same_bundle_or_of_none_that_is_named_a_file_must_fit_whole(tmp_path):
    path = pretrained(tmp_path, Autoencoder())
    for notes in ({"bundle": "toy"}, {}):
        save_weights(path, Autoencoder().state_dict(), notes)
        with pytest.raises(CheckpointError, match="another network than Encoder"):
            from_file(Encoder(), path)
