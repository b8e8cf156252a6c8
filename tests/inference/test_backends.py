"""Backends: masks equal to PyTorch in float32, and errors."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.shipped_weights import shipped_facts, shipped_weights
from shared_components.core.trained_model import load_trained
from shared_components.inference import InferenceError, backends
from shared_components.inference.backends import WORTH, on_backend
from shared_components.inference.predict import Streaming
from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.fused_fpn import fuse
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny
from shared_components.scenes.scene import render_video

CPU = torch.device("cpu")
NEEDED = "needs openvino"
SEGMENTING = {
    shipped_weights(name): name for name in bundle_names()
    if shipped_facts(name) and load_bundle(name).network["_target_"].rpartition(".")[2] in ("PvtFpn", "VitDpt")
}.values()  # fmt: skip
"""A bundle for each shipped model that segments single frames; FedST's remembers frames, SurgFed's follows boxes."""


def frames(total=WORTH, height=64, width=96):
    return SimpleNamespace(total=total, height=height, width=width)


def run_by(backend, network=None, stream=None, precision="float32", where=CPU):
    network = Tiny().eval() if network is None else network
    return on_backend(network, stream or frames(), backend=backend, precision=precision, where=where)


@pytest.fixture
def installed(monkeypatch):
    """Return a function that sets the installed packages."""

    def installed(*names):
        monkeypatch.setattr(backends, "find_spec", lambda name: name if name in names else None)

    return installed


@pytest.mark.slow
@pytest.mark.parametrize("bundle", SEGMENTING)
@pytest.mark.parametrize("backend", ["torch", "openvino", "onnx"])
def test_masks_of_every_model_agree_with_pytorch_in_float32_on_999_of_1000_pixels(bundle, backend):
    if backend == "openvino" and find_spec("openvino") is None:
        pytest.skip(NEEDED)
    network = load_trained(shipped_weights(bundle), bundle=bundle).network.eval()
    fast, name = run_by(backend, fuse(copy.deepcopy(network)))
    assert name == backend
    agreed = []
    for scene in render_video("rose", 1, frames=8, height=64, width=96, rate=5):
        image = torch.from_numpy(scene.image).permute(2, 0, 1)[None].float() / 255  # (H, W, 3) -> (1, 3, H, W)
        with torch.no_grad():
            expected, result = network(image), fast(image)
        assert len(expected.argmax(1).unique()) > 1
        agreed.append((result.argmax(1) == expected.argmax(1)).float().mean())
    assert np.mean(agreed) >= 0.999


@pytest.mark.skipif(find_spec("openvino") is None, reason=NEEDED)
def test_openvino_gives_the_logits_of_pytorch_from_several_threads_at_once_and_reports_to_nobody():
    """Importing openvino sends an event to Intel if `openvino_telemetry` can be imported."""
    torch.manual_seed(0)
    network = Tiny().eval()
    fast, name = run_by("auto", network)
    assert name == "openvino"
    images = torch.rand(12, 1, 3, 64, 96)
    with ThreadPoolExecutor(3) as pool, torch.no_grad():
        for image, result in zip(images, pool.map(fast, images), strict=True):
            torch.testing.assert_close(result, network(image), rtol=1e-4, atol=1e-5)
    assert sys.modules["openvino_telemetry"] is None and "openvino.tools.ovc.telemetry_stub" in sys.modules


@pytest.mark.parametrize(("total", "chosen"), [(WORTH - 1, "torch"), (WORTH, "openvino"), (None, "openvino")])
def test_auto_takes_openvino_where_it_is_installed_and_worth_its_start(monkeypatch, installed, total, chosen):
    monkeypatch.setattr(backends, "_openvino", lambda network, stream, precision: network)
    network = Tiny().eval()
    installed("openvino")
    fast, name = run_by("auto", network, frames(total))
    assert name == chosen and (fast is network) == (chosen == "torch")
    installed()
    assert run_by("auto", network, frames(total)) == (network, "torch")


@pytest.mark.parametrize(("backend", "package"), [("openvino", "openvino"), ("onnx", "onnxruntime")])
def test_a_backend_that_is_not_installed_is_refused_by_its_package(installed, backend, package):
    installed()
    with pytest.raises(InferenceError, match=f"{backend} needs {package}, which is not installed: pip install"):
        run_by(backend)


def test_what_remembers_frames_or_has_an_accelerator_is_pytorchs(installed):
    installed("openvino", "onnxruntime", "onnxscript")
    clips = Streaming(PvtFpnClips(), 1)
    assert run_by("auto", clips) == (clips, "torch")
    with pytest.raises(InferenceError, match="openvino runs single frames, but PvtFpnClips needs a memory"):
        run_by("openvino", clips)
    meta = torch.device("meta")
    assert run_by("auto", where=meta)[1] == "torch"
    with pytest.raises(InferenceError, match="onnx runs on the CPU, but the device is meta; use torch or auto"):
        run_by("onnx", where=meta)


def test_a_network_that_openvino_cannot_convert_is_pytorchs_by_auto_and_refused_by_name(monkeypatch, installed, caplog):
    def refuse(*_):
        raise RuntimeError("no such operation\nand more")

    installed("openvino")
    monkeypatch.setattr(backends, "_openvino", refuse)
    assert run_by("auto")[1] == "torch"
    assert "OpenVINO cannot run Tiny (no such operation); PyTorch is used instead" in caplog.text
    with pytest.raises(InferenceError, match=r"openvino cannot run Tiny \(no such operation\); use torch"):
        run_by("openvino")


def test_onnx_runtime_computes_in_float32_alone():
    with pytest.raises(InferenceError, match="computes in float32, but precision is bf16; use openvino or torch"):
        run_by("onnx", precision="bf16")
