"""ONNX files: dynamic sizes, named input and output, outputs equal to PyTorch."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from shared_components.cli import main
from shared_components.commands import onnx as onnx_command
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.task import make_task
from shared_components.core.trained_model import Trained, load_trained
from shared_components.networks import onnx_file, pvt_v2
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.onnx_file import OnnxError, export_onnx
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return Tiny().eval()


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    shares = export_onnx(tiny, path, sizes=[(32, 64), (96, 32)], facts={"classes": "a,b"})
    assert len(shares) == 2 and max(shares) < 1e-5
    return path


def pred_of(path, image):
    (pred,) = onnxruntime.InferenceSession(str(path)).run(["pred"], {"image": image.numpy()})
    return torch.from_numpy(np.asarray(pred))


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 32, 64), (3, 96, 32), (2, 256, 288)])
def test_any_size_gives_what_pytorch_gives(tiny, exported, batch, height, width):
    image = torch.rand(batch, 3, height, width)
    with torch.no_grad():
        torch.testing.assert_close(pred_of(exported, image), tiny(image), rtol=1e-4, atol=1e-5)


def test_the_file_is_one_and_says_its_input_output_and_facts(exported):
    assert [path.name for path in exported.parent.iterdir()] == ["tiny.onnx"]
    model = onnx.load(exported)
    onnx.checker.check_model(model)
    (given,), (got,) = model.graph.input, model.graph.output
    assert (given.name, got.name) == ("image", "pred")
    sides = [side.dim_param or side.dim_value for side in given.type.tensor_type.shape.dim]
    assert sides == ["batch", 3, "32*rows", "32*columns"]
    assert {entry.key: entry.value for entry in model.metadata_props}["classes"] == "a,b"


class Odd(nn.Module):
    """A network with one function; 288 is the traced width."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(288))

    def forward(self, image):
        return self.function(self, image)


@pytest.mark.parametrize(("function", "message"), [
    (lambda self, x: x * (self.weight if x.shape[3] == 288 else 1.0), "cannot be exported: at 1x3x32x320 the"),
    (lambda self, x: x + int(x.shape[3] == 288), r"at 1x3x32x320 the file's output is not .* \(it differs by [0-9.]+e"),
    (lambda self, x: x[..., :144] if x.shape[3] == 288 else x, "Odd cannot be exported: at 1x3"),
    (lambda self, x: x * float("nan"), r"it differs by nan of the largest value"),
    (lambda self, x: x if float(x.sum()) > 0 else -x, "Odd cannot be exported: "),
], ids=["fixed width", "constant", "narrower", "silent", "untraceable"])  # fmt: skip
def test_a_network_whose_file_would_be_wrong_is_refused_and_leaves_nothing(function, message, tmp_path):
    with pytest.raises(OnnxError, match=message) as caught:
        export_onnx(Odd(function), tmp_path / "a.onnx", sizes=[(32, 320)])
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(tiny, tmp_path):
    (tmp_path / "a.onnx").write_text("mine")
    with pytest.raises(OnnxError, match="exists; remove it, or choose another file"):
        export_onnx(tiny, tmp_path / "a.onnx", sizes=[])
    assert (tmp_path / "a.onnx").read_text() == "mine"


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(tiny, tmp_path, monkeypatch, package):
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(OnnxError, match=f"needs {package}, which is not installed: pip install onnxscript onnxruntime"):
        export_onnx(tiny, tmp_path / "a.onnx", sizes=[])


@pytest.fixture
def checkpoint(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shared_components.core.trained_model.build_network", lambda definition: tiny)

    def checkpoint(**notes):
        given = {"task": "segmentation", "outputs": "a,b,c,d", "height": "32", "width": "64", **notes}
        save_weights(tmp_path / "model.safetensors", tiny.state_dict(), given)
        return str(tmp_path / "model.safetensors")

    return checkpoint


def test_the_command_exports_a_checkpoint_and_says_how_close_it_is(checkpoint, tmp_path, capsys):
    assert main(["onnx", "--model", checkpoint()]) == 0
    message = capsys.readouterr().out
    assert "pvt_fpn.onnx: image (B, 3, H, W) -> pred (B, 4, H, W), H and W multiples of 32" in message
    assert "at 64x96 it differs" in message and "at 32x64 it differs" in message
    facts = {entry.key: entry.value for entry in onnx.load("pvt_fpn.onnx").metadata_props}
    assert facts | {"classes": "a,b,c,d", "height": "32", "width": "64"} == facts
    assert "/" not in facts["checkpoint"]


def test_a_network_that_follows_boxes_is_refused_before_it_is_traced(tmp_path):
    class Follows(torch.nn.Identity):
        takes_boxes = True

    with pytest.raises(OnnxError, match=r"needs boxes and a memory across frames.* use `surgfl segment --box`"):
        export_onnx(Follows(), tmp_path / "file.onnx", sizes=[(64, 64)])
    assert list(tmp_path.iterdir()) == []


def test_the_masked_autoencoder_is_refused_by_its_task_not_by_the_192_rows_of_its_last_layer(capsys):
    assert main(["onnx", "--bundle", "fl_endovit"]) == 2
    assert "has learnt reconstruction; models of segmentation can be exported" in capsys.readouterr().err


def assert_as_pytorch(network, file, *shape):
    for batch, height, width in ((1, 32, 32), (2, 256, 288)):
        image = torch.rand(batch, *shape, height, width)
        with torch.no_grad():
            expected = network.eval()(image)
        result = pred_of(file, image)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert float((result.argmax(1) == expected.argmax(1)).float().mean()) > 0.9999


def test_a_shipped_model_runs_as_onnx_at_any_size(tmp_path):
    """PFedSIS's network has all parts of networks for single frames."""
    file = tmp_path / "a.onnx"
    assert main(["onnx", "--bundle", "pfedsis", "--out", str(file)]) == 0
    assert_as_pytorch(load_trained(shipped_weights("pfedsis"), bundle="pfedsis").network, file, 3)


def test_a_network_of_clips_runs_as_onnx_at_any_size_with_the_text_that_it_was_told_inside(monkeypatch, tmp_path):
    """FedST's network with one enriched map, two frames and half of the blocks, since the full export takes minutes."""
    monkeypatch.setattr(pvt_v2, "DEPTH", 1)
    network = PvtFpnClips(levels=[16], receptive_fields=[20, 7], kernels=[4, 1], indicator=8).eval()
    for parameter in (*network.temporal.parameters(), *network.selection.parameters()):
        nn.init.normal_(parameter, std=0.2)
    clip = torch.rand(1, 2, 3, 32, 32)
    untold = network(clip)
    network.set_indicator(torch.linspace(-20, 20, 8))
    assert not torch.allclose(network(clip), untold, rtol=1e-2, atol=1e-2)
    task = make_task("segmentation", {"frames": 2, "interval": 0.2}, classes=["background", "a", "b", "c"])
    model = Trained(network, task, (96, 64))
    monkeypatch.setattr(onnx_command, "open_model", lambda args: (Path("small.safetensors"), model))
    file = tmp_path / "a.onnx"
    assert main(["onnx", "--bundle", "fedst", "--out", str(file)]) == 0
    assert_as_pytorch(network, file, 2, 3)
