"""A model of a network whose arguments a job has chosen, scored and shown through the bundle of other ones."""

import json

import pytest
import torch
import yaml

from shared_components.cli import main
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from tests.bundles.conftest import scored_by_hand

TRAINING = {"height": 64, "width": 96, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}
FRAMES = {"segmentation": {"frames": 1, "interval": 0.0}}
SINGLE = {"temporal": False, "text": "none"}
CHOICES = [("fedavg", {}, SINGLE), ("fedst", {"synthetic": "none"}, {"temporal": False, "text": "prompt"})]


@pytest.fixture
def federated(site_config, tmp_path):
    """Return a function that federates two sites of the same frames for a round; it returns the best model."""
    told = yaml.safe_load(site_config.read_text()) | {"text": "porcine nephrectomy"}
    site_config.write_text(yaml.safe_dump(told))

    def federated(method, arguments, network):
        job = Job(
            "chosen", "fedst", method, arguments=arguments, training=TRAINING, tasks=FRAMES, network=network, rounds=1
        )
        folder = run_together(job, {"a": site_config, "b": site_config}, tmp_path / "runs").folder
        return folder / "a" / "best.safetensors"

    return federated


@pytest.mark.slow
@pytest.mark.parametrize(("method", "arguments", "network"), CHOICES)
def test_the_best_model_is_scored_by_the_bundle_as_directly(
    run, federated, site_config, tmp_path, method, arguments, network
):
    best = federated(method, arguments, network)
    assert json.loads(load_metadata(best)["network"]) == network
    options = {"site_config": str(site_config), "checkpoint": str(best), "output_dir": str(tmp_path / "out")}
    run("fedst", "train", "evaluate", **options)
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())

    direct = PvtFpnClips(out_channels=4, **network).eval()
    direct.load_state_dict(load_weights(best))
    expected = scored_by_hand(site_config, lambda image: direct(image).argmax(1)[0], ("shaft", "wrist", "clasper"))
    assert found["frames"] == 2 and {key: found[key] for key in expected} == expected


def test_it_is_shown_by_inference_and_by_surgfl_segment(run, federated, video, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best = federated(*CHOICES[0])
    run("fedst", "inference", input=str(video), checkpoint=str(best), output_dir=str(tmp_path / "out"))
    assert (tmp_path / "out" / "overlay.mp4").stat().st_size > 0
    assert main(["segment", str(video), "--model", str(best), "--out", "seen", "--threads", "1"]) == 0
    masks = [sorted((tmp_path / name / "masks").glob("*.png")) for name in ("out", "seen")]
    assert len(masks[0]) == len(masks[1]) == 5
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*masks, strict=True))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"_target_": "os.system"}, "'_target_' is the bundle's own and cannot be chosen"),
        ({"text": "$exit()"}, "text is the expression '$exit()'"),
        (
            {"temporal": False, "text": "selection"},
            "another network than PvtFpnClips: it lacks indicator, selection.16",
        ),
    ],
)
def test_a_header_that_lies_is_refused_with_the_files_name(run, refusal, site_config, tmp_path, said, sentence):
    path = tmp_path / "model.safetensors"
    notes = {"bundle": "fedst", "network": json.dumps(said), "numbers": json.dumps(FRAMES["segmentation"])}
    save_weights(path, PvtFpnClips(**SINGLE).state_dict(), notes)
    options = {"site_config": str(site_config), "checkpoint": str(path), "output_dir": str(tmp_path / "out")}
    found = refusal(run, "fedst", "train", "evaluate", **options)
    assert sentence in found and found.startswith(f"checkpoint {path}")
    assert not (tmp_path / "out").exists()


def test_weights_that_say_nothing_are_not_scored_with_a_fresh_temporal_layer(run, refusal, site_config, tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, PvtFpnClips(**SINGLE).state_dict(), {"bundle": "fedst"})
    options = {"site_config": str(site_config), "checkpoint": str(path), "output_dir": str(tmp_path / "out")}
    assert "it lacks indicator, temporal.16" in refusal(
        run, "fedst", "train", "evaluate", **options, **{"tasks#segmentation#frames": 1}
    )


def test_plain_weights_are_scored_with_the_same_said_on_the_command_line(run, site_config, tmp_path):
    """As docs/run.md says; what the header of the same weights says needs no word."""
    torch.manual_seed(1)
    told, plain = tmp_path / "model.safetensors", tmp_path / "model.pt"
    notes = {"bundle": "fedst", "network": json.dumps(SINGLE), "task": "segmentation"}
    notes |= {"numbers": json.dumps(FRAMES["segmentation"])}
    save_weights(told, PvtFpnClips(**SINGLE).state_dict(), notes)
    torch.save(load_weights(told), plain)
    small = {f"training#{name}": TRAINING[name] for name in ("height", "width")}
    by_hand = {f"network_def#{name}": value for name, value in SINGLE.items()}
    by_hand |= {"tasks#segmentation#frames": 1}
    found = []
    for path, options in ((told, {}), (plain, by_hand)):
        out = tmp_path / path.suffix
        options |= {"site_config": str(site_config), "checkpoint": str(path), "output_dir": str(out), **small}
        run("fedst", "train", "evaluate", **options)
        found.append(json.loads((out / "metrics.json").read_text()))
    assert found[0]["dice"] == found[1]["dice"] and found[0]["assd"] == found[1]["assd"]
