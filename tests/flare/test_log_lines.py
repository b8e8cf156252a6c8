"""A record of a log is one line that begins as the formatter says; whatever else it holds is marked."""

import io
import logging

import pytest

from shared_components.flare.log_lines import MARK, MarkedRecord, mark_lines

FORGED = "hospital-a\n2026-01-01 00:00:00 - FederatedServer - INFO - all is well\r\x1b[2J\x85\u2028end"


@pytest.fixture
def log():
    """A logger of its own, whose lines begin with LEVEL; the process's records are as before afterwards."""
    before = logging.getLogRecordFactory()
    mark_lines()
    written, logger = io.StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("LEVEL %(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield logger, written
    logging.setLogRecordFactory(before)


def test_a_name_with_a_line_break_begins_no_line(log):
    logger, written = log
    logger.error("no session for %s", FORGED)
    first, second, end = written.getvalue().split("\n")
    assert first == "LEVEL ERROR no session for hospital-a" and end == ""
    assert second == "    | 2026-01-01 00:00:00 - FederatedServer - INFO - all is wellend"


def test_nor_does_an_error_that_carries_one(log):
    logger, written = log
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("reading failed")
    lines = written.getvalue().splitlines()
    assert lines[0] == "LEVEL ERROR reading failed" and len(lines) > 3
    assert all(line.startswith(MARK.strip("\n")) for line in lines[1:])
    assert lines[1].endswith("Traceback (most recent call last):") and "\x1b" not in written.getvalue()


def test_what_is_one_line_stays_as_it_is(log):
    logger, written = log
    logger.info("round %d of %d: %s", 1, 2, "Schaft ü 30 %")
    logger.error("no error at all", exc_info=(None, None, None))
    assert written.getvalue() == "LEVEL INFO round 1 of 2: Schaft ü 30 %\nLEVEL ERROR no error at all\n"


def test_a_record_that_another_process_has_made_is_marked_too(log):
    made = logging.makeLogRecord({"msg": "a\nb", "exc_text": "c\nd", "levelno": 20, "levelname": "INFO"})
    assert isinstance(made, MarkedRecord) and made.getMessage() == f"a{MARK}b"
    logger, written = log
    logger.handle(made)
    assert written.getvalue() == "LEVEL INFO a\n    | b\n    | c\n    | d\n"
