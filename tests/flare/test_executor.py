"""A site's answers: for bad data one sentence with the site and the file; messages through FLARE's serialiser."""

import json
import pickle
import shutil
import subprocess
import sys
from contextlib import ExitStack
from threading import Timer

import cv2
import pytest
import torch
import yaml
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs

from shared_components.common.atomic import not_written
from shared_components.federation.messages import Message
from shared_components.federation.protocol import Answers, conduct
from shared_components.federation.runs.run_folder import lock_run, open_run
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.site_setup import SiteSetup
from shared_components.flare import wire
from shared_components.flare.exchange import read_reply
from shared_components.flare.executor import SiteExecutor
from tests.federation.conftest import empty, make_job
from tests.flare.conftest import Place, copied
from tests.flare.simulator import ROOT


@pytest.fixture
def data(tmp_path, scenes, monkeypatch):
    """Return a copy of site-1's data that a test may spoil."""
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(tmp_path / "data"))
    monkeypatch.delenv("SURGFL_STATE", raising=False)
    shutil.copytree(scenes[0].parent, tmp_path / "data" / "site-1")
    return tmp_path / "data" / "site-1"


def begin(tmp_path):
    """Return a server of site-1, its conversation and its first request."""
    job = make_job("fedavg")
    server = ServerRunner(job, ["site-1"], open_run(job, tmp_path / "ws-state", resume=False))
    conversation = conduct(server)
    return server, conversation, next(conversation)


def answer(tmp_path, ask, *, simulator=True, signal=None):
    """Return the executor's answer to a request: a message, or the reason why there is none."""
    place = Place(tmp_path / "ws", "site-1", simulator=simulator)
    task = copied(wire.to_shareable(ask.messages["site-1"]))
    return read_reply(copied(SiteExecutor().execute(ask.task, task, place, signal or Signal())), ask.task)


def enrol(tmp_path, *, simulator=True):
    return answer(tmp_path, begin(tmp_path)[2], simulator=simulator)


def change_site(folder, **changes):
    path = folder / "site.yaml"
    values = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))


def masks(folder):
    """Return the masks of each instrument's folder (EndoVis 2017 layout)."""
    return sorted((folder / "endovis2017").rglob("ground_truth/*/*.png"))


def misspell(folder):
    text = (folder / "site.yaml").read_text()
    (folder / "site.yaml").write_text(text.replace("dataset:", "datset:"))


def spoil_mask(change):
    def spoil(folder):
        path = str(masks(folder)[0])
        cv2.imwrite(path, change(cv2.imread(path, cv2.IMREAD_UNCHANGED)))

    return spoil


def unknown_id(mask):
    mask[:4, :4] = 77
    return mask


def unreadable(folder):
    next(p for p in sorted((folder / "endovis2017").rglob("*.*")) if "left_frames" in p.parts).write_bytes(b"?")


@pytest.mark.parametrize(
    "spoil, words",
    [
        (misspell, "unknown key 'datset'"), (lambda f: masks(f)[0].unlink(), "ground_truth"),
        (spoil_mask(unknown_id), "77"), (spoil_mask(lambda mask: mask[:-2]), "ground_truth"),
        (unreadable, "left_frames"),
        (lambda f: change_site(f, split={"train": ["instrument_dataset_99"]}), "instrument_dataset_99"),
        (lambda f: change_site(f, split={"validation": ["instrument_dataset_2"]}), "train"),
        (lambda f: change_site(f, classes="party"), "party"), (lambda f: change_site(f, root="nowhere"), "nowhere"),
        (lambda f: (f / "site.yaml").unlink(), "there is no description of its data"),
    ],
)  # fmt: skip
def test_bad_data_are_refused_by_site_and_file_before_a_round(tmp_path, data, spoil, words):
    spoil(data)
    reason = enrol(tmp_path)
    assert isinstance(reason, str) and words in reason, reason
    assert "site-1" in reason and str(data) in reason and "Error" not in reason
    assert not list((tmp_path / "ws-state").rglob("round-*"))


def test_a_missing_description_names_the_variable_too(tmp_path, data, monkeypatch):
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(tmp_path / "not-there" / "{site}.yaml"))
    assert "SURGFL_SITE_CONFIG" in (reason := enrol(tmp_path)) and "not-there/site-1.yaml" in reason


def test_a_real_deployment_keeps_file_names_at_the_site(tmp_path, data, caplog):
    misspell(data)
    reason = enrol(tmp_path, simulator=False)
    assert reason == "site site-1 refused; the reason is in its own log"
    assert str(data) in caplog.text and "datset" in caplog.text


