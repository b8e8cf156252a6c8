"""Metrics of kits: written for node_exporter, complete, without paths; dashboard and rules name no other metric."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from nvflare.apis.event_type import EventType

from shared_components.cli import main
from shared_components.flare import metrics_file
from shared_components.flare.deployment import kits as kit_files
from shared_components.flare.deployment.kits import METRICS as COMPONENT
from shared_components.flare.deployment.kits import find_kit, open_problem
from shared_components.flare.metrics_file import MetricsFile, PartyMetrics, write_metrics
from shared_components.reporting.run_metrics import METRICS
from tests.flare.deployment.conftest import kits, made  # noqa: F401 (fixtures)
from tests.reporting.test_run_metrics import SERVER, task

MONITORING = Path(kit_files.__file__).with_name("monitoring")
LINE = re.compile(r'(\w+)\{party="([^"]*)",role="(\w+)"(?:,site="([^"]*)")?\} (\S+)')


def client(name, leaf=True):
    return SimpleNamespace(name=name, get_is_leaf=lambda: leaf)


def engine(part):
    if part == "server":
        present = [client("hospital-a"), client("north", leaf=False)]
        return SimpleNamespace(run_processes={"job": 1}, get_clients=lambda: present)
    return SimpleNamespace(get_all_job_ids=lambda: ["job", "other"])


def write_runs(kits):  # noqa: F811
    """Write a run of the server and one of hospital-a; older runs are beside them."""
    for when in ("20260101-100000", "20260102-100000"):
        run = kits / "localhost" / "surgfl" / "fedavg" / when
        (run / "server").mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"rounds": 9, "sites": ["hospital-a", "hospital-b"]}))
        own = kits / "hospital-a" / "surgfl" / "fedavg" / when / "hospital-a"
        own.mkdir(parents=True)
        (own / "enrolled.json").write_text(json.dumps({"job": {"rounds": 9}}))
    (run / "server" / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in SERVER))
    tasks = [task("round", 0, None, total=4.0, training=2.0, validating=1.0), task("round", 1, 0, total=3.0)]
    (own / "tasks.jsonl").write_text("".join(json.dumps(record) + "\n" for record in tasks))
    os.utime(run / "server" / "rounds.jsonl", (5e9, 5e9))  # of the newest run at the server, whatever the time is


def exported(kits, name, folder):  # noqa: F811
    kit = find_kit(kits / name)
    write_metrics(PartyMetrics(kit, "server" if name == "localhost" else name, engine(kit.part)), folder)
    (file,) = folder.glob("*.prom")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    parsed = [LINE.fullmatch(line) for line in lines]
    assert all(parsed), lines
    values = {(match[1], match[4] or ""): float(match[5]) for match in parsed if match}
    assert len(values) == len(lines), "no series occurs twice"
    return file, values


def test_server_and_site_export_every_metric_without_a_path(kits, tmp_path):  # noqa: F811
    write_runs(kits)
    file, server = exported(kits, "localhost", tmp_path / "server")
    assert file.name == "surgfl-server.prom" and file.stat().st_mode & 0o777 == 0o644
    assert str(tmp_path) not in file.read_text() and "fedavg" not in file.read_text()
    assert server["surgfl_rounds_done", ""] == 2 and server["surgfl_rounds", ""] == 9
    assert server["surgfl_last_round_timestamp_seconds", ""] == 5e9
    connected = {site: value for (name, site), value in server.items() if name == "surgfl_site_connected"}
    assert connected == {"hospital-a": 1, "hospital-b": 0}
    file, site = exported(kits, "hospital-a", tmp_path / "site")
    assert "hospital-b" not in file.read_text() and site["surgfl_running_jobs", ""] == 2
    assert site["surgfl_rounds_done", ""] == 2 and site["surgfl_sent_bytes", ""] == 20
    assert 39 < site["surgfl_certificate_days", ""] <= 40, "as provisioned"
    assert site["surgfl_free_disk_bytes", ""] > 1e6
    assert abs(server["surgfl_written_timestamp_seconds", ""] - time.time()) < 60
    assert {name for name, _ in {**server, **site}} == set(METRICS)


def test_without_a_run_or_with_a_damaged_one_the_rest_is_written(kits, tmp_path, caplog):  # noqa: F811
    _, values = exported(kits, "hospital-a", tmp_path / "out")
    party = ("written_timestamp_seconds", "free_disk_bytes", "certificate_days", "running_jobs")
    assert {name for name, _ in values} == {f"surgfl_{name}" for name in party}
    write_runs(kits)
    for path in (kits / "hospital-a").rglob("enrolled.json"):
        path.write_text("{")
    party = PartyMetrics(find_kit(kits / "hospital-a"), "hospital-a", engine("site"))
    for _ in range(2):
        write_metrics(party, tmp_path / "out")
    assert "surgfl_free_disk_bytes" in (tmp_path / "out" / "surgfl-hospital-a.prom").read_text()
    assert caplog.text.count("metrics are missing or incomplete") == 1


def test_a_folder_that_cannot_be_written_ends_nothing(kits, tmp_path, caplog):  # noqa: F811
    (tmp_path / "file").write_text("")
    write_metrics(PartyMetrics(find_kit(kits / "hospital-a"), "hospital-a", engine("site")), tmp_path / "file")
    assert "could not be written" in caplog.text


def test_only_the_partys_own_process_writes_from_its_start_to_its_end(kits, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "argv", ["client", "-m", str(kits / "hospital-a")])
    context = SimpleNamespace(get_identity_name=lambda: "hospital-a", get_engine=lambda: engine("site"))
    component = MetricsFile(folder=str(tmp_path / "out"), seconds=1)
    component.handle_event(EventType.START_RUN, context)
    assert not (tmp_path / "out").exists()
    writes, write = [], metrics_file.write_metrics

    def write_once(*args):
        write(*args)
        component._end.set()
        writes.append(1)

    monkeypatch.setattr(metrics_file, "write_metrics", write_once)
    component.handle_event(EventType.SYSTEM_START, context)
    for _ in range(500):
        if writes:
            break
        time.sleep(0.01)
    component.handle_event(EventType.SYSTEM_END, context)
    assert writes == [1] and (tmp_path / "out" / "surgfl-hospital-a.prom").is_file()


def components(kits, name):  # noqa: F811
    entries = json.loads((kits / name / "local" / "resources.json").read_text())["components"]
    return [entry for entry in entries if entry["path"] == COMPONENT]


@pytest.mark.parametrize("name", ["hospital-a", "localhost"])
def test_a_kit_chooses_its_metrics_and_stays_restricted(kits, name, tmp_path, capsys):  # noqa: F811
    kit = str(kits / name)
    assert components(kits, name) == []
    for folder in ("one", "two"):
        assert main(["secure-kit", kit, "--metrics", str(tmp_path / folder)]) == 0
        (entry,) = components(kits, name)
        assert entry["args"] == {"folder": str(tmp_path / folder)} and open_problem(find_kit(kits / name)) == ""
    assert main(["secure-kit", kit]) == 0 and len(components(kits, name)) == 1, "an upgrade keeps it"
    assert main(["secure-kit", kit, "--no-metrics"]) == 0 and components(kits, name) == []
    assert "metrics are written to" in capsys.readouterr().out


def test_an_administrator_has_no_metrics(kits, capsys):  # noqa: F811
    assert main(["secure-kit", str(kits / "anna@example.org"), "--metrics", "/x"]) == 2
    assert "leave out --metrics" in capsys.readouterr().err


def test_the_component_imports_no_torch():
    code = "import sys, shared_components.flare.metrics_file; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def names(expression):
    return set(re.findall(r"surgfl_\w+", expression))


def test_dashboard_and_rules_name_only_exported_metrics():
    board = json.loads((MONITORING / "dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and board["uid"] and board["title"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    shown = set().union(*(names(target["expr"]) for panel in panels for target in panel["targets"]))
    assert shown == set(METRICS), "and every metric is shown"
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert names(rule["expr"]) and names(rule["expr"]) <= set(METRICS), rule["alert"]
        assert {"summary", "remedy"} == set(rule["annotations"])
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 6
