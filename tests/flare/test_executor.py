"""What a site answers, bad input above all: one sentence that names the site and the file or key."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from threading import Timer

import cv2
import pytest
import yaml
from nvflare.apis.signal import Signal

from shared_components.common.atomic import not_written
from shared_components.federation.messages import FederationError, Message
from shared_components.federation.protocol import Answers, conduct
from shared_components.federation.runs import open_run, working_on
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.site.site_setup import SiteSetup
from shared_components.flare import wire
from shared_components.flare.controller import read_reply
from shared_components.flare.executor import SiteExecutor
from tests.federation.conftest import make_job
from tests.flare.conftest import Place, copied
from tests.flare.simulator import ROOT


@pytest.fixture
def data(tmp_path, scenes, monkeypatch):
    """Return a copy of site-1's data, which a test may spoil."""
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(tmp_path / "data"))
    monkeypatch.delenv("SURGFL_STATE", raising=False)
    shutil.copytree(scenes[0].parent, tmp_path / "data" / "site-1")
    return tmp_path / "data" / "site-1"


def begin(tmp_path, *sites):
    """Return a server, its conversation and what it asks first."""
    job = make_job("fedavg")
    server = ServerRunner(job, sites, open_run(job, tmp_path / "ws-state", resume=False))
    conversation = conduct(server)
    return server, conversation, next(conversation)


def answer(tmp_path, ask, site, *, simulator=True, signal=None):
    """Return the executor's answer to what is asked: a message, or the reason why there is none."""
    place = Place(tmp_path / "ws", site, simulator=simulator)
    task = copied(wire.to_shareable(ask.messages[site]))
    return read_reply(copied(SiteExecutor().execute(ask.task, task, place, signal or Signal())), ask.task)


def enrol(tmp_path, *, simulator=True):
    """Return the executor's answer to an enrolment."""
    return answer(tmp_path, begin(tmp_path, "site-1")[2], "site-1", simulator=simulator)


def change_site(folder, **changes):
    path = folder / "site.yaml"
    values = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))


def masks(folder):
    """Return the masks of the first frame of each instrument's folder (EndoVis 2017 layout)."""
    found = sorted((folder / "endovis2017").rglob("ground_truth/*/*.png"))
    assert found
    return found


def test_a_good_site_enrols(tmp_path, data):
    reply = enrol(tmp_path)
    assert reply.header["samples"] == 4 and reply.pieces
    assert not {"job", "classes"} & reply.header.keys()


def misspell(folder):
    text = (folder / "site.yaml").read_text()
    (folder / "site.yaml").write_text(text.replace("dataset:", "datset:"))


def remove_mask(folder):
    masks(folder)[0].unlink()


def unknown_id(folder):
    path = masks(folder)[0]
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    mask[:4, :4] = 77
    cv2.imwrite(str(path), mask)


def other_size(folder):
    path = masks(folder)[0]
    cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[:-2])


def unreadable(folder):
    next(p for p in sorted((folder / "endovis2017").rglob("*.*")) if "left_frames" in p.parts).write_bytes(b"?")


@pytest.mark.parametrize(
    "spoil, words",
    [
        (misspell, "unknown key 'datset'"),
        (remove_mask, "ground_truth"),
        (unknown_id, "77"),
        (other_size, "ground_truth"),
        (unreadable, "left_frames"),
        (lambda f: change_site(f, split={"train": ["instrument_dataset_99"]}), "instrument_dataset_99"),
        (lambda f: change_site(f, split={"validation": ["instrument_dataset_2"]}), "train"),
        (lambda f: change_site(f, classes="party"), "party"),
        (lambda f: change_site(f, root="nowhere"), "nowhere"),
        (lambda f: (f / "site.yaml").unlink(), "there is no description of its data"),
    ],
)
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
    assert reason == "site site-1 refused; its own log says why"
    assert str(data) in caplog.text and "datset" in caplog.text