@pytest.mark.parametrize("simulator", [True, False])
def test_a_full_disk_is_one_sentence_in_the_sites_own_log(tmp_path, data, caplog, monkeypatch, simulator):
    """The sentence names the file and the remedy, and no library."""

    def full(self, path, **_):
        raise not_written(path, OSError(28, "No space left on device"))

    conversation, ask = begin(tmp_path)[1:]
    ask = conversation.send(Answers({"site-1": answer(tmp_path, ask, simulator=simulator)}))
    monkeypatch.setattr(SiteSetup, "save_model", full)
    reason = answer(tmp_path, ask, simulator=simulator)
    (line,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert line.exc_info is None and line.getMessage().startswith(f"site site-1: {tmp_path}")
    assert "best.safetensors: could not be written (No space left on device); check the disk" in line.getMessage()
    assert reason == (line.getMessage() if simulator else "site site-1 refused; the reason is in its own log")


def test_a_good_site_enrols_and_its_process_is_announced_in_a_simulator_only(tmp_path, data):
    reply = enrol(tmp_path)
    assert reply.header["samples"] == 4 and reply.pieces
    assert list((tmp_path / "ws-state").rglob("process"))
    enrol(tmp_path, simulator=False)
    assert not list((tmp_path / "ws" / "site-1" / "surgfl").rglob("process"))


def test_training_stops_when_the_task_is_ended(tmp_path, data):
    server, conversation, ask = begin(tmp_path)
    ask = conversation.send(Answers({"site-1": answer(tmp_path, ask)}))
    ended = Signal()
    ended.trigger(True)
    reason = answer(tmp_path, ask, signal=ended)
    assert reason == "site site-1: the server ended the task during training"
    assert not list((tmp_path / "ws-state").rglob("round-*"))
    assert json.loads((server.folder / "run.json").read_text())["sites"] == ["site-1"]


@pytest.fixture
def held_run(tmp_path, data):
    """Return the request of an enrolment, and a function that ends the other process of this site."""
    server, _, ask = begin(tmp_path)
    folder = tmp_path / "ws" / "site-1" / "surgfl" / "test-fedavg" / server.folder.name
    folder.mkdir(parents=True)
    with ExitStack() as other:
        other.enter_context(lock_run(folder))
        yield ask, other.close


def test_a_site_waits_until_its_old_process_of_a_resumed_run_has_ended(tmp_path, held_run, caplog):
    ask, release = held_run
    Timer(0.5, release).start()
    with caplog.at_level("INFO"):
        assert isinstance(answer(tmp_path, ask, simulator=False), Message)
    assert caplog.text.count("another process works on this run; waiting for its end") == 1


def test_a_site_waits_for_its_old_process_no_longer_than_the_task_lasts(tmp_path, held_run, caplog):
    ended = Signal()
    Timer(0.5, ended.trigger, [True]).start()
    reason = answer(tmp_path, held_run[0], simulator=False, signal=ended)
    assert reason == "site site-1 refused; the reason is in its own log"
    assert "another process works on this run; wait for its end" in caplog.text


@pytest.mark.slow
def test_the_executor_imports_ahead_the_modules_of_an_optimizer():
    """Without it a task waits a second longer for its first training step."""
    code = (
        "import sys; from shared_components.flare.executor import _import_ahead; _import_ahead();"
        "before = set(sys.modules); import torch; from shared_components.core.optimizers import AdamW;"
        "AdamW([torch.nn.Parameter(torch.zeros(1))]).step(); import shared_components.federation.site.runner;"
        "print(len(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and int(done.stdout) < 30, done


def test_a_deployments_site_finds_its_models_where_its_log_says(tmp_path, data, caplog):
    _, conversation, ask = begin(tmp_path)
    with caplog.at_level("INFO"), pytest.raises(StopIteration):
        while True:
            ask = conversation.send(Answers({"site-1": answer(tmp_path, ask, simulator=False)}))
    latest = tmp_path / "ws" / "site-1" / "surgfl" / "test-fedavg" / "latest" / "site-1"
    assert (latest / "model.safetensors").is_file() and (latest / "best.safetensors").is_file()
    assert f"site site-1: models in {latest}" in caplog.text
    assert not list(latest.glob("*.json.*")) and not (latest / "step.json").exists()


# ---- messages by the serialiser


@pytest.fixture
def sent(monkeypatch):
    """Return a function that sends a message through FLARE's serialiser, which does not pickle."""
    wire.register()
    for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    return lambda *message: wire.from_wire(copied(wire.to_shareable(Message(*message))))


HEADER = {"round": 3, "classes": ["background", "shaft"], "style": [[0.1, 0.2, 0.3]], "none": None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_and_values_come_back_and_nothing_is_pickled(sent, dtype):
    rows = torch.arange(12).reshape(4, 3).to(dtype)[1:3]  # a view, as pieces are
    received = sent(HEADER, {"q.weight[1:3]": rows}, {"sensitivity": {"b": torch.zeros(())}, "pieces": {"w": rows}})
    assert received.header == HEADER and received.groups.keys() == {"sensitivity", "pieces"}
    for tensor in (received.pieces["q.weight[1:3]"], received.groups["pieces"]["w"]):
        assert tensor.dtype == dtype and torch.equal(tensor, rows)
    assert received.groups["sensitivity"]["b"].shape == ()


def test_numbers_keep_every_bit_and_a_group_without_tensors_is_left_out(sent):
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 0.1])
    received = sent({}, {"w": special}, {"sensitivity": {}})
    assert received.pieces["w"].view(torch.int32).tolist() == special.view(torch.int32).tolist()
    assert received.groups == {}
    assert empty(sent({}, {}, {"sensitivity": {}}))
    view = Message({}, {"w[0:10]": torch.zeros(1000, 100)[:10]})
    assert len(fobs.dumps(wire.to_shareable(view))) < 2 * 10 * 100 * 4, "a view sends only its own rows"


def test_objects_of_other_jobs_and_tensors_under_an_unknown_name_are_refused():
    foreign = DXO(DataKind.WEIGHTS, data={"w": torch.ones(1)})
    with pytest.raises(ValueError, match="no message of this job"):
        wire.from_wire(foreign.to_shareable())
    collection = DXO(DataKind.COLLECTION, data={"weights": foreign}, meta={wire.HEADER: "{}"})
    with pytest.raises(ValueError, match="'weights', which is neither pieces nor a group"):
        wire.from_wire(collection.to_shareable())
