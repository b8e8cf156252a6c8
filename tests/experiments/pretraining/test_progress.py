"""Steps, how fast they go and how long the rest takes, by a clock that a test moves."""

import pytest

from shared_components.common.progress import Step, heard
from shared_components.experiments.pretraining import train
from shared_components.experiments.pretraining.plan import Phase
from shared_components.experiments.pretraining.train import Pace
from tests.experiments.pretraining.conftest import tiny

SETTINGS = tiny(phases=(Phase(64, 64, 4), Phase(64, 128, 3)), batch=8)


def stepped(monkeypatch, *, seconds, steps):
    """Take some steps of so many seconds each; return what was reported."""
    clock, told = [100.0], []
    monkeypatch.setattr(train.time, "monotonic", lambda: clock[0])
    pace = Pace(SETTINGS)
    with heard(told.append):
        for done in range(1, steps + 1):
            clock[0] += seconds
            pace.step(done, 0.5)
    return told


def test_a_step_is_reported_with_loss_speed_and_time_left(monkeypatch):
    told = stepped(monkeypatch, seconds=5.0, steps=4)
    assert told[1] == Step("step", 2, 7, "loss 0.500  1.6 pictures/s  about 40 s left")
    assert told[3] == Step("step", 4, 7, "loss 0.500  1.6 pictures/s  about 30 s left")  # of twice as many pixels


@pytest.mark.parametrize(("seconds", "left"), [(60.0, "about 9 min left"), (3600.0, "about 9.0 h left")])
def test_long_times_are_said_in_minutes_and_hours(monkeypatch, seconds, left):
    assert left in stepped(monkeypatch, seconds=seconds, steps=1)[0].note
