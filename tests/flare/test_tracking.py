"""The server's tracker: each site's numbers under its name, by FLARE's receivers."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ProcessType

from shared_components.flare import tracking
from shared_components.flare.class_allow_list import policies_of_list
from shared_components.flare.deployment.kits import ALLOW_LIST
from shared_components.flare.tracking import TRACKERS, VARIABLE, check_tracker, track

SITES = ("site-1", "site-2")


def record(site, round, dice):
    """A record of a round, which counts from 0, with a text and a list, which are no numbers."""
    metrics = {"dice": {"mean": dice, "shaft, tip": 0.25}}
    return {"site": site, "round": round, "loss": {"dice": 0.5}, "metrics": metrics, "card": "text", "pictures": [1]}


RECORDS = [record(site, round, dice) for round in (0, 1) for site, dice in zip(SITES, (0.5, 0.75), strict=True)]


def place_in(folder):
    """Return what FLARE's receivers use of its context at the server."""
    workspace = SimpleNamespace(get_run_dir=lambda job: str(folder / "flare"))
    clients = [SimpleNamespace(name=name) for name in SITES]
    engine = SimpleNamespace(get_clients=lambda: clients, get_workspace=lambda: workspace)
    return SimpleNamespace(
        get_engine=lambda: engine, get_workspace=lambda: workspace, get_job_id=lambda: "0123-job",
        get_process_type=lambda: ProcessType.SERVER_JOB, get_prop=lambda *_: None, get_identity_name=lambda: "server",
        get_peer_context=lambda: None,
    )  # fmt: skip


def send(folder, records):
    """Send records to the chosen tracker."""
    with track("fedavg", folder / "run", place_in(folder)) as note:
        for one in records:
            note(one)


@pytest.fixture
def place(tmp_path):
    return place_in(tmp_path)


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """Return a function that sends the records to a tracker, and returns the run's folder."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # these two are set by the trackers, too
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "run").mkdir()

    def sent(name, records=RECORDS):
        monkeypatch.setenv(VARIABLE, name)
        if name != "wandb":
            send(tmp_path, records)
        else:  # FLARE forks a process for each site, and a fork may hang in a process with the threads of other tests
            program = f"from pathlib import Path; from {__name__} import *; send(Path({str(tmp_path)!r}), {records!r})"
            subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
        return tmp_path / "run"

    yield sent
    if mlflow := sys.modules.get("mlflow"):
        mlflow.set_tracking_uri(None)  # the receiver sets it for the process


def test_mlflow_has_a_run_per_site_with_its_scores_by_round_in_a_local_file_store(tracked):
    import mlflow

    client = mlflow.MlflowClient((tracked("mlflow") / "server" / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("fedavg")
    runs = {run.info.run_name.partition("-0123")[0]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == set(SITES) and all(run.info.status == "FINISHED" for run in runs.values())
    for site, dice in zip(SITES, (0.5, 0.75), strict=True):
        points = client.get_metric_history(runs[site].info.run_id, "metrics/dice/mean")
        assert sorted((point.step, point.value) for point in points) == [(1, dice), (2, dice)]
        assert set(runs[site].data.metrics) == {"loss/dice", "metrics/dice/mean", "metrics/dice/shaft_ tip"}
        assert runs[site].data.params == {}


def records_of(path):
    """Yield the records of a W&B file: LevelDB's log format, with 7 bytes before the first block of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def test_wandb_has_an_offline_run_per_site_with_its_scores_and_nothing_of_the_machine(tracked):
    files = sorted((tracked("wandb") / "server" / "wandb").glob("**/*.wandb"))
    assert len(files) == len(SITES)
    seen = {}
    for path in files:
        (run,) = [one.run for one in records_of(path) if one.HasField("run")]
        points = [one.history.item for one in records_of(path) if one.HasField("history")]
        rows = [{item.key or "/".join(item.nested_key): item.value_json for item in items} for items in points]
        seen[run.display_name.partition("-0123")[0]] = [(row["_step"], row["metrics/dice/mean"]) for row in rows]
        kinds = {one.WhichOneof("record_type") for one in records_of(path)}
        assert not kinds & {"stats", "output", "output_raw", "environment"} and not run.git.remote_url
        assert run.host == "server"  # not the name of the machine
    assert seen == {"site-1": [("1", "0.5"), ("2", "0.5")], "site-2": [("1", "0.75"), ("2", "0.75")]}


