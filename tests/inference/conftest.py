"""Small videos, written by PyAV, and a stand-in for a model."""

from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.bundle import load_bundle
from shared_components.core.task import checkpoint_header, make_task
from shared_components.inference.frames import Shot
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import save_weights

PARTS = ("background", "shaft", "wrist", "clasper")
SEGMENTATION = make_task("segmentation", classes=PARTS)


def write_video(path, frames, *, rate=25, codec="libx264", rotation=0, aspect=None, times=None, **options):
    """Write uint8 RGB frames (H, W, 3) with PyAV, in the container of the file name."""
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=Fraction(rate))
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if rotation:
            stream.set_display_rotation(rotation)
        if aspect:
            stream.codec_context.sample_aspect_ratio = aspect
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, image in enumerate(frames):
            if not number:
                stream.height, stream.width = image.shape[:2]
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(times[number] * 1000), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def grey(count, height=48, width=64):
    """Yield frames that grow lighter."""
    for number in range(count):
        yield np.full((height, width, 3), (20 + 2 * number) % 256, np.uint8)


def noise(count, height=48, width=64):
    """Yield frames of noise, which do not compress."""
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield generator.integers(0, 255, (height, width, 3), dtype=np.uint8)


def write_image(path, shade=100, size=(40, 50)):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((*size, 3), shade, np.uint8))


def shot(name="a", seconds=None, sequence="", size=(40, 50)):
    return Shot(name, np.full((*size, 3), 90, np.uint8), sequence, seconds)


class Bright(nn.Module):
    """Predicts class 1 for bright pixels."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))

    def forward(self, image):
        seen = (image.mean(1) > self.level).float()
        empty = torch.zeros_like(seen)
        return torch.stack([0.5 + empty, seen, empty, empty], 1)


@pytest.fixture
def video(tmp_path):
    """Forty frames of grey at 25 a second."""
    return write_video(tmp_path / "surgery.mp4", grey(40))


@pytest.fixture
def model(tmp_path):
    """Return a function that writes a checkpoint with random weights and a federation's header."""

    def model(kind="segmentation", name="model.safetensors"):
        task = make_task(kind, classes=PARTS if kind == "segmentation" else ())
        torch.manual_seed(1)
        network = build_network(load_bundle("pvt_fpn").network, out_channels=task.channels)
        notes = checkpoint_header("pvt_fpn", "fedavg", task, {}, size=(32, 64))
        save_weights(tmp_path / name, network.state_dict(), notes)
        return tmp_path / name

    return model
