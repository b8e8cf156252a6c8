"""A console shows only our lines, and one sentence per foreign error; no log record forges a line."""

import io
import json
import logging
from types import SimpleNamespace

import pytest
from nvflare.fuel.utils.log_utils import dynamic_log_config

from shared_components.common.progress import Step, report_progress
from shared_components.flare import console
from shared_components.flare.log_lines import MARK, MarkedRecord, mark_lines

FORGED = "hospital-a\n2026-01-01 00:00:00 - FederatedServer - INFO - all is well\r\x1b[2J\x85\u2028end"


def context(mode):
    made = SimpleNamespace(args=SimpleNamespace(log_config=mode), get_engine=lambda: made)
    return made


@pytest.fixture
def root():
    """Restore the root logger afterwards."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    for handler in logger.handlers:
        if handler not in handlers:
            handler.close()
    logger.handlers[:], logger.level = handlers, level
    logging.captureWarnings(False)


@pytest.fixture
def simulator(tmp_path, root):
    """Return a console that replaces FLARE's, with FLARE's own files."""
    (tmp_path / "server").mkdir()
    dynamic_log_config("concise", str(tmp_path / "server"), "")
    with console.SimulatorConsole(tmp_path, ["site-1", "site-2"], out=io.StringIO(), pause=1e9) as simulator_console:
        simulator_console.lines = lambda: simulator_console._board._out.getvalue().splitlines()
        yield simulator_console
    simulator_console.close()


def test_of_many_sites_the_first_few_speak_and_all_may_warn(tmp_path):
    sites = [f"site-{i}" for i in range(1, 17)]
    for site in sites:
        (tmp_path / site).mkdir()
        texts = (("INFO", f"{site} begins"), ("WARNING", f"{site} is slow"))
        records = [{"fullName": "shared_components.site", "levelname": name, "message": text} for name, text in texts]
        (tmp_path / site / console.RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    board = console.SimulatorConsole(tmp_path, sites, out=io.StringIO(), pause=1e9)
    board.look()
    lines = board._board._out.getvalue().splitlines()
    assert [line for line in lines if "begins" in line] == [f"{site} begins" for site in sites[:6]]
    assert [line for line in lines if "slow" in line] == [f"warning: {site} is slow" for site in sites]
    assert [line for line in lines if "more sites" in line] == [
        f"lines of 10 more sites are only in {tmp_path}/<site>/log.txt"
    ]


def test_only_flares_default_console_is_replaced():
    assert console.is_default(context("concise")) and console.is_default(context(None))
    assert not console.is_default(context("full")) and not console.is_default(context("/my/log_config.json"))


def test_our_lines_are_shown_and_foreign_lines_go_to_the_file(simulator, tmp_path, capfd):
    logging.getLogger("shared_components.federation.server").info("round 1 begins")
    logging.getLogger("shared_components.federation.server").warning("no update of site-2")
    logging.getLogger("nvflare.private.fed").warning("Late stream error")
    logging.getLogger("nvflare.a_name_of_this_test.ClientTaskWorker").info("ClientTaskWorker started to run")
    logging.getLogger("shared_components_of_others").info("not ours")
    assert simulator.lines() == ["round 1 begins", "warning: no update of site-2"]
    log = (tmp_path / "server" / "log.txt").read_text()
    assert "Late stream error" in log and "ClientTaskWorker started" in log and "round 1 begins" in log
    assert capfd.readouterr().out == ""


def test_a_foreign_error_is_one_sentence_with_the_files_path_until_the_outcome_is_known(simulator, tmp_path):
    flare = logging.getLogger("nvflare.private.fed.server.Runner")
    flare.error("cannot reach site-2\nTraceback ...\nValueError")
    log = tmp_path / "server" / "log.txt"
    assert simulator.lines() == [f"error at the server, by Runner: cannot reach site-2; the rest is in {log}"]
    simulator.end()
    flare.error("connection closed")
    logging.getLogger("shared_components.flare").warning("ours comes still")
    assert simulator.lines()[1:] == ["warning: ours comes still"]
    assert "connection closed" in log.read_text()


def record(name, level, message):
    return json.dumps({"fullName": name, "levelname": level, "message": message}) + "\n"


def test_new_records_of_the_sites_are_shown_once(simulator, tmp_path):
    for site in ("site-1", "site-2"):
        (tmp_path / site).mkdir()
    path = tmp_path / "site-1" / "log.json"
    path.write_text(record("shared_components.federation.site", "INFO", "begins from rendered")
                    + record("nvflare.client", "WARNING", "chatter")
                    + '{"fullName": "cut off by a fu\n' + '{"fullName": "shared_comp')  # fmt: skip
    simulator.look()
    simulator.look()
    assert simulator.lines() == ["begins from rendered"]
    whole = path.read_text().rpartition("\n")[0] + "\n"
    path.write_text(whole + record("nvflare.client.Cell", "ERROR", "no route"))
    simulator.look()
    log = tmp_path / "site-1" / "log.txt"
    assert simulator.lines()[1:] == [f"error at site-1, by Cell: no route; the rest is in {log}"]
    path.write_text(record("shared_components.x", "WARNING", "begun anew"))  # shorter: the file was rotated
    simulator.look()
    assert simulator.lines()[2:] == ["warning: begun anew"]


def test_the_sites_steps_are_shown_or_else_the_servers_own(simulator):
    simulator.show("round 1/2", lambda: {"site-1": Step("training", 1, 2)})
    report_progress("aggregating")
    assert simulator._board._read() == {"site-1": Step("training", 1, 2)}
    simulator.show("round 1/2", dict)
    assert simulator._board._read() == {"server": Step("aggregating")}


def test_the_sites_processes_log_only_to_files(tmp_path, root, capfd):
    fl_ctx = context("concise")
    console.mute_sites(fl_ctx, tmp_path)
    (tmp_path / "site-1").mkdir()
    dynamic_log_config(fl_ctx.args.log_config, str(tmp_path / "site-1"), "")  # as a worker does
    logging.getLogger("shared_components.federation.site").info("ours")
    logging.getLogger("nvflare.x").error("theirs")
    lines = (tmp_path / "site-1" / "log.json").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["ours", "theirs"]
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def log():
    """A separate logger, whose lines begin with LEVEL; the process's record factory is restored afterwards."""
    before = logging.getLogRecordFactory()
    mark_lines()
    written, logger = io.StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("LEVEL %(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield logger, written
    logging.setLogRecordFactory(before)


def test_a_line_break_in_a_name_or_an_error_begins_no_record(log):
    logger, written = log
    logger.error("no session for %s", FORGED)
    first, second, end = written.getvalue().split("\n")
    assert first == "LEVEL ERROR no session for hospital-a" and end == ""
    assert second == "    | 2026-01-01 00:00:00 - FederatedServer - INFO - all is wellend"
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("reading failed")
    lines = written.getvalue().splitlines()[2:]
    assert lines[0] == "LEVEL ERROR reading failed" and len(lines) > 3
    assert all(line.startswith(MARK.strip("\n")) for line in lines[1:])
    assert lines[1].endswith("Traceback (most recent call last):") and "\x1b" not in written.getvalue()


def test_a_single_line_is_unchanged(log):
    logger, written = log
    logger.info("round %d of %d: %s", 1, 2, "Schaft ü 30 %")
    logger.error("no error at all", exc_info=(None, None, None))
    assert written.getvalue() == "LEVEL INFO round 1 of 2: Schaft ü 30 %\nLEVEL ERROR no error at all\n"


def test_a_record_from_another_process_is_marked_too(log):
    made = logging.makeLogRecord({"msg": "a\nb", "exc_text": "c\nd", "levelno": 20, "levelname": "INFO"})
    assert isinstance(made, MarkedRecord) and made.getMessage() == f"a{MARK}b"
    logger, written = log
    logger.handle(made)
    assert written.getvalue() == "LEVEL INFO a\n    | b\n    | c\n    | d\n"
