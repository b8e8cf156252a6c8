"""A bundle's progress: on a terminal a bar below printed lines, elsewhere the log, of the first process alone."""

import logging
import sys

import pytest

from shared_components.bundle_engines import shown
from shared_components.common.progress import heard, report_progress
from tests.common.test_progress import Terminal, seen


@pytest.fixture(autouse=True)
def _listener():
    """Restore the listener, which `show_progress` sets for good."""
    with heard(lambda step: None):
        yield


def test_on_a_terminal_printed_and_logged_lines_stay_above_a_bar(monkeypatch):
    terminal, closing, logger = Terminal(), [], logging.getLogger("bundle")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(shown.atexit, "register", closing.append)
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    shown.show_progress()
    report_progress("frame", 3, 9)
    board = closing[0].__self__
    board.look()
    print("a printed line")
    logger.warning("a logged line")
    board.close()
    logger.removeHandler(handler)
    lines = [line.strip() for line in seen(terminal).splitlines()]
    assert "a printed line" in lines and "a logged line" in lines and any("3/9" in line for line in lines)


@pytest.mark.parametrize(("rank", "lines"), [("0", ["frame 3/9"]), ("1", [])])
def test_elsewhere_the_first_process_logs_its_steps(monkeypatch, caplog, rank, lines):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("shared_components.common.progress_display.PAUSE", 0.0)
    shown.show_progress()
    with caplog.at_level(logging.INFO):
        report_progress("frame", 3, 9)
    assert [record.getMessage() for record in caplog.records] == lines
