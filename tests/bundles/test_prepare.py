"""What a checkpoint's header says of the task that it has learnt, whatever its kind."""

import pytest

from shared_components.bundle_engines import task_from_checkpoint
from shared_components.checkpoints import save_weights
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
