"""A model is what its checkpoint's header says: network, task, numbers, size; what is missing is named."""

import pytest
import torch

from shared_components.bundle_config import build_network, load_bundle
from shared_components.checkpoints import CheckpointError, save_weights
from shared_components.task import checkpoint_notes, make_task
from shared_components.trained import load_trained

PARTS = ("background", "shaft", "wrist", "clasper")


@pytest.fixture
def saved(tmp_path):
    """Return a function that leaves a model as a federation does, its weights of a precision."""

    def saved(kind="segmentation", *, bundle="pvt_fpn", dtype=torch.float32, notes=None, **numbers):
        task = make_task(kind, numbers, classes=PARTS if kind == "segmentation" else ())
        torch.manual_seed(1)
        network = build_network(load_bundle(bundle).network, out_channels=task.channels)
        known = checkpoint_notes(bundle, "fedavg", task, numbers, size=(64, 96))
        state = {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in network.state_dict().items()
        }
        path = tmp_path / f"{kind}.safetensors"
        save_weights(path, state, known if notes is None else notes)
        return path, network

    return saved


def test_the_header_says_network_task_and_size(saved):
    path, network = saved("depth", scale=50.0)
    model = load_trained(path, bundle="pvt_fpn")
    assert (model.task.card.kind, model.task.scale, model.size) == ("depth", 50.0, (64, 96))
    found = model.network.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in network.state_dict().items())


def test_weights_of_half_precision_are_used_in_float32(saved):
    path, network = saved(dtype=torch.float16)
    model = load_trained(path, bundle="pvt_fpn")
    for name, tensor in model.network.state_dict().items():
        assert tensor.dtype == network.state_dict()[name].dtype
        torch.testing.assert_close(tensor, network.state_dict()[name], rtol=1e-3, atol=1e-6)


def test_a_model_of_another_bundle_is_built_as_that_bundle_is(saved):
    path, network = saved(bundle="pfedsis")
    model = load_trained(path, bundle="pvt_fpn")
    assert type(model.network) is type(network) and model.task.card.outputs == PARTS


def test_what_a_header_leaves_out_is_the_bundles(saved):
    path, _ = saved(notes={})
    model = load_trained(path, bundle="pvt_fpn")
    assert model.task.card.outputs == ("0", "1", "2", "3") and model.size == (512, 640)


@pytest.mark.parametrize(
    ("notes", "sentence"),
    [
        ({"task": "triplets"}, "segmentation.safetensors: task 'triplets' does not exist; there are depth"),
    ],
)
def test_a_task_that_cannot_be_is_refused(saved, notes, sentence):
    path, _ = saved(notes=notes)
    with pytest.raises(CheckpointError, match=sentence):
        load_trained(path, bundle="pvt_fpn")
