"""The commands of method cards and zoo READMEs as typed, from the repository's root and inside a bundle's folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from monai.bundle import run

from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.checkpoints import load_weights

REPOSITORY = Path(__file__).parents[2]
SIZES = ["--training#height", "64", "--training#width", "96", "--training#batch_size", "2"]
SHORT = [*SIZES, "--training#rounds", "1", "--training#iterations", "2"]
MONAI = ["-m", "monai.bundle"]


def type_in(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_a_misspelt_option_ends_with_one_sentence():
    done = type_in(*MONAI, "run", "--config_file", "bundles/pfedsis/configs/train.yaml", "--site_confg", "x")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: unknown option --site_confg; did you mean")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_train_then_evaluate_from_the_command_line(site_config, tmp_path):
    train = "bundles/pfedsis/configs/train.yaml"
    site = ["--site_config", str(site_config), "--output_dir", str(tmp_path)]
    assert type_in(*MONAI, "run", "--config_file", train, *site, *SHORT).returncode == 0
    overlay = f"['{train}','bundles/pfedsis/configs/evaluate.yaml']"
    checkpoint = ["--checkpoint", str(tmp_path / "best.safetensors")]
    done = type_in(*MONAI, "run", "--config_file", overlay, *site, *SIZES, *checkpoint, "--split", "test")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "metrics.json").read_text())["frames"] == 2


@pytest.mark.slow
def test_two_processes_train_one_network(site_config, tmp_path):
    configs = [f"bundles/pfedsis/configs/{name}.yaml" for name in ("train", "multi_gpu_train")]
    done = type_in(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *MONAI, "run",
        "--config_file", str(configs), "--site_config", str(site_config), "--output_dir", str(tmp_path), *SHORT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert load_weights(tmp_path / "model.safetensors").keys() == load_weights(tmp_path / "best.safetensors").keys()


SCRIPT = """
import torch
from shared_components.bundle_engines import average_gradients, join, leave, on_first_rank

join()
rank = torch.distributed.get_rank()
parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in (2, (1, 1), 1)]
optimizer = average_gradients(torch.optim.SGD(parameters, lr=1.0))
parameters[0].grad = torch.tensor([1.0, 10.0]) * (rank + 1)
parameters[1].grad = torch.tensor([[4.0]]) * rank
optimizer.step()
assert [p.tolist() for p in parameters] == [[-1.5, -15.0], [[-2.0]], [0.0]], parameters
assert on_first_rank(["handler"]) == (["handler"] if rank == 0 else [])
leave()
"""


@pytest.mark.slow
def test_a_step_uses_the_mean_of_all_processes_gradients(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "script.py")],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


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
