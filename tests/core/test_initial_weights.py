"""What a network begins from: pasted whole, over what the seed gave, or refused; what bundles ship."""

import argparse
import json
from typing import ClassVar

import pytest
import torch
from torch import nn

from shared_components.core.card import Card
from shared_components.core.initial_weights import (
    START_VARIABLE,
    describe_start,
    load_initial_weights,
    parse_start,
    source_of,
    unused_file_warning,
)
from shared_components.core.shipped_weights import FACTS, MODEL, sha256_of, shipped_facts, shipped_weights
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.splits import SEEN, seen_videos_entry
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.checkpoints import CheckpointError, load_metadata, load_weights, save_weights
from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.sam2_video import Sam2Clips
from shared_components.networks.tiny import Tiny
from shared_components.networks.vit_dpt import VitDpt
from shared_components.networks.vit_frames import VitFrames
from tests.federation.conftest import narrow, same  # noqa: F401

PARTS, MANIPULATOR = CLASS_MAPS["parts"], CLASS_MAPS["shaft_manipulator"]
DEPTH, PICTURES = Card("depth", ("mm",)), Card("reconstruction")
LABELS = Card("segmentation", ("background", "a", "b"))


def segmentation(classes=PARTS):
    return Card("segmentation", tuple(classes))


def built(channels=4, seed=1):
    torch.manual_seed(seed)
    return Tiny(out_channels=channels)


