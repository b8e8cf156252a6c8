"""How far a site is within its task: a file in a simulator, lines of its log elsewhere."""

import logging

import pytest

from shared_components.flare import steps
from shared_components.progress import Step


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_server_reads_what_the_site_told_last(tmp_path, clock):
    listener = steps.StepFile(tmp_path / "site-1", clock)
    assert steps.read_step(tmp_path / "site-1") is None
    listener(Step("training", 1, 9, "loss 0.5"))
    assert steps.read_step(tmp_path / "site-1") == Step("training", 1, 9, "loss 0.5")
    listener(Step("training", 2, 9))  # too soon
    assert steps.read_step(tmp_path / "site-1").done == 1
    listener(Step("saving"))  # another thing is told at once
    assert steps.read_step(tmp_path / "site-1") == Step("saving")
    clock.now += 0.5
    listener(Step("saving", 1, None))
    assert steps.read_step(tmp_path / "site-1") == Step("saving", 1, None)
    steps.forget(tmp_path / "site-1")
    assert steps.read_step(tmp_path / "site-1") is None and not list((tmp_path / "site-1").iterdir())


def test_a_log_gets_a_line_every_eight_seconds(clock, caplog):
    listener = steps.StepLog("round 2/4", clock)
    with caplog.at_level(logging.INFO):
        for done in range(20):
            listener(Step("training", done, 20))
            clock.now += 1
    assert [record.getMessage() for record in caplog.records] == [
        "round 2/4  training 8/20", "round 2/4  training 16/20",
    ]  # fmt: skip
