"""`surgfl pretrain` as people run it."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from shared_components.cli import main
from shared_components.federation.store import load_tensors
from shared_components.networks.checkpoints import load_metadata, load_weights

SMALL = [
    "pretrain", "pvt_fpn", "--size", "64x64:8", "--size", "64x96:4", "--batch-size", "2", "--looks", "rose,violet",
    "--precision", "float32", "--threads", "1", "--save-every", "3",
]  # fmt: skip


def command(out):
    return [sys.executable, "-m", "shared_components.cli", *SMALL, "--out", str(out)]


def steps_done(out):
    path = out / "state.safetensors"
    return load_tensors(path)[1]["step"] if path.is_file() else 0


@pytest.mark.slow
def test_kill_9_and_the_same_command_end_with_the_bits_of_an_undisturbed_run(tmp_path, capsys):
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
    done = subprocess.run(command(tmp_path / "cut"), capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and "goes on after step" in done.stdout, done.stderr

    whole, cut = (load_weights(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(torch.equal(whole[name], cut[name]) for name in whole)
    assert load_metadata(tmp_path / "cut" / "model.safetensors")["steps"] == "12 of 12"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nonsense"], "bundle 'nonsense' does not exist; there are fedst, pfedsis, pvt_fpn"),
        (["pvt_fpn", "--task", "phases"], "bundle pvt_fpn: task 'phases' is unknown; use one of segmentation, depth"),
        (["pvt_fpn", "--size", "64x90:3"], "the size is 64x90, and PvtFpn takes multiples of 32"),
        (["pvt_fpn", "--size", "64x90"], "give height, width and steps such as 96x128:6000"),
        (["pvt_fpn", "--looks", "pink"], "look 'pink' is unknown"),
        (["pvt_fpn", "--learning-rate", "nan"], "pretrain: learning_rate is nan"),
        (["pvt_fpn", "--threads", "0"], "--threads is 0; give a whole number, at least 1"),
        (["pvt_fpn", "--workers", "-1"], "--workers is -1; give a whole number, at least 0"),
        (["pvt_fpn", "--number", "balance"], "--number is 'balance'; give a name and a value such as balance=0.5"),
        (["pvt_fpn", "--number", "balance=2"], "segmentation: balance is 2; it is a number, at least 0 and at"),
        (["pvt_fpn", "--number", "ballance=1"], "ballance"),
        (["pvt_fpn", "--number", "frames=1.5"], "segmentation: frames is 1.5; it is a whole number"),
        (["pvt_fpn", "--number", "frames=4"], "a clip of 4 frames needs 'interval'"),
        (
            ["pvt_fpn", "--number", "frames=4", "--number", "interval=0.2"],
            "segmentation asks for clips of 4 frames, and PvtFpn takes single ones",
        ),
        (["pvt_fpn", "--frames", "0"], "frames is 0"),
        (["pvt_fpn", "--save-every", "0"], "--save-every is 0"),
        (
            ["pvt_fpn", "--start", "rendred"],
            "checkpoint rendred does not exist; name the weights to begin from, or use start: random",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(tmp_path, capsys, words, sentence):
    assert main(["pretrain", *words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("surgfl pretrain: ") and sentence in line
    assert not (tmp_path / "out").exists()
