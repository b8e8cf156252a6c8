"""How far a prediction is, by a clock that a test moves."""

import pytest

from shared_components.inference.progress import Progress, clock


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def lines_of(total, frames, seconds_each):
    lines, time = [], Clock()
    progress = Progress(total, lines.append, bar=False, now=time)
    for _ in range(frames):
        time.now += seconds_each
        progress.step()
    return lines


def test_a_line_comes_every_five_seconds_with_rate_and_time_left():
    assert lines_of(10_000, 6, 2.0) == ["3 of 10,000 frames, 0.5 a second, about 5:33:14 left",
                                        "6 of 10,000 frames, 0.5 a second, about 5:33:08 left"]  # fmt: skip
    assert lines_of(10, 3, 1.0) == []


@pytest.mark.parametrize("total", [None, 2])
def test_no_time_left_is_said_where_nobody_knows(total):
    """A container may say nothing, or too few."""
    assert lines_of(total, 3, 2.0) == ["3 frames, 0.5 a second"]


def test_on_a_terminal_there_is_a_bar(capsys):
    lines = []
    progress = Progress(2, lines.append, bar=True)
    progress.step()
    progress.step()
    progress.close()
    assert lines == [] and "2/2" in capsys.readouterr().err and progress.count == 2


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3723, "1:02:03")])
def test_times_are_written_as_players_do(seconds, text):
    assert clock(seconds) == text
