"""Requirements of every network in the folder, and `Tiny`."""

import importlib
import pkgutil

import pytest
import torch

import shared_components.networks as folder
from shared_components.networks.parts import resolve
from shared_components.networks.tiny import Tiny

OTHERWISE = {  # arguments that are not the defaults
    "PvtFpn": {"appearance_head": True, "drop_path": 0.3, "dropout": 0.5},
    "PvtFpnClips": {
        "temporal": True, "text": "prompt", "indicator": 5, "levels": (16,), "window": 4, "receptive_fields": (8, 4),
        "kernels": (2, 1), "expansion": 3, "drop_path": 0.3, "dropout": 0.5,
    },
    "Sam2Clips": {"text": "released", "indicator": 5, "frames": 3, "size": 64, "dropout": 0.5, "depth_stride": 4},
    "MaeVit": {"size": 32, "drop_path": 0.3},
    "ResNetClips": {},
    "Tiny": {"width": 8, "dropout": 0.5},
    "VitClips": {"size": 32, "sequence": "tcn", "pool": "token", "drop_path": 0.3},
    "VitDpt": {"size": 32, "features": 16, "dropout": 0.5, "drop_path": 0.3},
    "VitFrames": {"size": 32, "pool": "mean", "drop_path": 0.3},
}  # fmt: skip
NO_CLASSES = {"Sam2Clips"}  # whose masks are of objects, so that no layer has a channel per class
COLOURS = {"MaeVit"}  # which restore pictures, and have three channels alone
LABELS = {"ResNetClips", "VitClips", "VitFrames"}  # which give a label and no map


def networks():
    """Return the classes that can be rebuilt for another number of classes, by name."""
    modules = [importlib.import_module(f"{folder.__name__}.{m.name}") for m in pkgutil.iter_modules(folder.__path__)]
    classes = [(kind, module) for module in modules for kind in vars(module).values() if hasattr(kind, "with_classes")]
    own = {kind.__name__: kind for kind, module in classes if kind.__module__ == module.__name__}
    return {name: kind for name, kind in own.items() if name != "Vit"}  # a base class


NETWORKS = networks()


def test_every_network_has_other_arguments_here():
    assert NETWORKS.keys() == OTHERWISE.keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_another_number_of_classes_keeps_all_else(name):
    torch.manual_seed(3)
    expected = NETWORKS[name](out_channels=3, **OTHERWISE[name])
    other = NETWORKS[name](out_channels=3 if name in COLOURS else 4, **OTHERWISE[name])
    torch.manual_seed(3)
    result = other.with_classes(3)
    assert str(result) == str(expected) and result.parts == expected.parts
    expected, result = expected.state_dict(), result.state_dict()
    assert expected.keys() == result.keys() and all(torch.equal(expected[n], value) for n, value in result.items())


@pytest.mark.parametrize("arguments", [{}, OTHERWISE])
@pytest.mark.parametrize("name", NETWORKS)
def test_parts_are_modules_and_cover_the_network(name, arguments):
    network = NETWORKS[name](**arguments.get(name, {}))
    paths = {part: resolve(network, [part]) for part in network.parts}
    covered = {path.partition(".")[0] for part in paths.values() for path in part}
    assert covered == {tensor.partition(".")[0] for tensor in network.state_dict()}
    assert {"encoder", "top"} <= paths.keys() and paths["top"] < covered
    assert "decoder" in paths or name in LABELS
    assert ("head" in paths) == (name not in NO_CLASSES)


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - LABELS))
def test_pictures_and_clips_give_maps_at_the_pictures_size(name):
    network = NETWORKS[name]().eval()
    H, W = (64, 64) if getattr(network, "squares", False) else (64, 96)
    assert network(torch.rand(2, 3, H, W)).shape == (2, 3 if name in COLOURS else 4, H, W)
    if getattr(network, "takes_clips", False):
        frames = getattr(network, "frames", 5)
        shown = (frames,) if getattr(network, "takes_boxes", False) else ()  # who follows objects maps each frame
        assert network(torch.rand(2, frames, 3, H, W)).shape == (2, *shown, 4, H, W)


@pytest.fixture(scope="module")
def network() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


def test_it_is_tiny_and_has_dropout_and_normalisation_with_running_statistics(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 5_476
    kinds = {type(module).__name__ for module in network.modules()}
    assert {"Dropout2d", "BatchNorm2d", "GroupNorm"} <= kinds


def test_the_past_counts_whatever_its_order_and_the_current_frame_counts_by_itself(network):
    image, clip = torch.rand(2, 3, 16, 16), torch.rand(1, 4, 3, 16, 16)
    for frames in (1, 4):
        torch.testing.assert_close(network(image[:, None].expand(-1, frames, -1, -1, -1)), network(image))
    torch.testing.assert_close(network(clip[:, [2, 0, 1, 3]]), network(clip))
    assert not torch.allclose(network(clip[:, [0, 1, 3, 2]]), network(clip), atol=1e-4)
    assert not torch.allclose(network(clip[:, 3]), network(clip), atol=1e-4)


def test_every_parameter_is_trained_by_pictures_and_by_clips():
    network = Tiny().train()
    for image in (torch.rand(2, 3, 16, 16), torch.rand(2, 4, 3, 16, 16)):
        network.zero_grad()
        network(image).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 4, 16, 16), (1, 3, 18, 16), (1, 4, 3, 16, 15)])
def test_another_size_is_refused_by_it(network, shape):
    with pytest.raises(ValueError, match=r"multiples of 4, and got \["):
        network(torch.zeros(shape))
