"""A site's log of its tasks: bytes counted by hand, cut lines, a disk that takes nothing."""

import json
from types import SimpleNamespace

import torch

from shared_components.federation.messages import Message
from shared_components.federation.site.task_log import log_task
from shared_components.reporting.run_metrics import CountedLog, SiteCounts

REQUEST = SimpleNamespace(
    task="round",
    round=2,
    answered=1,
    pieces={"w": torch.zeros(3)},
    groups={"g": {"b": torch.zeros(5, dtype=torch.int8)}},
)
REPLY = Message({}, {"w": torch.zeros(3, dtype=torch.bfloat16)}, {"x": {"s": torch.zeros(1, dtype=torch.int64)}})


def test_a_task_is_logged_with_its_bytes_and_seconds(tmp_path):
    log_task(tmp_path / "site", REQUEST, REPLY, {"training": 2.0})
    (record,) = map(json.loads, (tmp_path / "site" / "tasks.jsonl").read_text().splitlines())
    assert record.pop("time") > 1.7e9
    assert record == {
        "task": "round", "round": 2, "answered": 1, "sent": 3 * 2 + 8, "received": 3 * 4 + 5,
        "seconds": {"training": 2.0},
    }  # fmt: skip


def test_a_line_that_a_crash_cut_off_costs_no_other_line(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task": "rou')
    log_task(tmp_path, REQUEST, REPLY, {})
    log_task(tmp_path, REQUEST, REPLY, {})
    assert len(file.read_text().splitlines()) == 3
    assert {"surgfl_sent_bytes": 28}.items() <= {
        s.name: s.value for s in CountedLog(file, SiteCounts).read().samples()
    }.items()


def test_a_log_that_cannot_be_written_ends_no_task(tmp_path, caplog):
    (tmp_path / "tasks.jsonl").mkdir()
    log_task(tmp_path, REQUEST, REPLY, {})
    assert "could not be written" in caplog.text
