"""Progress of loops, and what a person sees of it on a terminal and elsewhere, by a clock that a test moves."""

import io
import logging
import re
import threading
from unittest.mock import Mock

import pytest

from shared_components.common.progress import Step, changed, duration, follow, listening, report_progress, speed, under
from shared_components.common.progress_display import Board, StepLog, plain_line, show_progress


def test_a_loop_reports_its_beginning_and_an_item_once_it_asks_for_the_next():
    steps = []
    with listening(steps.append):
        assert list(follow("ab", "reading")) == ["a", "b"]
    assert steps == [Step("reading", 0, 2), Step("reading", 1, 2), Step("reading", 2, 2)]
    steps = []
    with listening(steps.append):
        items = follow(iter([7, 8]), "reading")
        next(items)
    assert steps == [Step("reading", 0, None)]  # of an iterator nobody knows the length


def test_nobody_need_listen_and_a_listener_hears_its_own_thread_alone():
    steps = []
    report_progress("training", 1, 2)
    with listening(steps.append):
        thread = threading.Thread(target=report_progress, args=("rendering",))
        thread.start()
        thread.join()
        with listening(lambda step: None):
            report_progress("validating")
        report_progress("saving")
    report_progress("training", 2, 2)
    assert steps == [Step("saving")]


def test_what_a_block_reports_names_whose_work_it_is_and_may_be_changed():
    steps = []
    with under("nobody"), listening(steps.append), under("round 1/2"), under("site-1"):
        report_progress("training", 1, 2)
    assert steps == [Step("round 1/2 site-1 training", 1, 2)]
    steps = []
    with listening(steps.append), changed(lambda step: Step(step.what, step.done + 10, 20)):
        report_progress("training", 1, 2)
    assert steps == [Step("training", 11, 20)]


def test_a_step_and_a_speed_without_a_known_end_are_said_in_a_few_words():
    assert str(Step("training", 12, 26, "loss 0.412")) == "training 12/26 loss 0.412"
    assert str(Step("reading", 3, None)) == "reading 3"
    assert str(Step("saving")) == "saving"
    assert speed(0.5, "frames", None) == "0.5 frames/s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (540, "9 min"), (5400, "1.5 h"), (32400, "9.0 h")]
)
def test_a_duration_has_one_unit(seconds, text):
    assert duration(seconds) == text
    assert speed(1.62, "frames", seconds) == f"1.6 frames/s  about {text} left"


class Terminal(io.StringIO):
    def isatty(self):
        return True


STEPS = {"site-1": Step("training", 12, 26, "loss 0.412"), "site-2": Step("waiting")}


@pytest.fixture
def clock():
    clock = Mock(now=100.0, side_effect=lambda: clock.now)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def seen(terminal):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_elsewhere_a_line_comes_after_eight_seconds_of_silence_and_none_of_nothing(clock):
    out = io.StringIO()
    board = Board(out, read=lambda: STEPS, title=lambda: "round 2/4", now=clock)
    for seconds in (7.9, 0.2, 7.9):
        clock.now += seconds
        board.look()
    assert out.getvalue() == "round 2/4  site-1 training 12/26 loss 0.412  site-2 waiting\n"
    board.say("round 2/4 is done")  # is a line as well
    clock.now += 7.9
    board.look()
    assert out.getvalue().count("\n") == 2
    out = io.StringIO()
    board = Board(out, read=dict, now=clock)
    clock.now += 100
    board.look()
    assert out.getvalue() == "" and plain_line("", {}) == ""
    many = plain_line("round 1/4", {f"site-{i}": Step("training") for i in range(64)})
    assert many.startswith("round 1/4  site-0 training  site-1 ") and many.endswith("site-5 training and 58 more")
    assert plain_line("finish", {}) == "finish" and plain_line("", {"": Step("rendering", 1, 9)}) == "rendering 1/9"


@pytest.mark.parametrize(("hours", "lines"), [(0.05, 22), (2, 271)])
def test_work_of_hours_gets_fewer_lines(clock, hours, lines):
    """Every 8 s for ten minutes, then ever more rarely, and every minute at last."""
    out = io.StringIO()
    board = Board(out, read=lambda: STEPS, now=clock)
    for _ in range(int(hours * 3600)):
        clock.now += 1
        board.look()
    assert out.getvalue().count("\n") == pytest.approx(lines, abs=30 if hours > 1 else 0)


def test_a_terminal_has_a_bar_per_worker_and_lines_stay_above(terminal, clock):
    board = Board(terminal, read=lambda: STEPS, title=lambda: "round 2/4", now=clock)
    board.look()
    board.say("round 1/4  site-1  [bold]loss[/bold] 0.5 :smile:")
    text = seen(terminal)
    assert "round 2/4  site-1  training" in text and "12/26" in text and "loss 0.412" in text
    assert "round 2/4  site-2  waiting" in text and "━" in text
    assert "round 1/4  site-1  [bold]loss[/bold] 0.5 :smile:" in text  # nothing is read as markup
    board.close()
    assert "\x1b[?25l" not in terminal.getvalue()  # a killed process would leave no cursor
    board.say("done")
    assert terminal.getvalue().endswith("done\n")


def test_a_bar_goes_with_its_worker(terminal):
    steps = dict(STEPS)
    board = Board(terminal, read=lambda: steps)
    board.look()
    del steps["site-2"]
    terminal.truncate(0)
    board.look()
    board.say("x")
    assert "site-1" in seen(terminal) and "site-2" not in seen(terminal)
    board.close()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, clock):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    board = Board(terminal, read=lambda: STEPS, now=clock)
    clock.now += 9
    board.look()
    assert terminal.getvalue() == "site-1 training 12/26 loss 0.412  site-2 waiting\n"


def test_bars_that_cannot_be_drawn_do_not_end_the_work(terminal, clock, monkeypatch, caplog):
    board = Board(terminal, read=lambda: STEPS, now=clock)
    monkeypatch.setattr(board._bars, "draw", lambda *_: 1 / 0)
    board.look()
    clock.now += 9
    board.look()
    assert "cannot be drawn" in caplog.text and terminal.getvalue().startswith("site-1 training")


def test_a_block_shows_what_its_own_thread_reports():
    out = io.StringIO()
    with show_progress(out, title="site-1") as board:
        report_progress("rendering", 3, 9)
        board._last_line -= 9
        board.look()
        board.say("written")
    assert out.getvalue() == "site-1  rendering 3/9\nwritten\n"


def test_a_log_gets_a_line_every_eight_seconds(clock, caplog):
    listener = StepLog("round 2/4", logging.getLogger("site"), clock)
    with caplog.at_level(logging.INFO):
        for done in range(20):
            listener(Step("training", done, 20))
            clock.now += 1
    assert [record.getMessage() for record in caplog.records] == [
        "round 2/4  training 8/20", "round 2/4  training 16/20",
    ]  # fmt: skip
