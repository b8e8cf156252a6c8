"""A folder with two tiny bundles, and the files of a pre-training."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from shared_components.networks import bundle_config
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.tiny import Tiny
from shared_components.weights.bundle_files import make
from tests.federation.conftest import narrow  # noqa: F401 (what the bundles are is not asked here)

DESCRIPTION = """\
title: A toy
network_def: |
  _target_: shared_components.networks.tiny.Tiny
  out_channels: 4
tasks: |
  segmentation: {}
training: {height: 64, width: 96}
metadata: {name: Toy, task: to be small, description: A network for tests., references: []}
"""
NOTES = {
    "bundle": "one", "method": "pretrain", "task": "segmentation", "outputs": "background,shaft,wrist,clasper",
    "height": "64", "width": "96", "frames": "1", "numbers": json.dumps({"empty_policy": "diagonal"}),
}  # fmt: skip
FACTS = {
    "command": "surgfl pretrain one --out /home/jane/run7 --start=/home/jane/a.pth --size 64x96:3", "commit": "abc1234",
    "seed": 2022, "hardware": "a machine, 2 cores", "threads": 1, "seconds": 5400.0, "steps": 3, "frames": 24000,
    "sizes": ["64x96:3"], "settings": {"start": "random"}, "scores": {"random": {"dice": {"mean": 0.5}}},
}  # fmt: skip


@pytest.fixture
def weights():
    torch.manual_seed(5)
    return Tiny().state_dict()


@pytest.fixture
def pretrained(tmp_path, weights):
    folder = tmp_path / "run7"
    save_weights(folder / "model.safetensors", weights, NOTES)
    (folder / "pretraining.json").write_text(json.dumps(FACTS))
    return folder


@pytest.fixture
def toy_bundles(tmp_path, monkeypatch):
    """Write the bundles `one` and `two` with the same network; return their folder."""
    shutil.copy(Path(__file__).parents[3] / "LICENSE", tmp_path)
    folder = tmp_path / "bundles"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(DESCRIPTION)
        make.write_bundle(name, folder)
    for module in (bundle_config, make):
        monkeypatch.setattr(module, "bundles_folder", lambda: folder)
    return folder
