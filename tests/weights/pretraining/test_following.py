"""A pre-training of SAM2 resumes to the same bits, and its weights leave the encoders frozen."""

import io
import json
import os
import signal

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.networks.checkpoints import load_metadata, load_weights
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.weights.pretraining import tracks
from shared_components.weights.pretraining.learner import Learner
from shared_components.weights.pretraining.plan import Phase
from shared_components.weights.pretraining.train import Pretraining
from tests.federation.conftest import same
from tests.networks.conftest import TOY
from tests.weights.pretraining.conftest import tiny

pytestmark = pytest.mark.slow

ENCODERS = ("vision_encoder.", "prompt_encoder.")


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """Return a function that makes a pre-training of four steps; it is scored on two videos."""
    monkeypatch.setitem(ARCHITECTURES, "cpu", TOY)
    monkeypatch.setattr(tracks, "AGES", 2)
    monkeypatch.setattr(tracks, "LOOKS_SCORED", 1)
    monkeypatch.setattr(tracks, "LOOKS", ("rose",))
    usual = {"bundle": "surgfed", "phases": (Phase(64, 64, 4),), "batch": 1, "clip": 3}

    def made(name: str, **changes) -> Pretraining:
        settings = tiny(**usual | changes)
        return Pretraining(settings, tmp_path / name, save_every=100, check_every=100, say=io.StringIO())

    return made


def test_a_stopped_training_ends_with_the_same_bits_and_trained_encoders(begin, tmp_path, monkeypatch):
    whole = begin("whole")
    first = {name: value.clone() for name, value in whole.learner.network.state_dict().items()}
    assert whole.run()
    usual = Learner.step

    def stopped(self, number, batch):
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, number, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", stopped)
        assert not begin("cut").run()
    assert begin("cut").run()  # the last step learns depth
    paths = [tmp_path / name / "model.safetensors" for name in ("whole", "cut")]
    assert same(*map(load_weights, paths))
    last = whole.learner.network.state_dict()
    moved = {name for name, value in last.items() if not torch.equal(value, first[name])}
    assert any(name.startswith(ENCODERS[0]) for name in moved) and "depth_head.weight" in moved
    assert any(name.startswith(ENCODERS[1]) for name in moved) and any("memory_attention" in name for name in moved)
    notes = load_metadata(paths[0])
    assert "network" not in notes and notes["task"] == "segmentation" and json.loads(notes["numbers"])["frames"] == 2
    assert "trained_encoders" not in load_bundle("surgfed").network
    (scores,) = [json.loads(line)["scores"] for line in (tmp_path / "cut" / "log.jsonl").open() if "scores" in line]
    assert set(scores) == {"random", "named"} and set(scores["named"]) == {*tracks.TRACKERS, "objects"}


def test_without_objects_the_encoder_learns_every_pixels_class_by_a_layer_that_a_resume_restores(begin, tmp_path):
    changes = {"objects": 0, "clip": 1, "phases": (Phase(64, 64, 3),)}
    whole = begin("whole", **changes)
    first = {name: value.clone() for name, value in whole.learner.network.state_dict().items()}
    assert whole.run()
    (layer,) = [network.layer for _, network in whole.learner.lessons[:1]]
    half = begin("half", **changes)
    half.learner.restore(whole.learner.tensors())
    assert same(layer.state_dict(), half.learner.lessons[0][1].layer.state_dict())
    trained = load_weights(tmp_path / "whole" / "model.safetensors")
    assert set(trained) == set(first)  # the layer is not among them
    last = whole.learner.network.state_dict()
    moved = {name for name, value in last.items() if not torch.equal(value, first[name])}
    assert moved and all(name.startswith(ENCODERS[0]) for name in moved)
    assert "scores" not in (tmp_path / "whole" / "log.jsonl").read_text()