@pytest.mark.parametrize("simulator", [True, False])
def test_a_full_disk_is_one_sentence_in_the_sites_own_log(tmp_path, data, caplog, monkeypatch, simulator):
    """Of the file and of what to do, without the libraries that were told so."""

    def full(self, path, **_):
        raise not_written(path, OSError(28, "No space left on device"))

    conversation, ask = begin(tmp_path, "site-1")[1:]
    ask = conversation.send(Answers({"site-1": answer(tmp_path, ask, "site-1", simulator=simulator)}))
    monkeypatch.setattr(SiteSetup, "save_model", full)
    reason = answer(tmp_path, ask, "site-1", simulator=simulator)
    (line,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert line.exc_info is None and line.getMessage().startswith(f"site site-1: {tmp_path}")
    assert "best.safetensors: could not be written (No space left on device); check the disk" in line.getMessage()
    assert reason == (line.getMessage() if simulator else "site site-1 refused; its own log says why")


def test_a_site_of_another_class_map_is_named_with_the_first(tmp_path, data, scenes):
    shutil.copytree(scenes[1].parent, data.parent / "site-2")
    change_site(data, classes="shaft_manipulator")
    _, conversation, ask = begin(tmp_path, "site-1", "site-2")
    replies = {name: answer(tmp_path, ask, name) for name in ask.messages}
    assert all(isinstance(reply, Message) for reply in replies.values()), replies
    with pytest.raises(FederationError, match="site-1 and site-2 differ in their task"):
        conversation.send(Answers(replies))


def test_the_process_is_announced_in_a_simulator_only(tmp_path, data):
    enrol(tmp_path)
    assert list((tmp_path / "ws-state").rglob("process"))
    enrol(tmp_path, simulator=False)
    assert not list((tmp_path / "ws" / "site-1" / "surgfl").rglob("process"))


def test_a_message_that_is_not_ours_is_refused(tmp_path, data):
    place = Place(tmp_path / "ws", "site-1")
    reply = SiteExecutor().execute("round", copied(wire.to_shareable(Message({}))), place, Signal())
    assert "site-1" in reply.get_header(wire.ERROR)


def test_training_stops_when_the_task_is_ended(tmp_path, data):
    server, conversation, ask = begin(tmp_path, "site-1")
    ask = conversation.send(Answers({"site-1": answer(tmp_path, ask, "site-1")}))
    ended = Signal()
    ended.trigger(True)
    reason = answer(tmp_path, ask, "site-1", signal=ended)
    assert reason == "site site-1: the server ended the task during training"
    assert not list((tmp_path / "ws-state").rglob("round-*"))
    assert json.loads((server.folder / "run.json").read_text())["sites"] == ["site-1"]


@pytest.fixture
def held_run(tmp_path, data):
    """Return what a server asks to enrol, and what releases the run that another process of this site works on."""
    server, _, ask = begin(tmp_path, "site-1")
    folder = tmp_path / "ws" / "site-1" / "surgfl" / "test-fedavg" / server.folder.name
    folder.mkdir(parents=True)
    with ExitStack() as other:
        other.enter_context(working_on(folder))
        yield ask, other.close


def test_a_site_waits_until_its_old_process_of_a_resumed_run_has_ended(tmp_path, held_run, caplog):
    ask, release = held_run
    Timer(0.5, release).start()
    with caplog.at_level("INFO"):
        assert isinstance(answer(tmp_path, ask, "site-1", simulator=False), Message)
    assert caplog.text.count("another process works on this run; waiting for its end") == 1


def test_a_site_waits_for_its_old_process_no_longer_than_the_task_lasts(tmp_path, held_run, caplog):
    ended = Signal()
    Timer(0.5, ended.trigger, [True]).start()
    reason = answer(tmp_path, held_run[0], "site-1", simulator=False, signal=ended)
    assert reason == "site site-1 refused; its own log says why"
    assert "another process works on this run; wait for its end" in caplog.text


@pytest.mark.slow
def test_the_executor_imports_ahead_what_an_optimizer_will_import():
    """Without it a task waits a second longer for its first training step."""
    code = (
        "import sys; from shared_components.flare.executor import _import_ahead; _import_ahead();"
        "before = set(sys.modules); import torch;"
        "torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step();"
        "import shared_components.federation.site.runner;"
        "print(len(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and int(done.stdout) < 30, done


def test_a_deployments_site_finds_its_models_where_its_log_says(tmp_path, data, caplog):
    ask = (conversation := begin(tmp_path, "site-1")[1:])[1]
    with caplog.at_level("INFO"), pytest.raises(StopIteration):
        while True:
            reply = answer(tmp_path, ask, "site-1", simulator=False)
            ask = conversation[0].send(Answers({"site-1": reply}))
    latest = tmp_path / "ws" / "site-1" / "surgfl" / "test-fedavg" / "latest" / "site-1"
    assert (latest / "model.safetensors").is_file() and (latest / "best.safetensors").is_file()
    assert f"site site-1: models in {latest}" in caplog.text
    assert not list(latest.glob("*.json.*")) and not (latest / "step.json").exists()
