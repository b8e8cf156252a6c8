"""A stopped or killed pre-training resumes to the same bits as an undisturbed run; errors are one sentence."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
import torch

from shared_components.cli import main
from shared_components.data.splits import SEEN, seen_videos_entry
from shared_components.federation.runs.store import load_tensors
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from shared_components.weights.pretraining import train
from shared_components.weights.pretraining.learner import Learner
from shared_components.weights.pretraining.plan import Phase
from tests.federation.conftest import same

pytestmark = pytest.mark.slow

SHORT = (Phase(64, 64, 2),)


class Killed(BaseException):
    """Stands for kill -9: our code does not catch it."""


def at_step(number, what):
    """Return a `Learner.step` that does something instead of, or before, one step."""
    usual = Learner.step

    def step(self, at, batch):
        if at == number:
            what()
        return usual(self, at, batch)

    return step


def weights(folder):
    return load_weights(folder / "model.safetensors")


def records(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def comparable(records):
    timed = ("seconds", "pictures_per_second")
    return [{key: value for key, value in record.items() if key not in timed} for record in records]


def test_the_folder_has_the_averaged_model_its_facts_a_log_and_a_state(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "LOGGED", 5)
    assert begin(check_every=6).run()
    facts = json.loads((tmp_path / "run" / "pretraining.json").read_text())
    assert facts["steps"] == facts["steps_planned"] == 12 and facts["frames"] == 24 and facts["seed"] == 5
    assert facts["sizes"] == ["64x64:7", "64x96:5"] and facts["bundle"] == "toy" and facts["commit"]
    assert facts["hardware"] and facts["threads"] == 1 and facts["seconds"] > 0 and "command" in facts
    notes = load_metadata(tmp_path / "run" / "model.safetensors")
    assert notes["method"] == "pretrain" and notes["outputs"] == "background,shaft,wrist,clasper"
    assert (notes["height"], notes["width"], notes["task"]) == ("64", "96", "segmentation")
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.float32, torch.int64}
    outcome = records(tmp_path / "run")
    assert [(record["step"], "loss" in record) for record in outcome] == [
        (5, True), (6, False), (10, True), (12, True), (12, False),
    ]  # fmt: skip
    assert set(outcome[1]["scores"]) == {"trained", "named"} and facts["scores"] == outcome[4]["scores"]
    assert outcome[3]["loss"] > 0 and outcome[3]["learning_rate"] < 1e-2
    tensors, values = load_tensors(tmp_path / "run" / "state.safetensors")
    assert values["step"] == 12
    head = weights(tmp_path / "run")["head.weight"]
    assert torch.equal(tensors["average|head.weight"], head)
    assert not torch.equal(tensors["learnt|0.head.weight"], head)


def test_numbers_of_the_loss_replace_the_bundles_and_are_noted(begin, tmp_path):
    begin("plain", phases=SHORT).run()
    begin("other", phases=SHORT, numbers=(("balance", 0.5), ("log_iou", 1.0))).run()
    assert not same(weights(tmp_path / "plain"), weights(tmp_path / "other"))
    notes = load_metadata(tmp_path / "other" / "model.safetensors")
    assert json.loads(notes["numbers"]) == {"balance": 0.5, "log_iou": 1.0}
    facts = json.loads((tmp_path / "other" / "pretraining.json").read_text())
    assert facts["settings"]["numbers"] == {"balance": 0.5, "log_iou": 1.0}
    assert facts["start"] == {"start": "random", "sha256": "", "from": "", "fresh": []}


def test_the_model_has_seen_what_its_start_has_seen(begin, tmp_path):
    assert begin("first").run()
    first, start = tmp_path / "first" / "model.safetensors", tmp_path / "start.safetensors"
    seen = seen_videos_entry({"cholec80": ["video02"]})
    save_weights(start, load_weights(first), {**load_metadata(first), **seen})
    assert begin("second", start=start).run()
    assert SEEN not in load_metadata(first)
    assert load_metadata(tmp_path / "second" / "model.safetensors")[SEEN] == seen[SEEN]


def test_a_killed_or_stopped_run_ends_with_the_bits_and_the_log_of_an_undisturbed_one(begin, tmp_path, monkeypatch):
    begin("whole", check_every=4).run()
    for step in (3, 11):
        cut = tmp_path / f"cut-{step}"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Learner, "step", at_step(step, Mock(side_effect=Killed)))
            begin(cut.name, check_every=4).run()
        with (cut / "log.jsonl").open("a") as file:
            file.write('{"step": 11, "loss": 1.0}\n{"step": 1')  # what a kill between two states leaves
        (cut / ".state.safetensors.1").write_text("half")
        assert begin(cut.name, check_every=4).run()
        assert same(weights(tmp_path / "whole"), weights(cut))
        assert comparable(records(tmp_path / "whole")) == comparable(records(cut))
        assert not (cut / ".state.safetensors.1").exists()
    with monkeypatch.context() as patch:  # Ctrl-C finishes the step
        patch.setattr(Learner, "step", at_step(4, lambda: os.kill(os.getpid(), signal.SIGINT)))
        stopped = begin("stopped", save_every=100, check_every=4)
        assert not stopped.run() and stopped.done == 5
    assert load_tensors(tmp_path / "stopped" / "state.safetensors")[1]["step"] == 5
    lines = io.StringIO()
    assert begin("stopped", check_every=4, say=lines).run() and "continues after step 5" in lines.getvalue()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert comparable(records(tmp_path / "whole")) == comparable(records(tmp_path / "stopped"))
    begin("other", save_every=5, check_every=2, workers=1).run()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "other"))


def test_a_second_ctrl_c_ends_at_once_and_handlers_are_as_before(begin, monkeypatch):
    before = signal.getsignal(signal.SIGINT)

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Learner, "step", at_step(4, twice))
    with pytest.raises(KeyboardInterrupt):
        begin().run()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_loss_that_is_no_number_ends_with_a_sentence_and_the_last_good_state(begin, tmp_path, monkeypatch):
    not_finite = FloatingPointError("the loss of step 7 is nan, its gradient nan")
    monkeypatch.setattr(Learner, "step", at_step(7, Mock(side_effect=not_finite)))
    sentence = "the loss of step 7 is nan.*run keeps the weights of step 6: start again .* lower --learning-rate"
    with pytest.raises(ValueError, match=sentence):
        begin().run()
    tensors, values = load_tensors(tmp_path / "run" / "state.safetensors")
    assert values["step"] == 6 and all(value.isfinite().all() for value in tensors.values())
    assert load_metadata(tmp_path / "run" / "model.safetensors")["steps"] == "6 of 12"


def test_other_settings_or_a_damaged_state_are_refused_and_a_complete_run_stays(begin, tmp_path, monkeypatch):
    begin().run()
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for changes, words in (
        ({"seed": 6}, "seed was 5, is now 6"),
        ({"learning_rate": 1e-3}, "learning_rate was 0.01, is now 0.001"),
        ({"task": "depth"}, "task was segmentation, is now depth"),
        ({"looks": ("rose",)}, "looks was"),
    ):
        with pytest.raises(ValueError, match=f"a pre-training with other settings .*{words}.*another --out"):
            begin(**changes).run()
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    model = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(Learner, "step", at_step(0, Mock(side_effect=Killed)))
    lines = io.StringIO()
    assert begin(say=lines).run() and "all 12 steps are done" in lines.getvalue()
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == model
    (tmp_path / "run" / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"state.safetensors cannot be read .*; set another --out"):
        begin().run()


def test_a_folder_of_something_else_or_of_another_process_is_left_alone(begin, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").write_text("precious")
    with pytest.raises(ValueError, match=r"run contains files but no state.safetensors; .* new or empty folder"):
        begin().run()
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="run: another process uses this folder"):
            begin().run()


@pytest.mark.parametrize("task", ["depth", "reconstruction"])
def test_other_tasks_are_trained_and_scored_by_their_own_metrics(begin, tmp_path, task):
    begin(task=task, phases=SHORT).run()
    (scores,) = [record["scores"] for record in records(tmp_path / "run") if "scores" in record]
    metric = {"depth": "rmse", "reconstruction": "mse"}[task]
    assert scores["named"][metric]["mean"] > 0
    assert load_metadata(tmp_path / "run" / "model.safetensors")["task"] == task


def test_each_family_is_scored_by_reserved_looks_and_other_looks_by_themselves(begin, tmp_path):
    groups = train.look_groups(("surgery-*", "rose", "surgery-*", "flexible-*"))
    assert list(groups) == ["surgery", "flexible", "trained"] and groups["trained"] == ["rose"]
    assert groups["surgery"][0] == "surgery-1000000" and len(groups["surgery"]) == train.RANDOM_LOOKS
    assert list(train.look_groups(())) == ["random"] and list(train.look_groups(("rose",))) == ["trained"]
    begin(looks=(), phases=SHORT).run()
    scores = records(tmp_path / "run")[-1]["scores"]
    assert set(scores) == {"random", "named"} and scores["random"]["frames"] == 24


SMALL = [
    "pretrain", "pvt_fpn", "--size", "64x64:8", "--size", "64x96:4", "--batch-size", "2", "--looks", "rose,violet",
    "--precision", "float32", "--threads", "1", "--save-every", "3",
]  # fmt: skip


def command(out):
    return [sys.executable, "-m", "shared_components.cli", *SMALL, "--out", str(out)]


def steps_done(out):
    """Return the step of a state that may be replaced meanwhile: tensors would be read from a second opening."""
    path = out / "state.safetensors"
    return json.loads(load_metadata(path)["surgfl"])["step"] if path.is_file() else 0


def test_kill_9_and_the_same_command_end_with_the_bits_of_an_undisturbed_run(tmp_path, capsys, quick_python):
    assert main([*SMALL, "--out", str(tmp_path / "whole")]) == 0
    assert "model.safetensors: the averaged weights of 12 steps" in capsys.readouterr().out
    process = subprocess.Popen(command(tmp_path / "cut"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while steps_done(tmp_path / "cut") < 3:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 3 <= steps_done(tmp_path / "cut") < 12
    done = subprocess.run(command(tmp_path / "cut"), capture_output=True, text=True)
    assert done.returncode == 0 and "continues after step" in done.stdout, done.stderr
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert load_metadata(tmp_path / "cut" / "model.safetensors")["steps"] == "12 of 12"


@pytest.mark.parametrize(("words", "sentence"), [
    (["nonsense"], "bundle 'nonsense' does not exist; there are fedst, fl_endovit, "),
    (["pvt_fpn", "--task", "phases"], "bundle pvt_fpn: task 'phases' is unknown; use one of segmentation, depth"),
    (["pvt_fpn", "--looks", "pink"], "look 'pink' is unknown"),
    (["pvt_fpn", "--threads", "0"], "--threads is 0; give a whole number, at least 1"),
    (["pvt_fpn", "--workers", "-1"], "--workers is -1; give a whole number, at least 0"),
    (["pvt_fpn", "--number", "balance"], "--number is 'balance'; give a name and a value such as balance=0.5"),
    (["pvt_fpn", "--number", "ballance=1"], "ballance"),
    (["pvt_fpn", "--number", "frames=1.5"], "segmentation: frames is 1.5; it is a whole number"),
    (["pvt_fpn", "--number", "frames=4"], "a clip of 4 frames needs 'interval'"),
    (["pvt_fpn", "--number", "frames=4", "--number", "interval=0.2"],
     "segmentation asks for clips of 4 frames, and PvtFpn takes single ones"),
    (["pvt_fpn", "--frames", "0"], "frames is 0"), (["pvt_fpn", "--save-every", "0"], "--save-every is 0"),
    (["pvt_fpn", "--start", "rendred"], "checkpoint rendred does not exist; give another file, or use start: random"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(tmp_path, capsys, words, sentence):
    assert main(["pretrain", *words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("surgfl pretrain: ") and sentence in line
    assert not (tmp_path / "out").exists()
