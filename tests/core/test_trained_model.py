"""A model is what its checkpoint's header says: network, task, numbers, size; classes merge and never come apart."""

import json
import resource

import pytest
import torch
from torch import nn

from shared_components.core import trained_model
from shared_components.core.bundle import load_bundle
from shared_components.core.task import checkpoint_header, make_task
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import CheckpointError, load_metadata, save_weights
from shared_components.networks.network_class import numbers_in
from tests.federation.conftest import narrow, same  # noqa: F401

PARTS, MANIPULATOR, FOREGROUND = (CLASS_MAPS[n] for n in ("parts", "shaft_manipulator", "foreground"))


@pytest.fixture
def saved(tmp_path):
    """Return a function that leaves a model as a federation does, its weights of a precision."""

    def saved(kind="segmentation", *, bundle="pvt_fpn", dtype=torch.float32, notes=None, chosen=None, **numbers):
        task = make_task(kind, numbers, classes=PARTS if kind == "segmentation" else ())
        torch.manual_seed(1)
        network = build_network(load_bundle(bundle, network=chosen).network, out_channels=task.channels)
        known = checkpoint_header(bundle, "fedavg", task, numbers, size=(64, 96), network=chosen)
        path, state = tmp_path / f"{kind}.safetensors", network.state_dict()
        state |= {name: tensor.to(dtype) for name, tensor in state.items() if tensor.is_floating_point()}
        save_weights(path, state, known if notes is None else notes)
        return path, network

    return saved


def test_the_header_defines_network_task_and_size_and_the_bundle_what_it_lacks(saved):
    path, network = saved("depth", scale=50.0)
    model = trained_model.load_trained(path, bundle="pvt_fpn")
    assert (model.task.card.kind, model.task.scale, model.size) == ("depth", 50.0, (64, 96))
    assert same(model.network.state_dict(), network.state_dict())
    path, _ = saved(notes={})
    model = trained_model.load_trained(path, bundle="pvt_fpn")
    assert model.task.card.outputs == ("0", "1", "2", "3") and model.size == (512, 640)


def test_models_of_half_precision_or_another_bundle_are_built_as_trained(saved):
    path, network = saved(dtype=torch.float16)
    model = trained_model.load_trained(path, bundle="pvt_fpn")
    for name, tensor in model.network.state_dict().items():
        assert tensor.dtype == network.state_dict()[name].dtype
        torch.testing.assert_close(tensor, network.state_dict()[name], rtol=1e-3, atol=1e-6)
    path, network = saved(bundle="pfedsis")
    model = trained_model.load_trained(path, bundle="pvt_fpn")
    assert type(model.network) is type(network) and model.task.card.outputs == PARTS


def test_what_changes_no_shape_is_built_as_it_was_trained(saved):
    """Windows of other frames have the same weights: only the header knows."""
    clip, shown = torch.rand(1, 4, 3, 64, 64), []
    for chosen in ({"receptive_fields": [49, 16, 10, 7], "kernels": [7, 4, 2, 1]}, None):
        path, network = saved(bundle="fedst", chosen=chosen)
        shown.append(trained_model.load_trained(path, bundle="fedst").network.eval()(clip))
        assert torch.equal(shown[-1], network.eval()(clip))
    assert not torch.equal(*shown)


def test_a_bundles_own_network_is_not_told(saved):
    path, _ = saved(bundle="fedst")
    assert "network" not in load_metadata(path)
    assert (
        trained_model.network_arguments_of(path)
        == {}
        == trained_model.network_arguments_of(path.with_name("none.safetensors"))
        == trained_model.network_arguments_of(None)
    )


@pytest.mark.parametrize(("notes", "sentence"), [
    *(({"network": said}, sentence) for said, sentence in (
        ("{", "its header's network is '{', not JSON"), ("[" * 100_000, "not JSON"),
        ('{"_target_": "os.system"}', "'_target_' is set by the bundle and cannot be chosen"),
        ('{"text": "$exit()"}', "text is the expression"), ('{"dropout": NaN}', "dropout is nan; write"),
        ("[]", r"network: the value is \[\]; write"),
        ('{"temporal": false}', "another network than PvtFpnClips: it has temporal"))),
    *(({"task": "segmentation", "numbers": said}, "not a JSON object; save it again")
      for said in ("{", "[1]", "3", "[" * 100_000)),
    ({"task": "triplet"}, r"segmentation\.safetensors: task 'triplet' does not exist; use one of"),
])  # fmt: skip
def test_a_header_is_trusted_no_more_than_a_job(saved, notes, sentence):
    path, _ = saved(notes={"bundle": "fedst"} | notes, bundle="fedst")
    with pytest.raises(CheckpointError, match=sentence) as error:
        trained_model.load_trained(path, bundle="fedst")
    assert str(error.value).startswith(f"checkpoint {path}") and "\n" not in str(error.value)


HUGE = [
    ({"class": "BasicUNet", "features": [10_000] * 6}, "is a checkpoint of another network than BasicUNet"),
    ({"class": "SegResNet", "init_filters": 40_000}, "is a checkpoint of another network than SegResNet"),
    ({"class": "SegResNet", "blocks_down": [100_000]}, "building it takes more than 50000 torch calls"),
    ({"class": "SwinUNETR", "depths": [10**8] * 4}, "too many layers"),
    ({"class": "BasicUNet", "features": [32] * 1001}, "network: features has 1001 values; write at most 1000"),
    ({"class": "BasicUNet", "features": [10**30] * 6}, "BasicUNet cannot be built with"),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "words"), HUGE)
