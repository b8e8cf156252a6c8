"""Rows that use the server's own frames, as the command runs them: taught by the server, and mixed into each site."""

import json
from dataclasses import replace

import pytest

from shared_components.cli import main
from shared_components.experiments.comparison import plan, presets

pytestmark = pytest.mark.slow

NETWORK = {"bundle": "fedst", "network": {"temporal": False, "text": "none"}}
FRAME = {"tasks": {"segmentation": {"frames": 1, "interval": 0.0}}}
ROWS = (plan.Variant("Clips", "fedst"), plan.Variant("Mixed", "fedavg", **NETWORK, **FRAME, mixes=True, times=2))
TINY = "--scale quick --seeds 1 --rounds 1 --iterations 1 --batch-size 1 --size 64x64 --start random".split()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return the folder of a tiny comparison of both rows, with a site outside that knows no parts."""
    out = tmp_path_factory.mktemp("out")
    preset = replace(presets.PRESETS["fedst-table8"], variants=ROWS)
    small = replace(plan.SCALES["quick"], frames_per_video=1, height=64, width=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "tiny", preset)
        patch.setitem(plan.SCALES, "quick", small)
        assert main(["compare", "--preset", "tiny", *TINY, "--out", str(out)]) == 0
    return out


def read(out, row, name):
    (file,) = out.glob(f"runs/{row}-seed-1-*/[0-9]*/{name}")
    text = file.read_text()
    return json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]


def test_the_server_has_trained_on_its_own_frames_in_the_row_of_the_method_that_does(compared):
    rounds = {row: read(compared, row, "server/rounds.jsonl") for row in ("clips", "mixed")}
    aggregations = {row: [r for r in rounds[row] if r["kind"] == "aggregation"] for row in rounds}
    assert "pretrained segmentation" in aggregations["clips"][0]["loss"]
    assert "seconds_training" not in aggregations["mixed"][0]
    costs = read(compared, "clips", "scores.json")["costs"]
    spent = aggregations["clips"][0]["seconds"] + aggregations["clips"][0]["seconds_training"]
    assert costs["seconds_aggregation"] == pytest.approx(spent) and costs["frames_per_second"] > 0


def test_a_mixing_row_trains_on_the_servers_frames_at_its_sites_with_its_own_network(compared):
    """Two videos of a frame at site-1, and seven at the server."""
    rounds = {row: read(compared, row, "server/rounds.jsonl") for row in ("clips", "mixed")}
    counts = {row: {r["site"]: r["samples"] for r in rounds[row] if "samples" in r} for row in rounds}
    assert counts["clips"] == {"site-1": 2, "site-2": 2, "site-3": 2, "site-4": 1}
    assert counts["mixed"] == {name: count + 7 for name, count in counts["clips"].items()}
    job = read(compared, "mixed", "run.json")["job"]
    assert job["network"] == NETWORK["network"] and job["training"]["iterations"] == 2
    assert read(compared, "mixed", "scores.json")["costs"]["parameters_site"] == 5_166_180


def test_the_site_outside_is_scored_by_whole_instruments_and_shown_with_all_metrics(compared):
    for row in ("clips", "mixed"):
        held_out = read(compared, row, "scores.json")["held_out"]
        assert held_out["merged"] == ["background", "shaft", "wrist", "clasper"]
        assert set(held_out["dice"]) == {"instrument", "mean"} and 0 <= held_out["dice"]["mean"] <= 1
    first = (compared / "tables.md").read_text().split("\n\n")[:2]
    assert first[0].endswith("out of federation**")
    assert first[1].startswith("| Method | Dice (%) | IoU (%) |") and "| Mixed | " in first[1]


def test_the_same_command_runs_nothing_again(compared, capsys):
    preset = replace(presets.PRESETS["fedst-table8"], variants=ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "tiny", preset)
        assert main(["compare", "--preset", "tiny", *TINY, "--out", str(compared)]) == 0
    assert "2 of 2 runs are done already" in capsys.readouterr().out
