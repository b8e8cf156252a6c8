"""The commands of the method cards, as a person types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