def state_of(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.fixture
def trained(tmp_path):
    """Return a function that writes a checkpoint of another seed and returns its path and its weights."""

    def write(card=None, network=None, name="model.safetensors"):
        network = network or built(len(card.outputs) if card else 4, seed=7)
        notes = {"task": card.kind, "outputs": ",".join(card.outputs)} if card else {}
        save_weights(tmp_path / name, network.state_dict(), notes)
        return tmp_path / name, state_of(network)

    return write


def from_file(network, path, card=LABELS):
    return load_initial_weights(network, "file", card=card, bundle="toy", file=path)


def test_random_draws_no_number_and_a_file_must_be_given_and_exist(tmp_path):
    network, drawn = built(), torch.get_rng_state()
    before = state_of(network)
    facts = load_initial_weights(network, "random", card=segmentation(), bundle="toy")
    assert facts == {"start": "random", "sha256": "", "from": "", "fresh": []} and describe_start(facts) == "random"
    assert same(before, network.state_dict()) and torch.equal(drawn, torch.get_rng_state())
    with pytest.raises(CheckpointError, match=f"start is 'file', but no file is given; set {START_VARIABLE}"):
        source_of("file", "toy")
    with pytest.raises(CheckpointError, match=r"nowhere\.pth does not exist"):
        source_of("file", "toy", tmp_path / "nowhere.pth")


@pytest.mark.parametrize("card", [segmentation(), DEPTH])
def test_a_checkpoint_of_the_same_outputs_is_taken_whole(trained, card):
    path, weights = trained(card)
    network = built(len(card.outputs))
    facts = from_file(network, path, card)
    assert same(network.state_dict(), weights)
    assert facts == {"start": "file", "sha256": sha256_of(path), "from": "model.safetensors", "fresh": []}


def test_classes_are_matched_by_name_and_divided_classes_get_the_mean_of_their_rows(trained):
    path, weights = trained(segmentation(PARTS))
    network = built(3)
    facts = from_file(network, path, segmentation(MANIPULATOR))
    head = weights["head.weight"]
    assert torch.equal(network.head.weight[:2], head[:2]) and facts["fresh"] == []
    torch.testing.assert_close(network.head.weight[2], (head[2] + head[3]) / 2)
    torch.testing.assert_close(network.head.bias[2], weights["head.bias"][2:].mean())
    rest, due = ({n: v for n, v in s.items() if n[:4] != "head"} for s in (network.state_dict(), weights))
    assert same(rest, due)
    path, weights = trained(segmentation(("background", "clasper", "wrist", "shaft")))
    network = built(4)
    from_file(network, path, segmentation(PARTS))
    assert torch.equal(network.head.weight, weights["head.weight"][[0, 3, 2, 1]])


@pytest.mark.parametrize(("classes", "card", "channels"), [
    (PARTS, DEPTH, 1), (PARTS, Card("reconstruction"), 3), (MANIPULATOR, Card("reconstruction"), 3),
])  # fmt: skip
def test_of_another_kind_of_task_all_but_the_head_is_taken(trained, classes, card, channels):
    """Three classes and three colours are not taken for each other."""
    path, weights = trained(segmentation(classes))
    network, fresh = built(channels), state_of(built(channels))
    assert from_file(network, path, card)["fresh"] == ["head.weight", "head.bias"]
    assert torch.equal(network.head.weight, fresh["head.weight"])
    assert torch.equal(network.decoder[0].weight, weights["decoder.0.weight"])


@pytest.mark.parametrize(("channels", "fresh"), [(4, []), (3, ["head.weight", "head.bias"])])
def test_without_names_the_number_of_outputs_decides(trained, channels, fresh):
    path, _ = trained(network=built(channels, seed=7))
    assert from_file(built(4), path, segmentation())["fresh"] == fresh


def test_what_only_training_needs_may_be_missing_on_either_side(tmp_path):
    torch.manual_seed(3)
    plain, restoring = PvtFpn(), PvtFpn(appearance_head=True)
    save_weights(tmp_path / "plain.safetensors", plain.state_dict())
    save_weights(tmp_path / "restoring.safetensors", restoring.state_dict())
    torch.manual_seed(4)
    network, other = PvtFpn(appearance_head=True), PvtFpn()
    fresh = network.head_appearance.weight.clone()
    facts = from_file(network, tmp_path / "plain.safetensors", segmentation())
    assert facts["fresh"] == ["head_appearance.weight", "head_appearance.bias"]
    assert torch.equal(network.head_appearance.weight, fresh)
    assert from_file(other, tmp_path / "restoring.safetensors", segmentation())["fresh"] == []
    assert torch.equal(other.head_global.weight, restoring.head_global.weight)


ADDITIONS = ("temporal.", "selection.", "indicator")
SMALL = {"indicator": 6, "window": 2, "receptive_fields": (4, 2), "kernels": (2, 1), "expansion": 1}


def clips(seed, **arguments):
    torch.manual_seed(seed)
    return PvtFpnClips(**{**SMALL, **arguments})


def rest_of(state):
    return {name: value for name, value in state.items() if not name.startswith(ADDITIONS)}


def begun(tmp_path, weights, network):
    """Begin from weights; return the facts, what the network has now, and what the seed had given it."""
    before = state_of(network)
    save_weights(tmp_path / "clips.safetensors", weights)
    return from_file(network, tmp_path / "clips.safetensors", segmentation()), state_of(network), before


LAYERS = ["temporal.16", "temporal.32", "selection.16", "selection.32", "indicator"]


@pytest.mark.parametrize(("has", "due", "fresh"), [
    ({}, {}, []), ({}, {"temporal": False, "text": "none"}, []), ({}, {"temporal": False}, []),
    ({"temporal": False, "text": "none"}, {}, LAYERS), ({"temporal": False}, {}, LAYERS[:2]),
    ({"text": "none"}, {}, LAYERS[2:]), ({}, {"text": "prompt"}, LAYERS[2:4]), ({"text": "prompt"}, {}, LAYERS[2:4]),
    ({}, {"indicator": 7}, LAYERS[2:]), ({"levels": (16, 32)}, {"levels": (32,)}, []),
    ({"levels": (32,)}, {}, ["temporal.16", "selection.16"]),
    ({}, {"window": 4, "receptive_fields": (4, 4)}, LAYERS[:2]),
    ({}, {"receptive_fields": (4, 4, 2), "kernels": (2, 2, 1)}, LAYERS[:2]),
])  # fmt: skip
def test_additions_may_be_missing_or_of_other_shapes_and_are_then_the_seeds(tmp_path, has, due, fresh):
    weights = state_of(clips(7, **has))
    facts, found, before = begun(tmp_path, weights, clips(1, **due))
    assert sorted(facts["fresh"]) == sorted(fresh) and same(rest_of(found), rest_of(weights))
    for name, value in found.items():
        assert torch.equal(value, (before if ".".join(name.split(".")[:2]) in fresh else weights)[name])


def test_an_official_encoder_leaves_the_rest_to_the_seed_and_must_be_complete(tmp_path):
    torch.manual_seed(3)
    encoder = PvtFpn().encoder.state_dict()
    torch.save({**encoder, "head.weight": torch.ones(1000, 256), "head.bias": torch.ones(1000)}, tmp_path / "b0.pth")
    torch.manual_seed(4)
    network = PvtFpn()
    fresh = state_of(network)
    facts = from_file(network, tmp_path / "b0.pth", segmentation())
    assert facts["fresh"] == ["decoder_global", "head_global", "decoder_personal", "head_personal"]
    assert same(network.encoder.state_dict(), encoder)
    outside = {n: v for n, v in network.state_dict().items() if not n.startswith("encoder.")}
    assert all(torch.equal(value, fresh[name]) for name, value in outside.items())
    encoder = dict(list(PvtFpn().encoder.state_dict().items())[:10])
    torch.save(encoder, tmp_path / "b0.pth")
    with pytest.raises(CheckpointError, match="another network than PVTv2-b0 encoder: it lacks"):
        from_file(PvtFpn(), tmp_path / "b0.pth", segmentation())


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda state: state.pop("decoder.0.weight"), "another network than Tiny: it lacks decoder.0.weight"),
    (lambda state: state.pop("head.bias"), "another network than Tiny: it lacks head.bias"),
    (lambda state: state.update(extra=torch.ones(1)), "another network than Tiny: it has extra"),
    (lambda state: state.update({"past.bias": torch.ones(3)}), r"past.bias is \[3\] and should be \[16\]"),
    (lambda state: state.update({"head.weight": torch.ones(4, 8, 1, 1)}), "other shapes: head.weight is"),
])  # fmt: skip
def test_what_fits_in_part_is_refused_and_changes_nothing(trained, tmp_path, change, sentence):
    _, weights = trained(segmentation())
    change(weights)
    save_weights(tmp_path / "wrong.safetensors", weights)
    network = built()
    before = state_of(network)
    with pytest.raises(CheckpointError, match=sentence):
        from_file(network, tmp_path / "wrong.safetensors", segmentation())
    assert same(before, network.state_dict())


