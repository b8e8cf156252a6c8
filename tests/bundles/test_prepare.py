"""What a checkpoint's header says of the task that it has learnt, whatever its kind."""

import json

import pytest
import torch

from shared_components.bundle_engines import bundle_root, input_size, own_checkpoint, task_from_checkpoint
from shared_components.core.shipped_weights import EXPORTED, FACTS, MODEL, sha256_of
from shared_components.networks.checkpoints import load_metadata, load_weights, save_pt, save_weights
from shared_components.networks.tiny import Tiny


@pytest.mark.parametrize("key", ["outputs", "classes"])
def test_names_of_outputs_come_from_the_header(tmp_path, key):
    """Older headers have `classes` alone."""
    path = tmp_path / "model.safetensors"
    notes = {"task": "segmentation", key: "background,shaft,wrist"}
    network = Tiny(out_channels=3)
    save_weights(path, network.state_dict(), notes)
    task = task_from_checkpoint({"segmentation": {}}, str(path), network)
    assert task.card.outputs == ("background", "shaft", "wrist")


def test_a_header_without_names_leaves_numbers_one_per_channel(tmp_path):
    path = tmp_path / "model.safetensors"
    network = Tiny(out_channels=3)
    save_weights(path, network.state_dict())
    assert task_from_checkpoint({"segmentation": {}}, str(path), network).card.outputs == ("0", "1", "2")


def test_a_bundles_own_checkpoint_is_what_it_ships_until_a_person_puts_a_model_pt_in_its_place(tmp_path):
    shipped, exported = tmp_path / MODEL, tmp_path / EXPORTED
    save_weights(shipped, {"a": torch.ones(2).half()}, {"height": "64", "width": "96"})
    (tmp_path / FACTS).write_text(json.dumps({"sha256": sha256_of(shipped)}))
    assert own_checkpoint(str(tmp_path)) == str(shipped)
    save_pt(exported, {"a": torch.ones(2).half(), "helper": torch.zeros(1)}, load_metadata(shipped))
    assert own_checkpoint(str(tmp_path)) == str(shipped)
    save_pt(exported, {"a": torch.zeros(2)}, {"height": "32", "width": "32"})
    assert own_checkpoint(str(tmp_path)) == str(exported)
    assert input_size(own_checkpoint(str(tmp_path)), 1, 1) == (32, 32)
    assert load_weights(exported)["a"].tolist() == [0, 0]


def test_the_bundles_root_is_where_its_config_lies_or_else_the_working_directory(prepare, bundles):
    assert bundle_root() == "."
    workflow = prepare("pvt_fpn", "train", site_config="unused")
    workflow.initialize()
    assert workflow.bundle_root == str(bundles / "pvt_fpn")
    given = prepare("pvt_fpn", "train", site_config="unused", bundle_root="/elsewhere")
    given.initialize()
    assert given.bundle_root == "/elsewhere"
