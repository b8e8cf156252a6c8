"""The inference config of SurgFed: objects from boxes, and depth."""

import json

import cv2
import numpy as np
import pytest
import torch

from shared_components.cli import main
from shared_components.core.bundle import load_bundle
from shared_components.core.task import checkpoint_header, make_task
from shared_components.core.trained_model import load_trained
from shared_components.inference.frames import FrameStream
from shared_components.inference.video import look_at
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights
from tests.inference.conftest import noise, write_video

NUMBERS = {"frames": 2, "interval": 0.1, "targets_of": "all", "prompts": "first"}
CLASSES = ("background", "shaft", "wrist")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a function that writes random weights of SurgFed's network for 64x64 with a federation's header."""

    def model(kind):
        task = make_task(kind, NUMBERS, classes=CLASSES if kind == "segmentation" else ())
        torch.manual_seed(3)
        network = build_network(load_bundle("surgfed", network={"size": 64}).network, out_channels=task.channels)
        path = tmp_path_factory.mktemp("weights") / f"{kind}.safetensors"
        notes = checkpoint_header("surgfed", "surgfed", task, NUMBERS, size=(64, 64), network={"size": 64})
        save_weights(path, network.state_dict(), notes)
        return path

    return model


@pytest.fixture
def video(tmp_path):
    return write_video(tmp_path / "surgery.mp4", noise(3, 48, 96), rate=10)


def test_boxes_give_the_files_of_surgfl_segment(run, refusal, model, video, tmp_path):
    path, out, other = model("segmentation"), tmp_path / "out", tmp_path / "other"
    options = {"input": str(video), "checkpoint": str(path), "output_dir": str(out)}
    run("surgfed", "inference", **options, boxes="shaft=0,0,48,24; wrist=48,24,40,20")
    words = ["--box", "shaft=0,0,48,24", "--box", "wrist=48,24,40,20"]
    assert main(["segment", str(video), "--model", str(path), "--out", str(other), *words]) == 0
    files = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file()) == files and len(files) == 7
    for name in files:
        if name.suffix in (".png", ".csv"):
            assert (out / name).read_bytes() == (other / name).read_bytes()
    assert json.loads((out / "prediction.json").read_text())["boxes"] == ["shaft=0,0,48,24", "wrist=48,24,40,20"]
    none = refusal(run, "surgfed", "inference", **options)
    assert none.startswith("the model tracks objects from the video's first frame, but no object is given; give a box")
    outside = refusal(run, "surgfed", "inference", **options, boxes=(90, 0, 10, 10))
    assert outside.startswith("box '90,0,10,10' exceeds the first frame, which is 96 wide and 48 high")
    mapping = refusal(run, "surgfed", "inference", **options, boxes={"shaft": 1})
    assert mapping.startswith("--boxes is {'shaft': 1}; it is")


def test_depth_is_a_video_and_files_of_16_bits(run, refusal, model, video, tmp_path):
    path, out = model("depth"), tmp_path / "out"
    options = {"input": str(video), "checkpoint": str(path), "output_dir": str(out)}
    run("surgfed", "inference", **options)
    assert look_at(out / "overlay.mp4").frames == 3
    trained = load_trained(path, bundle="surgfed")
    clip = torch.stack([item["image"] for item in FrameStream(video, height=64, width=64)], 1)
    boxes = torch.full((1, 3, 1, 4), torch.nan)
    boxes[0, 0] = torch.tensor([0, 0, 64, 64])  # as in training, `prompts.whole_frames`
    with torch.no_grad():
        expected = trained.task.predict(trained.network.eval(), {"image": clip, "boxes": boxes})[0].numpy()
    for number, depth in enumerate(expected):
        stored = cv2.imread(str(out / "depth" / f"frame_{number:06d}.png"), cv2.IMREAD_UNCHANGED)
        assert stored.dtype == np.uint16 and stored.shape == (48, 96)
        assert np.abs(stored / 256 - cv2.resize(depth, (96, 48))).max() < 0.01
    sentence = refusal(run, "surgfed", "inference", **options, boxes="0,0,10,10")
    assert sentence.startswith("the model takes no boxes, since Sam2Clips predicts depth of the whole frame; remove")
