"""Metrics of a run, from logs with values worked by hand."""

import json

import pytest

from shared_components.reporting.run_metrics import METRICS, CountedLog, Sample, ServerCounts, SiteCounts, exposition


def site_record(r, site, total, *, up=10, down=7):
    seconds = {} if total is None else {"seconds": {"total": total, "training": 1.0}}
    sizes = {"up": {"global": up, "extra": 1}, "down": {"global": down}}
    return {"kind": "site", "round": r, "site": site, "bytes": sizes, **seconds}


def aggregation(r, wall, *rejected):
    lost = [{"site": site, "reason": "x"} for site in rejected]
    return {"kind": "aggregation", "round": r, "seconds_wall": wall, "rejected": lost}


SERVER = [
    site_record(0, "a", 3.0), site_record(0, "b", 5.0), aggregation(0, 6.0),
    site_record(1, "a", 2.0), site_record(1, "b", None), aggregation(1, 9.0, "a", "c"),
]  # fmt: skip


def counted(counts, records):
    for record in records:
        counts.add(record)
    return {(sample.name.removeprefix("surgfl_"), sample.site): sample.value for sample in counts.samples()}


def test_a_server_counts_its_records():
    assert counted(ServerCounts(), SERVER) == {
        ("rounds_done", ""): 2, ("round_seconds", ""): 9.0, ("sent_bytes", ""): 28, ("received_bytes", ""): 44,
        ("site_wait_seconds", "a"): 2.0, ("site_wait_seconds", "b"): 9.0, ("site_wait_seconds", "c"): 9.0,
        ("rejected_updates", "a"): 1, ("rejected_updates", "b"): 0,
        ("missing_updates", "a"): 0, ("missing_updates", "b"): 0, ("missing_updates", "c"): 1,
    }  # fmt: skip


def task(name, r, answered, **seconds):
    sizes = {"sent": 10, "received": 100}
    return {"task": name, "round": r, "answered": answered, **sizes, "seconds": seconds, "time": 1000.0 + r}


def test_a_site_counts_its_tasks_and_updates_that_the_server_did_not_use():
    tasks = [
        task("enrol", 0, None, total=9.0), task("round", 0, None, total=4.0, training=2.0, validating=1.0),
        task("round", 1, 0, total=3.0, training=2.5), task("round", 2, 0, total=3.5, training=2.5),
        task("round", 2, 1, total=3.25, training=2.75),  # the server was killed and repeats the round
        task("finish", 3, 2, total=1.0, validating=0.5),
    ]  # fmt: skip
    assert counted(SiteCounts(), tasks) == {
        ("rounds_done", ""): 3, ("sent_bytes", ""): 60, ("received_bytes", ""): 600, ("rejected_updates", ""): 1,
        ("last_round_timestamp_seconds", ""): 1002.0, ("round_seconds", ""): 3.25,
        ("training_seconds", ""): 2.75, ("validation_seconds", ""): 1.0,
    }  # fmt: skip


def test_a_growing_log_is_read_once_and_a_changed_log_anew(tmp_path, caplog):
    class Lines:
        def __init__(self):
            self.records = []

        def add(self, record):
            self.records.append(record)

        def samples(self):
            return ()

    made = []
    log = CountedLog(tmp_path / "log", lambda: made.append(Lines()) or made[-1])
    log.path.write_text("1\n2\n3")
    assert log.read().records == [1, 2], "the last line is being written"
    log.path.write_text("1\n2\n34\n")
    assert log.read().records == [1, 2, 34] and len(made) == 1
    log.path.write_text("1\n2\n")  # a resume removes what its state does not know
    assert log.read().records == [1, 2] and len(made) == 2
    log.path.write_text("1\n5\n6\n7\n")
    assert log.read().records == [1, 5, 6, 7] and len(made) == 3
    with log.path.open("a") as file:
        file.write("cut o\n8\n")
    assert log.read().records == [1, 5, 6, 7, 8] and "is not JSON" in caplog.text


def test_the_text_has_help_type_and_escaped_labels():
    samples = [Sample("surgfl_rounds", 3), Sample("surgfl_site_connected", True, 'a"\\\n')]
    text = exposition(samples, party="p", role="server")
    assert text.splitlines() == [
        f"# HELP surgfl_rounds {METRICS['surgfl_rounds']}", "# TYPE surgfl_rounds gauge",
        'surgfl_rounds{party="p",role="server"} 3.0',
        f"# HELP surgfl_site_connected {METRICS['surgfl_site_connected']}", "# TYPE surgfl_site_connected gauge",
        'surgfl_site_connected{party="p",role="server",site="a\\"\\\\\\n"} 1.0',
    ]  # fmt: skip
    assert not exposition([], party="p", role="site")


@pytest.mark.parametrize("line", [json.dumps({"kind": "outsider"}), json.dumps({"kind": "final", "site": "a"})])
def test_other_records_count_nothing(line):
    assert counted(ServerCounts(), [json.loads(line)])["rounds_done", ""] == 0
