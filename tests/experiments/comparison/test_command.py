"""The command on real runs: killed and resumed, on sites of two tasks, and with the server's own frames."""

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from shared_components.cli import main
from shared_components.experiments.comparison import plan, presets
from shared_components.scenes.site import write_site
from tests.narrow import narrow_everywhere  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_python", "narrow_everywhere")]

PYTHON = sys.executable  # itself, where signals are what is tested
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


def test_all_files_are_written_and_a_second_call_runs_nothing_again(straight, capsys):
    for name in ("summary.csv", "scores.csv", "costs.csv", "index.html"):
        assert (straight / name).stat().st_size > 200
    folders = list(straight.glob("runs/*/[0-9]*/scores.json"))
    assert len(folders) == 2
    for file in folders:
        assert (file.parent / "run.json").is_file() and (file.parent / "server" / "rounds.jsonl").is_file()
        assert (file.parent / "site-1" / "best.safetensors").is_file()
        assert not list(file.parent.glob("*/round-*"))
        assert len(list(file.parent.glob("site-*/tested/*.webp"))) == 3 * 3 * 3
    assert "<td>Local only</td>" in (straight / "index.html").read_text()
    before = sorted(straight.glob("runs/*/*"))
    assert main(command(straight, "local", "fedavg")) == 0
    assert "2 of 2 runs done already" in capsys.readouterr().out
    assert sorted(straight.glob("runs/*/*")) == before


def start_and_signal(out, number, *methods):
    """Send a signal to the command once the first round of any run is aggregated."""
    arguments = [PYTHON, "-m", "shared_components.cli", *command(out, *methods)]
    # a shell that runs the tests in the background lets them, and what they start, ignore Ctrl-C
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    end = time.monotonic() + 300
    while not list(out.glob("runs/*/[0-9]*/server/round-00000.safetensors")):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait(120), process.stdout.read()


def test_an_interrupted_comparison_goes_on_to_the_same_numbers(straight, tmp_path):
    """Ctrl-C: no child is left, the page lists missing runs, the same command ends it."""
    status, text = start_and_signal(tmp_path, signal.SIGINT, "local", "fedavg")
    assert status == 130 and "the same command goes on" in text
    assert not list(tmp_path.glob("runs/*/[0-9]*/scores.json"))
    assert "FedAvg: not done yet" in (tmp_path / "index.html").read_text()
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
    (tmp_path / "sites").mkdir()
    for name in ("site-1", "site-2"):
        (tmp_path / "sites" / name).symlink_to(straight / "sites" / "quick" / name)
    assert main([*command(tmp_path / "out", "krum", "local"), "--sites", str(tmp_path / "sites")]) == 1
    text = capsys.readouterr().out
    assert "Krum, seed 1: refused: krum needs at least 3 sites" in text
    assert "| Krum | – | – | – | – |" in text and "Local only, seed 1: done" in text


OF_TWO_TASKS = {  # name: (look, layout, task)
    "a": ("rose", "endovis2017", "segmentation"), "b": ("crimson", "endovis2018", "segmentation"),
    "c": ("violet", "scared", "depth"), "outside": ("ivory", "scared", "depth"),
}  # fmt: skip


@pytest.fixture(scope="module")
def two_tasks_compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for number, (name, (look, layout, task)) in enumerate(OF_TWO_TASKS.items()):
        write_site(
            folder / "sites" / name, look=look, seed=number, layout=layout, task=task, frames_per_video=4,
            videos={"train": 1, "validation": 1, "test": 1}, height=64, width=96,
        )  # fmt: skip
    where = ["--sites", str(folder / "sites"), "--held-out", "outside"]
    assert main([*command(folder / "out", "mat_fl", "fedavg_cluster"), *where]) == 0
    return folder / "out"


def test_the_outsiders_depth_is_that_of_the_depth_sites_model(two_tasks_compared):
    """Synthetic sites publish theirs; one depth site's mean is its own model, so that both methods have a number."""
    files = list(two_tasks_compared.glob("runs/*/[0-9]*/scores.json"))
    assert len(files) == 2
    for file in files:
        scores = json.loads(file.read_text())
        assert set(scores["sites"]) == {"a", "b", "c"}
        assert "dice" in scores["sites"]["a"] and "rmse" in scores["sites"]["c"]
        assert "dice" not in scores["sites"]["c"] and scores["held_out"]["rmse"]["mean"] > 0
        assert list((file.parent / "server" / "tested").glob("*-prediction.webp"))
    with (two_tasks_compared / "summary.csv").open() as file:
        averages = {(r["label"], r["task"], r["metric"]) for r in csv.DictReader(file) if r["site"] == "average"}
    for task, metric in (("Segmentation: shaft, wrist, clasper", "dice"), ("Depth", "rmse")):
        assert {("MaT-FL", task, metric), ("FedAvg+Cluster", task, metric)} <= averages