def test_tensorboard_has_a_folder_per_site_with_its_scores(tracked, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked("tensorboard")
    for site, dice in zip(SITES, (0.5, 0.75), strict=True):
        events = EventAccumulator(str(tmp_path / "flare" / "tb_events" / site)).Reload()
        assert [(one.step, one.value) for one in events.Scalars("metrics/dice/mean")] == [(1, dice), (2, dice)]
        assert events.Tags()["images"] == []


class Receiver:
    """Notes what a receiver gets."""

    def __init__(self, error=None):
        self.got, self.error = [], error

    def initialize(self, fl_ctx):
        self.got.append("begin")

    def save(self, fl_ctx, shareable, record_origin):
        if self.error:
            raise self.error
        data = AnalyticsData.from_dxo(from_shareable(shareable))
        self.got.append((record_origin, data.tag, data.value, data.step))

    def finalize(self, fl_ctx):
        self.got.append("end")


def test_only_the_numbers_of_a_record_are_sent(tracked, monkeypatch):
    receiver = Receiver()
    monkeypatch.setattr(tracking, "TRACKERS", {"tensorboard": lambda job, run: receiver})
    tracked("tensorboard", RECORDS[:1])
    numbers = [("loss/dice", 0.5), ("metrics/dice/mean", 0.5), ("metrics/dice/shaft_ tip", 0.25)]
    assert receiver.got == ["begin", *(("site-1", tag, value, 1) for tag, value in numbers), "end"]


def test_an_error_of_a_tracker_ends_the_tracking_with_a_warning_and_not_the_job(tracked, monkeypatch, caplog):
    receiver = Receiver(OSError("no route to host"))
    monkeypatch.setattr(tracking, "TRACKERS", {"tensorboard": lambda job, run: receiver})
    tracked("tensorboard")
    assert receiver.got == ["begin", "end"]
    assert "tensorboard tracks no more of job fedavg: OSError: no route to host" in caplog.text


def test_a_tracker_that_hangs_delays_neither_the_rounds_nor_the_end(tracked, monkeypatch, caplog):
    receiver = Receiver()
    receiver.initialize = lambda fl_ctx: time.sleep(30)
    monkeypatch.setattr(tracking, "TRACKERS", {"tensorboard": lambda job, run: receiver})
    monkeypatch.setattr(tracking, "LONGEST_END", 0.01)
    tracked("tensorboard")
    assert receiver.got == [] and "did not answer within 0.01 s" in caplog.text


def test_without_the_variable_nothing_is_tracked(tracked, monkeypatch):
    monkeypatch.setattr(tracking, "TRACKERS", {})
    assert not list(tracked("").iterdir())


def test_an_unknown_tracker_or_a_missing_package_is_one_sentence(monkeypatch):
    with pytest.raises(ValueError, match="SURGFL_TRACKING is 'neptune'; write mlflow, tensorboard, wandb, or"):
        check_tracker("neptune")
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    for name in ("mlflow", "wandb"):
        with pytest.raises(ValueError, match=r"pip install 'surgfl\[tracking\]'"):
            check_tracker(name)
    assert set(TRACKERS) == {"mlflow", "tensorboard", "wandb"}


def test_a_job_with_an_unknown_tracker_fails_before_it_begins_a_run(by_hand, workspace, monkeypatch):
    monkeypatch.setenv(VARIABLE, "neptune")
    controller = by_hand().start()
    assert controller.panics == ["SURGFL_TRACKING is 'neptune'; write mlflow, tensorboard, wandb, or leave it out"]
    assert not workspace.with_name("ws-state").exists()


def test_a_federation_sends_its_records_to_the_servers_tracker(by_hand, monkeypatch):
    receiver = Receiver()
    monkeypatch.setattr(tracking, "TRACKERS", {"tensorboard": lambda job, run: receiver})
    monkeypatch.setenv(VARIABLE, "tensorboard")
    assert by_hand(rounds=2).start().panics == []
    sent = receiver.got[1:-1]
    assert (receiver.got[0], receiver.got[-1]) == ("begin", "end")
    assert {(site, step) for site, _, _, step in sent} == {
        (s, r) for s in ("site-1", "site-2", "site-3") for r in (1, 2)
    }
    assert {tag.partition("/")[0] for _, tag, _, _ in sent} >= {"loss", "metrics"}


@pytest.mark.parametrize(
    "receiver",
    [
        "mlflow.mlflow_receiver.MLflowReceiver",
        "wandb.wandb_receiver.WandBReceiver",
        "tb.tb_receiver.TBAnalyticsReceiver",
    ],
)
def test_a_job_cannot_name_a_receiver_whose_address_it_would_choose(receiver):
    server, _ = policies_of_list(ALLOW_LIST)
    assert server.side == "server" and server.refusal(f"nvflare.app_opt.tracking.{receiver}")
    assert not server.refusal("shared_components.flare.controller.FederationController")
