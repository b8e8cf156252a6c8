"""SurgFed's network holds as much after two hundred frames of a video as after fifty."""

import pytest
import torch

from evidence.benchmarks.following import RATE, SIDE, segmented
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.networks.sam2_video import Sam2Clips
from tests.networks.conftest import TOY


@pytest.mark.slow
def test_a_video_of_two_hundred_frames_holds_as_much_as_one_of_fifty(monkeypatch, tmp_path):
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    torch.manual_seed(0)
    network = Sam2Clips(architecture="cpu", size=SIDE)
    early, late = segmented(network, tmp_path, (50, 200), interval=1 / RATE, say=str)
    assert early[:2] == late[:2] and early[0] > 0
    assert late[2] - early[2] < 8e6  # bytes of the process
