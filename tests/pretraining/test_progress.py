"""A line on a terminal that moves, and lines now and then elsewhere."""

import io

from shared_components.pretraining import progress
from shared_components.pretraining.plan import Phase
from shared_components.pretraining.progress import Progress

from .conftest import tiny

SETTINGS = tiny(phases=(Phase(64, 64, 4), Phase(64, 128, 3)), batch=8)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def stepped(monkeypatch, out, *, seconds, steps):
    """Take some steps of so many seconds each."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown = Progress(SETTINGS, out)
    for done in range(1, steps + 1):
        clock[0] += seconds
        shown.step(done, 0.5)
    return shown


def test_a_file_gets_a_line_every_ten_seconds(monkeypatch):
    out = io.StringIO()
    stepped(monkeypatch, out, seconds=5.0, steps=4)
    assert out.getvalue().splitlines() == [
        "step 2/7  loss 0.500  1.6 pictures/s  about 40 s left",  # 2 steps of 5 s, 3 of twice as many pixels
        "step 4/7  loss 0.500  1.6 pictures/s  about 30 s left",
    ]


def test_a_terminal_has_one_line_that_moves_and_keeps_what_is_said(monkeypatch):
    out = Terminal()
    shown = stepped(monkeypatch, out, seconds=5.0, steps=2)
    shown.say("Dice 0.5")
    assert out.getvalue().count("\r\033[K") == 3 and out.getvalue().endswith("\r\033[KDice 0.5\n")


def test_long_times_are_said_in_minutes_and_hours(monkeypatch):
    out = io.StringIO()
    stepped(monkeypatch, out, seconds=60.0, steps=1)
    assert "about 9 min left" in out.getvalue()
    out = io.StringIO()
    stepped(monkeypatch, out, seconds=3600.0, steps=1)
    assert "about 9.0 h left" in out.getvalue()
