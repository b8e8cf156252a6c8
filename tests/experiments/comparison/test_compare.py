"""The command itself: a tiny comparison, killed in the middle and resumed to the same numbers."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared_components.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
TINY = ["--scale", "quick", "--seeds", "1", "--rounds", "2", "--iterations", "2", "--size", "32x64", "--jobs", "2"]


def command(out, *methods):
    return ["compare", "--methods", ",".join(methods), *TINY, "--out", str(out)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight")
    assert main(command(out, "local", "fedavg")) == 0
    return out


def scores(out):
    """Return the lines of scores.csv without the run's folder, whose name is the time."""
    return [line.rpartition(",")[0] for line in (out / "scores.csv").read_text().splitlines()]


def test_all_forms_are_written_and_every_run_holds_its_origin(straight):
    for name in ("summary.csv", "scores.csv", "costs.csv", "tables.md", "tables.tex", "index.html"):
        assert (straight / name).stat().st_size > 200
    folders = list(straight.glob("runs/*/[0-9]*/scores.json"))
    assert len(folders) == 2
    for file in folders:
        assert (file.parent / "run.json").is_file() and (file.parent / "server" / "rounds.jsonl").is_file()
        assert (file.parent / "site-1" / "best.safetensors").is_file()
        assert not list(file.parent.glob("*/round-*"))
        assert len(list(file.parent.glob("site-*/tested/*.webp"))) == 3 * 3 * 3
    assert "| Local only |" in (straight / "tables.md").read_text()


def test_a_second_call_runs_nothing_again(straight, capsys):
    before = sorted(straight.glob("runs/*/*"))
    assert main(command(straight, "local", "fedavg")) == 0
    assert "2 of 2 runs are done already" in capsys.readouterr().out
    assert sorted(straight.glob("runs/*/*")) == before


def start_and_signal(out, number, *methods):
    """Send a signal to the command once the first round of any run is aggregated."""
    arguments = [sys.executable, "-m", "shared_components.cli", *command(out, *methods)]
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background lets them, and what they start, ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 300
    while not list(out.glob("runs/*/[0-9]*/server/round-00000.safetensors")):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait(120), process.stdout.read()


def test_an_interrupted_comparison_goes_on_to_the_same_numbers(straight, tmp_path):
    """Ctrl-C: no child is left, the tables say what there is, the same command ends it."""
    status, said = start_and_signal(tmp_path, signal.SIGINT, "local", "fedavg")
    assert status == 130 and "the same command goes on" in said
    assert not list(tmp_path.glob("runs/*/[0-9]*/scores.json"))
    assert "FedAvg: not done yet" in (tmp_path / "tables.md").read_text()
    assert main(command(tmp_path, "local", "fedavg")) == 0
    assert scores(tmp_path) == scores(straight)
    assert all(len(list(run.glob("[0-9]*"))) == 1 for run in tmp_path.glob("runs/*"))


def test_a_killed_command_is_gone_on_with_at_once(straight, tmp_path):
    """`kill -9` leaves a child behind, which ends by itself; the next command's child waits for it."""
    assert start_and_signal(tmp_path, signal.SIGKILL, "fedavg")[0] == -signal.SIGKILL
    assert main(command(tmp_path, "fedavg")) == 0
    assert scores(tmp_path) == [line for line in scores(straight) if not line.startswith("Local only")]
    assert len(list(tmp_path.glob("runs/*/[0-9]*"))) == 1
    assert not list(tmp_path.glob("runs/*/[0-9]*/*/.*"))


def test_a_method_that_refuses_these_sites_is_a_dash_and_the_rest_goes_on(straight, tmp_path, capsys):
    for name in ("site-1", "site-2"):
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / name).symlink_to(straight / "sites" / "quick" / name)
    out = tmp_path / "out"
    assert main([*command(out, "krum", "local"), "--sites", str(tmp_path / "sites")]) == 1
    said = capsys.readouterr().out
    assert "Krum, seed 1: refused: krum needs at least 3 sites" in said
    assert "| Krum | – | – | – | – |" in said and "Local only, seed 1: done" in said


def test_an_unknown_method_is_refused_in_one_sentence(tmp_path, capsys):
    assert main(["compare", "--methods", "fedsgd", "--out", str(tmp_path)]) == 2
    assert "surgfl compare: method 'fedsgd' does not exist" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