def test_a_network_that_a_header_describes_is_compared_with_the_file_before_it_takes_memory(chosen, words, tmp_path):
    path = tmp_path / "model.safetensors"
    said = {"spatial_dims": 2, "in_channels": 3, **chosen}
    save_weights(path, {"conv_0.conv_0.conv.bias": torch.zeros(32)}, {"bundle": "pvt_fpn", "network": json.dumps(said)})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=words) as error:
        trained_model.load_trained(path, bundle="pvt_fpn")
    assert str(error.value).startswith(f"checkpoint {path}") and "\n" not in str(error.value)
    assert len(str(error.value)) < 1000 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000


def test_constants_of_a_network_count_though_no_file_holds_them(saved, monkeypatch):
    path, network = saved(bundle="fl_endovit_segmentation", chosen={"size": 72}, notes=None)
    assert numbers_in(network) > sum(value.numel() for value in network.state_dict().values())
    trained_model.load_trained(path, bundle="fl_endovit_segmentation")
    monkeypatch.setattr(trained_model, "MOST_CONSTANTS", 1)
    with pytest.raises(CheckpointError, match="but its header describes a network of"):
        trained_model.load_trained(path, bundle="fl_endovit_segmentation")


def test_more_outputs_than_a_file_has_numbers_are_refused(saved):
    path, network = saved()
    state = network.state_dict() | {"head_global.weight": torch.zeros(10**6, 0, 1, 1)}
    save_weights(path, state, {"bundle": "pvt_fpn"})
    with pytest.raises(CheckpointError, match=r"head_global\.weight is .* and should be"):
        trained_model.load_trained(path, bundle="pvt_fpn")
    save_weights(path, state | {"head_global.weight": torch.tensor(1.0)}, {"bundle": "pvt_fpn"})
    with pytest.raises(CheckpointError, match=r"head_global\.weight is \[\] and should be"):
        trained_model.load_trained(path, bundle="pvt_fpn")


def test_arguments_of_another_network_or_bundle_are_refused(saved):
    path, _ = saved(bundle="fedst", chosen={"temporal": False}, notes={"bundle": "fedst"})
    with pytest.raises(CheckpointError, match="another network than PvtFpnClips: it lacks temporal"):
        trained_model.load_trained(path, bundle="fedst")
    path, _ = saved(bundle="fedst", notes={"bundle": "later", "network": '{"memory": 3}'})
    with pytest.raises(CheckpointError, match=r"unknown argument 'memory'.*its bundle 'later' is not"):
        trained_model.load_trained(path, bundle="fedst")


def test_probabilities_of_merged_classes_add_exactly_and_stay_finite():
    logits = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(1)) * 5
    background, shaft, wrist, clasper = logits.double().softmax(1).unbind(1)
    merged = trained_model.merged_logits(logits, (0, 1, 2, 2)).double().softmax(1)
    torch.testing.assert_close(merged, torch.stack([background, shaft, wrist + clasper], 1), atol=1e-6, rtol=1e-5)
    # exp: 3, 2, 1 and 1; the background has the largest logit, the instrument 4 of 7
    logits = torch.tensor([3.0, 2.0, 1.0, 1.0]).log().view(1, 4, 1, 1)
    merged = trained_model.merged_logits(logits, (0, 1, 1, 1))
    torch.testing.assert_close(merged.exp().flatten(), torch.tensor([3.0, 4.0]))
    assert logits.argmax(1).item() == 0 and merged.argmax(1).item() == 1
    logits = torch.randn(1, 4, 2, 2) * 30
    assert torch.equal(trained_model.merged_logits(logits, (0, 1, 2, 2))[:, :2], logits[:, :2])
    logits = torch.full((1, 4, 1, 1), 500.0)
    assert torch.isfinite(trained_model.merged_logits(logits, (0, 1, 1, 1))).all()


def test_a_network_predicts_coarser_classes_and_is_unchanged_if_the_classes_are_equal():
    image, network = torch.rand(1, 3, 2, 2), nn.Conv2d(3, 4, 1)
    merged = trained_model.with_wanted_classes(network, PARTS, MANIPULATOR)
    assert isinstance(merged, trained_model.MergedClasses)
    assert merged.merges == {"background": ["background"], "shaft": ["shaft"], "manipulator": ["wrist", "clasper"]}
    assert torch.equal(merged(image), trained_model.merged_logits(network(image), (0, 1, 2, 2)))
    network = nn.Conv2d(3, 4, 1)
    assert trained_model.with_wanted_classes(network, PARTS, PARTS) is network


@pytest.mark.parametrize(("learnt", "wanted"), [(MANIPULATOR, PARTS), (FOREGROUND, MANIPULATOR)])
def test_what_was_learnt_as_one_cannot_be_told_apart(learnt, wanted):
    with pytest.raises(ValueError, match="can be merged but not divided"):
        trained_model.with_wanted_classes(nn.Conv2d(3, 4, 1), learnt, wanted)
