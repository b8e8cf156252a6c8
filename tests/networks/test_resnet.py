"""ResNet-50 against an independent implementation, its published size, and files of ImageNet's weights."""

import pytest
import torch
from torch import Tensor, nn

from shared_components.core.card import Card
from shared_components.core.initial_weights import FILE, load_initial_weights
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import CheckpointError, load_encoder, save_weights
from shared_components.networks.resnet_clips import CHUNK, DEVIATION, MEAN, ResNet50, ResNetClips

CARD = Card("classification", ("rest", "coagulation"))
STRANGE = {"encoder.conv1.weight": torch.ones(1), "layer5.0.conv1.weight": torch.ones(1), "fc.scale": torch.ones(1)}


def torchvision_name(name: str) -> str:
    """Map a name of `transformers.ResNetForImageClassification` to torchvision's."""
    kinds = {"convolution": "conv", "normalization": "bn"}
    parts = name.removeprefix("resnet.").split(".")
    if parts[0] == "classifier":
        return f"fc.{parts[-1]}"
    if parts[0] == "embedder":  # embedder.embedder.<kind>.<tensor>
        return f"{kinds[parts[2]]}1.{parts[3]}"
    stage, block, inside = int(parts[2]) + 1, parts[4], parts[5:]  # encoder.stages.<s>.layers.<b>. ...
    if inside[0] == "shortcut":
        return f"layer{stage}.{block}.downsample.{list(kinds).index(inside[1])}.{inside[2]}"
    return f"layer{stage}.{block}.{kinds[inside[2]]}{int(inside[1]) + 1}.{inside[3]}"


@pytest.fixture(scope="module")
def reference() -> nn.Module:
    """transformers' ResNet-50 with 1,000 classes and statistics unlike a new network's."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    result = ResNetForImageClassification(ResNetConfig(num_labels=1000, downsample_in_bottleneck=False)).eval()
    for name, value in result.state_dict().items():
        if name.endswith("running_mean"):
            value.normal_(0, 0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
    return result


@pytest.fixture(scope="module")
def imagenet(reference: nn.Module) -> dict[str, Tensor]:
    """ImageNet's file as torchvision names its tensors."""
    return {torchvision_name(name): value for name, value in reference.state_dict().items()}


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_it_has_the_published_number_of_parameters_and_torchvisions_320_tensors():
    target = "shared_components.networks.resnet_clips.ResNet50"
    whole, headless = (weightless({"_target_": target, "classes": classes}) for classes in (1000, 0))
    assert parameters(whole) == 25_557_032 and parameters(headless) == 23_508_032
    names = list(whole.state_dict())
    assert len(names) == 320 and names[0] == "conv1.weight" and names[-1] == "fc.bias"
    assert parameters(ResNetClips(out_channels=6)) == 25_873_478
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.num_batches_tracked"} <= set(names)


@pytest.mark.parametrize("size", [(64, 96), (224, 224), (33, 65)])
def test_logits_equal_those_of_transformers(reference, imagenet, size):
    ours = ResNet50(classes=1000).eval()
    ours.load_state_dict(imagenet)
    image = torch.rand(2, 3, *size)
    given = (image - torch.tensor(MEAN).reshape(3, 1, 1)) / torch.tensor(DEVIATION).reshape(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), reference(given).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("counted", [True, False])
def test_a_network_of_clips_begins_from_an_imagenet_file(imagenet, tmp_path, ending, counted):
    """torchvision's older file has no counters of batches."""
    path = tmp_path / f"resnet50.{ending}"
    state = {name: value for name, value in imagenet.items() if counted or not name.endswith("num_batches_tracked")}
    save_weights(path, state) if ending == "safetensors" else torch.save(state, path)
    network = ResNetClips(out_channels=2)
    before = {name: value.clone() for name, value in network.sequence.state_dict().items()}
    facts = load_initial_weights(network, FILE, card=CARD, bundle="resnet_clips", file=path)
    assert facts["fresh"] == ["sequence"] and facts["from"] == path.name
    assert all(torch.equal(value, imagenet[name]) for name, value in network.encoder.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in network.sequence.state_dict().items())


@pytest.mark.parametrize(("change", "words"), [
    (lambda state: state.pop("layer3.5.conv2.weight"), r"than ResNet-50 encoder: it lacks layer3\.5\.conv2\.weigh"),
    (lambda state: state.pop("bn1.num_batches_tracked"), r"it lacks bn1\.num_batches_tracked$"),
    (lambda state: state.update(STRANGE), r"it has encoder\.conv1\.weight, layer5\.0\.conv1\.weight, fc\.scale$"),
    (lambda state: state.update({"conv1.weight": torch.ones(64, 1, 7, 7)}), r"conv1\.weight is \[64, 1, 7, 7\]"),
    (lambda state: state.update({"bn1.bias": torch.full((64,), torch.nan)}), r"NaN or infinity in bn1\.bias"),
    (lambda state: state.update({"bn1.running_var": -torch.ones(64)}), r"negative variance in bn1\.running_var"),
    (lambda state: state.update({"layer1.0.conv2.weight": torch.ones(128, 4, 3, 3)}), "other shapes"),  # ResNeXt
])  # fmt: skip
def test_another_file_is_refused_and_changes_nothing(imagenet, tmp_path, change, words):
    state, network = dict(imagenet), ResNetClips()
    change(state)
    torch.save(state, tmp_path / "resnet.pth")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=words) as error:
        load_encoder(network, tmp_path / "resnet.pth")
    assert "resnet.pth" in str(error.value) and "\n" not in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_clip_is_labelled_by_its_frames_features_whole_batches_in_training():
    torch.manual_seed(1)
    network, clip = ResNetClips(out_channels=3).eval(), torch.rand(2, CHUNK // 2 + 1, 3, 32, 32)
    with torch.no_grad():
        features = torch.stack([network.encoder(frames) for frames in clip])
        torch.testing.assert_close(network(clip), network.sequence(features), rtol=1e-4, atol=1e-4)
        assert network(clip[:, 0]).shape == (2, 3)
        network.train()
        network(clip)
    assert network.encoder.bn1.num_batches_tracked == 1


def test_another_shape_and_a_wrong_number_of_classes_are_refused():
    for shape in ((3, 64, 64), (1, 2, 64, 64), (1, 2, 1, 64, 64)):
        with pytest.raises(ValueError, match=r"takes (clips|images) .*, (and got|not) \["):
            ResNetClips()(torch.zeros(shape))
    for classes in (-1, 2.0, True):
        with pytest.raises(ValueError, match="ResNet50: classes is"):
            ResNet50(classes=classes)
