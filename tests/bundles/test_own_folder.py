"""The commands of every zoo README: from inside the bundle's folder, as from the repository's root."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from monai.bundle import ConfigWorkflow, run

from shared_components.networks.bundle_config import bundle_names

EACH = pytest.mark.parametrize("bundle", bundle_names())
INFERENCE = "configs/inference.yaml"


@pytest.fixture
def copied(bundles, tmp_path):
    """Return a function: a copy of a bundle's folder under another name, with a frame in it."""

    def copied(bundle):
        folder = Path(shutil.copytree(bundles / bundle, tmp_path / "mine"))
        frame = np.tile(np.arange(96, dtype=np.uint8), (64, 1))
        cv2.imwrite(str(folder / "frame.png"), np.dstack([frame] * 3))
        return folder

    return copied


def masks(folder):
    return {path.name: path.read_bytes() for path in (folder / "masks").iterdir()}


@EACH
def test_inference_runs_in_the_folder_with_its_own_weights_as_from_elsewhere(copied, bundle, monkeypatch):
    folder = copied(bundle)
    monkeypatch.chdir(folder)
    run(config_file=INFERENCE, input="frame.png", output_dir="results", logging_file=False)
    record = json.loads((folder / "results" / "prediction.json").read_text())
    assert record["model"] == str(folder / "models" / "model.safetensors")
    monkeypatch.chdir(folder.parent)
    run(config_file=f"mine/{INFERENCE}", input="mine/frame.png", output_dir="out", logging_file=False)
    assert masks(folder / "results") == masks(folder.parent / "out") and masks(folder / "results")


def test_training_and_evaluation_run_in_the_folder(copied, site_config, small, monkeypatch):
    folder = copied("pvt_fpn")
    monkeypatch.chdir(folder)
    site = {"site_config": str(site_config), "logging_file": False}
    run(config_file="configs/train.yaml", **site, **small)
    (left,) = (folder / "runs" / "pvt_fpn").iterdir()
    assert (left / "model.safetensors").is_file()
    configs = ["configs/train.yaml", "configs/evaluate.yaml"]
    checkpoint = os.path.relpath(left / "best.safetensors")
    run(config_file=configs, checkpoint=checkpoint, output_dir="results", **site)
    assert json.loads((folder / "results" / "metrics.json").read_text())["frames"] == 2


def test_two_bundles_know_their_own_folders_in_one_process(bundles):
    for bundle in bundle_names():
        workflow = ConfigWorkflow(str(bundles / bundle / INFERENCE), workflow_type="infer", logging_file=False)
        workflow.initialize()
        assert workflow.bundle_root == str(bundles / bundle)


@pytest.mark.slow
def test_the_command_line_runs_in_the_folder(copied):
    folder = copied("pvt_fpn")
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", INFERENCE, "--input", "frame.png"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert masks(folder / "results").keys() == {"frame.png"}