NETWORK = {"bundle": "fedst", "network": {"temporal": False, "text": "none"}}
FRAME = {"tasks": {"segmentation": {"frames": 1, "interval": 0.0}}}
ROWS = (
    plan.Variant("Clips", "fedst", {"pretraining": 4}),
    plan.Variant(
        "Mixed", "fedavg", **NETWORK, **FRAME, data=plan.DataChanges(server_frames=True), length=plan.Length(times=2)
    ),
)
ONE_ROUND = "--scale quick --seeds 1 --rounds 1 --iterations 1 --batch-size 1 --size 64x64 --start random".split()


@pytest.fixture(scope="module")
def fedst_compared(tmp_path_factory):
    """Return the folder of a tiny comparison of both rows, with a site outside that knows no parts."""
    out = tmp_path_factory.mktemp("out")
    preset = replace(presets.PRESETS["fedst-table8"], variants=ROWS)
    small = replace(plan.SCALES["quick"], frames_per_video=1, height=64, width=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "tiny", preset)
        patch.setitem(plan.SCALES, "quick", small)
        assert main(["compare", "--preset", "tiny", *ONE_ROUND, "--out", str(out)]) == 0
    return out


def read(out, row, name):
    (file,) = out.glob(f"runs/{row}-seed-1-*/[0-9]*/{name}")
    text = file.read_text()
    return json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]


def test_the_server_has_trained_on_its_own_frames_in_the_row_of_the_method_that_does(fedst_compared):
    rounds = {row: read(fedst_compared, row, "server/rounds.jsonl") for row in ("clips", "mixed")}
    aggregations = {row: [r for r in rounds[row] if r["kind"] == "aggregation"] for row in rounds}
    assert "pretrained segmentation" in aggregations["clips"][0]["loss"]
    assert "seconds_training" not in aggregations["mixed"][0]
    costs = read(fedst_compared, "clips", "scores.json")["costs"]
    spent = aggregations["clips"][0]["seconds"] + aggregations["clips"][0]["seconds_training"]
    assert costs["seconds_aggregation"] == pytest.approx(spent) and costs["frames_per_second"] > 0


def test_a_mixing_row_trains_on_the_servers_frames_at_its_sites_with_its_own_network(fedst_compared):
    """Two videos of a frame at site-1, and seven at the server."""
    rounds = {row: read(fedst_compared, row, "server/rounds.jsonl") for row in ("clips", "mixed")}
    counts = {row: {r["site"]: r["samples"] for r in rounds[row] if "samples" in r} for row in rounds}
    assert counts["clips"] == {"site-1": 2, "site-2": 2, "site-3": 2, "site-4": 1}
    assert counts["mixed"] == {name: count + 7 for name, count in counts["clips"].items()}
    job = read(fedst_compared, "mixed", "run.json")["job"]
    assert job["network"] == NETWORK["network"] and job["training"]["iterations"] == 2
    costs = read(fedst_compared, "mixed", "scores.json")["costs"]
    assert costs["parameters_site"] == 336_924  # of 5,166,180 at full width, see test_pvt_fpn_clips.py


def test_the_site_outside_is_scored_by_whole_instruments_and_shown_by_the_same_command(
    fedst_compared, capsys, monkeypatch
):
    for row in ("clips", "mixed"):
        held_out = read(fedst_compared, row, "scores.json")["held_out"]
        assert held_out["merged"] == ["background", "shaft", "wrist", "clasper"]
        assert set(held_out["dice"]) == {"instrument", "mean"} and 0 <= held_out["dice"]["mean"] <= 1
    monkeypatch.setitem(presets.PRESETS, "tiny", replace(presets.PRESETS["fedst-table8"], variants=ROWS))
    assert main(["compare", "--preset", "tiny", *ONE_ROUND, "--out", str(fedst_compared)]) == 0
    text = capsys.readouterr().out
    assert "2 of 2 runs done already" in text and "out of federation**" in text
    assert "| Method | Dice (%) | IoU (%) |" in text and "| Mixed | " in text
