"""Weights are converted to half precision, cards contain no paths, and files change together."""

import json
import os

import pytest
import torch

from shared_components.networks.checkpoints import CheckpointError, load_weights, save_weights
from shared_components.networks.tiny import Tiny
from shared_components.weights.shipping import weights as shipping
from tests.weights.shipping.conftest import FACTS, NOTES


@pytest.mark.parametrize(("spoil", "sentence"), [
    (lambda run: (run / "model.safetensors").unlink(), r"model\.safetensors does not exist"),
    (lambda run: (run / "pretraining.json").unlink(), r"pretraining\.json: cannot be read"),
    (lambda run: (run / "pretraining.json").write_text("{"), r"pretraining\.json: cannot be read"),
    (lambda run: (run / "pretraining.json").write_text("{}"), r"pretraining\.json contains no 'command'"),
    (lambda run: save_weights(run / "model.safetensors", {"a": torch.ones(1)}), "contains no 'bundle'"),
])  # fmt: skip
def test_another_folder_is_refused_in_one_sentence(pretrained, spoil, sentence):
    spoil(pretrained)
    with pytest.raises(CheckpointError, match=sentence) as error:
        shipping.read_pretrained(pretrained)
    assert "\n" not in str(error.value)


def test_a_folder_is_read_and_its_numbers_are_halved(pretrained, weights):
    result = shipping.halved({"a": torch.tensor([0.1, -65504.0]), "count": torch.tensor(70000)})
    assert result["a"].dtype == torch.float16 and result["a"].tolist() == [torch.tensor(0.1).half().item(), -65504]
    assert result["count"].dtype == torch.int64 and result["count"].item() == 70000
    result = shipping.read_pretrained(pretrained)
    assert result.facts == FACTS and result.notes == NOTES and result.size == (64, 96)
    assert result.task().card.outputs == ("background", "shaft", "wrist", "clasper")
    assert result.task(("background", "instrument")).channels == 2
    assert all(torch.equal(result.weights[name], weights[name]) for name in weights)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 65505.0, -1e6])
def test_what_half_precision_cannot_hold_is_refused_by_name(number):
    with pytest.raises(CheckpointError, match=r"head\.bias contains numbers that are not finite or above 65504"):
        shipping.halved({"fine": torch.ones(2), "head.bias": torch.tensor([0.0, number])})


@pytest.mark.usefixtures("toy_bundles")
def test_half_precision_is_used_in_float32_in_the_network_of_the_header(tmp_path, weights):
    save_weights(tmp_path / "half.safetensors", shipping.halved(weights))
    network = shipping.network_with(tmp_path / "half.safetensors", "two", 4)
    assert {p.dtype for p in network.parameters()} == {torch.float32} and not network.training
    assert torch.equal(network.head.weight, weights["head.weight"].half().float())
    save_weights(tmp_path / "small.safetensors", Tiny(width=8).state_dict(), {"network": '{"width": 8}'})
    network = shipping.network_with(tmp_path / "small.safetensors", "two", 4)
    assert torch.equal(network.past.weight, load_weights(tmp_path / "small.safetensors")["past.weight"])
    save_weights(tmp_path / "none.safetensors", Tiny(width=8).state_dict())
    with pytest.raises(CheckpointError, match="other shapes"):
        shipping.network_with(tmp_path / "none.safetensors", "two", 4)


def test_a_card_holds_all_of_the_pre_training_and_no_path(pretrained):
    card = shipping.card_of(shipping.read_pretrained(pretrained), sha256="a" * 64, scores=[{"name": "rose"}])
    assert all(card[key] == value for key, value in FACTS.items() if key not in ("command", "scores"))
    assert card["command"] == "surgfl pretrain one --out run7 --start=a.pth --size 64x96:3"
    assert card["checks"] == FACTS["scores"] and card["scores"] == [{"name": "rose"}]
    assert card["sha256"] == "a" * 64 and card["header"] == NOTES and card["precision"] == "float16"
    assert "jane" not in shipping.card_text(card) and json.loads(shipping.card_text(card)) == card
    with pytest.raises(ValueError, match=r"--data is 'nine sites', .* leave --data out"):
        shipping.with_data(shipping.read_pretrained(pretrained), "nine sites", [])


@pytest.mark.parametrize(("path", "written"), [("runs/b", "runs/b"), ("~/c", "c"), ("'/data/my run'", "'my run'")])
def test_of_absolute_paths_the_last_name_is_written(path, written):
    assert shipping.without_folders(f"surgfl pretrain a --out {path}") == f"surgfl pretrain a --out {written}"


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_all_are_written_and_nothing_stays_beside(tmp_path):
    shipping.write_together({tmp_path / "a" / "x": b"1", tmp_path / "b" / "y": b"2"})
    assert files(tmp_path) == {"a/x": b"1", "b/y": b"2"}


@pytest.mark.parametrize("last", [1, 2])
def test_where_one_cannot_be_put_in_place_all_are_as_before(tmp_path, monkeypatch, last):
    (tmp_path / "x").write_bytes(b"old")
    calls = []

    def replace(source, target, rename=os.replace):
        calls.append(target)
        if len(calls) == last:
            raise OSError("disk full")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        shipping.write_together({tmp_path / "x": b"1", tmp_path / "new": b"2"})
    assert files(tmp_path) == {"x": b"old"}


def test_where_one_cannot_be_written_beside_none_is_renamed(tmp_path):
    for name, content in (("x", b"old"), ("file", b"no folder")):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OSError):
        shipping.write_together({tmp_path / "x": b"1", tmp_path / "file" / "y": b"2"})
    assert files(tmp_path) == {"x": b"old", "file": b"no folder"}