@pytest.fixture
def toy(trained, tmp_path, monkeypatch):
    """Let bundle `toy` ship the weights that `trained` writes; return its folder."""
    path, _ = trained(segmentation(), name=f"bundles/toy/{MODEL}")
    (tmp_path / "bundles" / "toy" / FACTS).write_text(json.dumps({"sha256": sha256_of(path)}))
    monkeypatch.setattr(bundle_config, "bundles_folder", lambda: tmp_path / "bundles")
    return tmp_path / "bundles" / "toy"


def test_rendered_weights_are_those_of_the_bundle_and_match_their_card(toy, tmp_path):
    network = built()
    facts = load_initial_weights(
        network, "rendered", card=segmentation(), bundle="toy", file=tmp_path / "not-looked-at"
    )
    assert same(network.state_dict(), load_weights(toy / MODEL))
    assert describe_start(facts) == f"rendered ({sha256_of(toy / MODEL)[:8]})"
    card = sha256_of(toy / MODEL)
    assert shipped_weights("toy") == toy / MODEL and shipped_facts("toy") == {"sha256": card}
    save_weights(toy / MODEL, {"a": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="weights with the hash") as error:
        shipped_weights("toy")
    assert card[:8] in str(error.value) and sha256_of(toy / MODEL)[:8] in str(error.value)


@pytest.fixture
def user(toy):
    """Describe bundle `user`, which begins from the weights of `toy`; return its train.yaml."""
    path = toy.parent / "user" / "configs" / "train.yaml"
    for folder in (toy, toy.parent / "user"):
        (folder / "configs").mkdir(parents=True)
        (folder / "configs" / "train.yaml").write_text("training: {}\n")
    path.write_text("weights_of: toy\n")
    return path


def test_rendered_of_a_bundle_that_names_another_is_what_that_one_ships(toy, user):
    network = built()
    facts = load_initial_weights(network, "rendered", card=segmentation(), bundle="user")
    assert same(network.state_dict(), load_weights(toy / MODEL)) and facts["sha256"] == sha256_of(toy / MODEL)
    assert source_of("rendered", "user") == source_of("rendered", "toy") == (toy / MODEL, facts["sha256"])
    (toy / FACTS).unlink()
    with pytest.raises(CheckpointError, match="bundle 'user' begins from the weights of 'toy': bundle 'toy' ships no"):
        load_initial_weights(network, "rendered", card=segmentation(), bundle="user")
    user.write_text("weights_of: toi\n")
    with pytest.raises(ValueError, match="weights_of is 'toi'; use one of toy, user"):
        source_of("rendered", "user")


def test_what_the_start_has_seen_is_told(trained, tmp_path):
    path, weights = trained(segmentation())
    assert "seen" not in from_file(built(), path, segmentation())
    note = seen_videos_entry({"cholec80": ["video01"]})
    save_weights(path, weights, load_metadata(path) | note)
    assert from_file(built(), path, segmentation())["seen"] == note[SEEN]


def test_a_command_line_names_a_kind_or_a_path_and_an_unused_file_is_warned_of(monkeypatch, tmp_path):
    monkeypatch.delenv(START_VARIABLE, raising=False)
    assert parse_start("random") == ("random", None) and parse_start("rendered") == ("rendered", None)
    assert parse_start("file") == ("file", None)
    kind, path = parse_start(str(tmp_path / "b0.pth"))
    assert (kind, path) == ("file", tmp_path / "b0.pth")
    monkeypatch.setenv(START_VARIABLE, str(tmp_path / "a.pth"))
    assert parse_start("file") == ("file", tmp_path / "a.pth")
    assert "is not used because training: start is 'random'" in unused_file_warning("random", tmp_path / "b0.pth")
    assert unused_file_warning("file", tmp_path / "b0.pth") == unused_file_warning("rendered", None) == ""


@pytest.mark.parametrize("gone", [MODEL, FACTS])
def test_a_bundle_without_weights_says_what_to_do(toy, gone):
    (toy / gone).unlink()
    with pytest.raises(CheckpointError, match="bundle 'toy' ships no weights") as error:
        load_initial_weights(built(), "rendered", card=segmentation(), bundle="toy")
    assert "use start: random, or make some with `surgfl pretrain`" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sha256": 3}'])
def test_a_damaged_card_is_named(toy, text):
    (toy / FACTS).write_text(text)
    with pytest.raises(CheckpointError, match=r"toy/models/model\.json: .*run `surgfl ship` again"):
        shipped_weights("toy")


@pytest.mark.parametrize("bundle", bundle_names())
def test_what_the_bundles_here_ship_is_what_their_cards_say(bundle):
    if shipped_facts(bundle) is not None:
        assert shipped_weights(bundle).stat().st_size < 14e6


def test_published_weights_of_sam2_leave_additions_as_the_seed_has_them_and_must_have_the_size(tmp_path):
    network, other = Sam2Clips(size=64), Sam2Clips(size=64, text="none")
    published = {name: value for name, value in state_of(other).items() if not name.startswith("depth_head")}
    path, before = tmp_path / "sam2.safetensors", state_of(network)
    save_weights(path, published)
    facts = from_file(network, path, segmentation())
    assert same(network.state_dict(), before | published)
    assert facts["fresh"] == [name for name in before if name not in published]
    selecting, prompted, plain = (Sam2Clips(size=64, text=text) for text in ("selection", "prompt", "none"))
    save_weights(tmp_path / "selecting.safetensors", state_of(selecting))
    facts = from_file(prompted, tmp_path / "selecting.safetensors", segmentation())
    assert facts["fresh"] == ["selection.embedding"]
    from_file(plain, tmp_path / "selecting.safetensors", segmentation())
    assert same(state_of(plain), {name: state_of(prompted)[name] for name in state_of(plain)})
    assert not state_of(prompted)["selection.embedding.weight"].any()
    save_weights(tmp_path / "large.safetensors", Sam2Clips(size=64, architecture="cpu_large").state_dict())
    with pytest.raises(CheckpointError, match=r"is SAM2 cpu_large, but the network is cpu; choose architecture: cpu_"):
        from_file(Sam2Clips(size=64), tmp_path / "large.safetensors", segmentation())


@pytest.mark.parametrize(("kind", "fresh"), [
    (VitFrames, {"head"}), (VitDpt, {"readout", "reassemble", "fusion", "neck", "head"}), (MaeVit, set()),
])  # fmt: skip
def test_a_vit_begins_with_an_autoencoders_encoder_from_our_file_or_endovits(tmp_path, kind, fresh):
    learnt = MaeVit(size=32).state_dict()
    save_weights(tmp_path / "ours.safetensors", learnt, {"bundle": "fl_endovit", "task": "reconstruction"})
    torch.save({"model": learnt, "args": argparse.Namespace(lr=0.1)}, tmp_path / "endovit.pth")
    for name in ("ours.safetensors", "endovit.pth"):
        network = kind(size=32)
        facts = load_initial_weights(network, "file", card=PICTURES, bundle="", file=tmp_path / name)
        assert {tensor.partition(".")[0] for tensor in facts["fresh"]} == fresh
        assert same(
            {n: v for n, v in network.state_dict().items() if n in learnt},
            {n: learnt[n] for n in network.state_dict() if n in learnt},
        )


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
    assert from_file(network, path, card)["fresh"] == ["head.weight of d", "head.bias of d"]
    assert network.head.bias.tolist() == [given.head.bias[2].item(), own[1].item(), given.head.bias[0].item()]
    assert from_file(Encoder(), path, Card("triplets", ("c", "d", "a")))["fresh"] == ["head.weight", "head.bias"]


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
