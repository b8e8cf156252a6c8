"""What is reported of runs that end, and how a network is timed."""

import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shared_components.experiments.comparison import schedule
from shared_components.experiments.comparison.run import REFUSED, TIMED, _frames_per_second
from tests.experiments.comparison.conftest import result


@pytest.fixture
def end(tmp_path, monkeypatch):
    """Return a function that lets a run end without scores, and gives what is said of it and why it failed."""
    monkeypatch.setattr(schedule, "finished", lambda run, root: None)
    monkeypatch.setattr(schedule.Run, "name", "fedavg-seed-1")

    def ended(status, log, *, earlier=""):
        path, said, reasons = tmp_path / "log.txt", [], {}
        path.write_text(earlier + log)
        run, process = result("FedAvg", 1, None).run, SimpleNamespace(returncode=status)
        one = schedule.Working(run, process, path, len(earlier), 0.0, io.StringIO())
        schedule._close(one, tmp_path, reasons, said.append, "3 to go")
        return said[0], reasons["fedavg-seed-1"]

    return ended


def test_a_refusal_is_its_sentence(end):
    said, reason = end(REFUSED, "round 1\nrefused: krum needs 3 sites\n")
    assert reason == "krum needs 3 sites" and said == f"FedAvg, seed 1: refused: {reason}; 3 to go"


def test_a_crash_is_its_last_line_and_the_log(end, tmp_path):
    said, reason = end(1, "Traceback\nIndexError: 7\n")
    assert reason == f"IndexError: 7 ({tmp_path / 'log.txt'})" and "FAILED" in said


def test_a_silent_end_is_told_by_its_status_and_not_by_an_earlier_attempt(end):
    assert end(-9, "", earlier="round 1 of 2\n")[1].startswith("it ended with status -9 and no message")


def test_the_time_left_follows_the_pace_of_all_that_run_side_by_side():
    assert schedule._time_left(4, [120.0], 2) == "4 to go, about 4 min"
    assert schedule._time_left(0, [120.0], 2) == "that was the last"


class Remembering(nn.Module):
    """Adds to a frame what it remembers, and keeps the shapes that it was given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen = []

    def forward(self, image):
        self.seen.append(tuple(image.shape))
        return image

    def begin_stream(self, stride, padding):
        return 0

    def remember(self, image, memory):
        self.seen.append((memory, *image.shape))
        return image + self.weight, memory + 1


def test_a_network_that_remembers_is_timed_frame_by_frame():
    network = Remembering()
    assert _frames_per_second(network, 4, 32, 64) > 0
    assert network.seen == [(number, 1, 3, 32, 64) for number in range(4 + 1 + TIMED)]


def test_a_network_that_does_not_remember_is_timed_by_whole_samples():
    for frames, shape in ((1, (1, 3, 32, 64)), (4, (1, 4, 3, 32, 64))):
        network, inner = nn.Sequential(Remembering()), []
        network[0].seen = inner
        assert _frames_per_second(network, frames, 32, 64) > 0
        assert inner == [shape] * (1 + TIMED)
