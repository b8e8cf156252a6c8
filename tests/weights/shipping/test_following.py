"""A pre-trained network that follows boxes is shipped with its controls in the card."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from shared_components.cli import main
from shared_components.core.bundle import load_bundle
from shared_components.core.initial_weights import load_initial_weights
from shared_components.core.shipped_weights import FACTS, MODEL, track_rows
from shared_components.core.task import checkpoint_header, make_task
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import CheckpointError, save_weights
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.scenes.site import write_site
from shared_components.weights.bundle_files.make import outdated_files, write_bundle
from shared_components.weights.shipping.weights import read_stages
from tests.networks.conftest import TOY
from tests.weights.shipping.conftest import FACTS as MADE

pytestmark = pytest.mark.slow

PARTS = ("background", "shaft", "wrist", "clasper")
TRACKS = {"network": [0.5, 0.25], "filled box": [0.4, 0.125], "frozen own mask": [0.5, 0.2], "objects": [36, 33]}


@pytest.fixture
def runs(tmp_path, toy_bundles, monkeypatch):
    """Return the folders of two pre-trainings of SurgFed's bundle with a toy; the second began from the first."""
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    shutil.copy(Path(__file__).parents[3] / "bundles" / "surgfed.yaml", toy_bundles)
    write_bundle("surgfed", toy_bundles)
    bundle = load_bundle("surgfed")
    numbers = {**bundle.tasks["segmentation"], "dice": 1.0}
    task = make_task("segmentation", numbers, classes=PARTS)
    notes = checkpoint_header("surgfed", "pretrain", task, numbers, size=(64, 64))
    start = {"start": "random", "sha256": ""}
    folders = [tmp_path / "encoder", tmp_path / "following"]
    for number, run in enumerate(folders):
        torch.manual_seed(number)
        network = build_network(bundle.network, out_channels=4, trained_encoders=True)
        save_weights(run / "model.safetensors", network.state_dict(), notes)
        command = f"surgfl pretrain surgfed --out {run}"
        facts = MADE | {"command": command, "start": start, "scores": {"random": TRACKS} if number else {}}
        (run / "pretraining.json").write_text(json.dumps(facts))
        start = {"start": "file", "sha256": read_stages([run])[0].sha256}
    return folders


def test_tracking_weights_are_shipped_with_their_controls_and_earlier_stage(runs, toy_bundles, tmp_path):
    encoder, following = runs
    site = {"look": "ivory", "seed": 3, "videos": {"test": 1}, "frames_per_video": 2, "dense": True}
    real = write_site(tmp_path / "hospital", **site, height=64, width=64, clip=2, interval=1.0)
    words = ["--before", str(encoder), "--real", f"Hospital={real}", "--looks", "rose", "--unseen", "1"]
    assert main(["ship", str(following), "--bundle", "surgfed", *words, "--videos", "1", "--frames", "2"]) == 0
    root = toy_bundles / "surgfed"
    facts = json.loads((root / FACTS).read_text())
    assert [(s["name"], s["classes"]) for s in facts["scores"]] == [
        ("rose", "parts"), ("random-2000000", "parts"), ("surgery-2000000", "parts"), ("microscope-2000000", "parts"),
        ("flexible-2000000", "parts"), ("Hospital", "parts"), ("Hospital", "foreground"),
    ]  # fmt: skip
    card = (root / "docs" / "README.md").read_text()
    for due in (
        "trained only on rendered scenes", "| Initial weights | random |",
        "| Earlier stage | 24,000 frames, 3 steps, 1.50 hours |",
        "| random | filled box | 0.40 | 0.12 |", "| random | frozen own mask | 0.50 | 0.20 |",
        "| random | network | 0.50 | 0.25 |", "| random | objects | 36 | 33 |",
    ):  # fmt: skip
        assert due in card
    assert facts["before"][0]["command"] == "surgfl pretrain surgfed --out encoder"
    assert "other weights" not in (root / "docs" / "data_license.txt").read_text()
    assert outdated_files("surgfed", toy_bundles) == [] and (root / MODEL).is_file()
    for kind, classes in (("depth", ()), ("segmentation", ("background", "uterus"))):
        task = make_task(kind, load_bundle("surgfed").tasks[kind], classes=classes)
        network = build_network(load_bundle("surgfed").network, out_channels=task.channels)
        assert load_initial_weights(network, "rendered", card=task.card, bundle="surgfed")["fresh"] == []


def test_a_stage_of_other_weights_is_refused_and_other_networks_have_no_tracks(runs):
    encoder, following = runs
    with pytest.raises(CheckpointError, match=r"encoder did not start from the weights of .*following; set --before"):
        read_stages([encoder, following])
    assert track_rows({"checks": {"random": {"dice": {"mean": 0.5}}}}) == track_rows({}) == []
