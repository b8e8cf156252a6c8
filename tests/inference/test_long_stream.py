"""SurgFed's network holds as much after some hundred frames as after the first dozens."""

import torch

from evidence.benchmarks.following import SIDE, measured
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.networks.sam2_video import Sam2Clips
from tests.networks.conftest import TOY


def test_a_stream_of_two_hundred_frames_holds_as_much_as_one_of_fifty(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    torch.manual_seed(0)
    early, late = measured(Sam2Clips(architecture="cpu", size=SIDE).eval(), (50, 200))
    assert early[:2] == late[:2] and early[0] > 0
    assert late[2] - early[2] < 8e6  # bytes of the process
