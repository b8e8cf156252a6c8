"""Bundles are generated from small descriptions; the commands of their cards run as typed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import monai.bundle
import numpy as np
import pytest

from shared_components.bundle_engines import own_checkpoint
from shared_components.cli import main
from shared_components.core.bundle import load_bundle
from shared_components.core.calibration import FILE as CALIBRATION
from shared_components.core.shipped_weights import EXPORTED, FACTS, KEEPER, MODEL, shipped_weights
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import bundle_names
from shared_components.networks.checkpoints import load_metadata, load_weights, stored_weights
from shared_components.weights.bundle_files import make
from shared_components.weights.bundle_files.copies import write_zoo
from shared_components.weights.bundle_files.make import write_bundle
from tests.bundles.conftest import PROMPTED, SEGMENTING, masks

NEW = """\
title: A toy

network_def: |
  _target_: shared_components.networks.pvt_fpn.PvtFpn
  out_channels: 4            # overridden
  dropout: 0.0               # of the decoders

tasks: |
  segmentation: {}

training: {height: 64, width: 96, batch_size: 2, rounds: 1, iterations: 1, learning_rate: 5.0e-5}

metadata:
  name: Toy
  task: to be small
  description: A network for a test.
  references: []
  network_data_format: {outputs: {pred: {num_channels: 7}}}
"""


@pytest.fixture
def folder(bundles, tmp_path):
    """A folder of bundles with one description, `toy.yaml`."""
    shutil.copy(bundles.parent / "LICENSE", tmp_path)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "toy.yaml").write_text(NEW)
    return tmp_path / "bundles"


def test_a_new_bundle_is_one_small_file_and_gets_all_files(folder, run, monkeypatch, site_config, tmp_path, bundles):
    write_bundle("toy", folder)
    monkeypatch.setattr(bundle_config, "bundles_folder", lambda: folder)
    bundle = load_bundle("toy")
    assert bundle.network["dropout"] == 0.0 and bundle.training.height == 64
    assert bundle.training.learning_rate == 5e-5 and bundle.training.weight_decay == 0.01
    metadata = json.loads((folder / "toy" / "configs" / "metadata.json").read_text())
    outputs = metadata["network_data_format"]["outputs"]["pred"]
    assert outputs["num_channels"] == 7 and outputs["spatial_shape"] == [64, 96]

    run("toy", "train", site_config=str(site_config), output_dir=str(tmp_path / "out"))
    assert load_metadata(tmp_path / "out" / "model.safetensors")["bundle"] == "toy"

    roots = (folder / "toy", bundles / "pvt_fpn")
    made, others = ({str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()} for root in roots)
    weights = {MODEL, FACTS, f"models/{CALIBRATION}"}
    assert made - {KEEPER} == others - {KEEPER, *weights, "configs/paper.yaml"} and KEEPER in made


@pytest.mark.full_width
def test_a_bundle_that_shares_weights_says_whose_they_are(bundles, folder):
    """The copy for the zoo contains the weights."""
    shutil.copytree(bundles / "pvt_fpn", folder / "pvt_fpn")
    shutil.copy(bundles / "pvt_fpn.yaml", folder)
    (folder / "toy.yaml").write_text(NEW.replace("dropout: 0.0 ", "# ") + "same_weights_as: pvt_fpn\n")
    (folder.parent / "LICENSE").unlink()  # as in an installed wheel
    with pytest.raises(FileNotFoundError, match="toy/LICENSE"):
        write_bundle("toy", folder)
    (folder / "toy").mkdir()
    shutil.copy(bundles.parent / "LICENSE", folder / "toy")
    write_bundle("toy", folder)
    whose = folder / "pvt_fpn" / MODEL
    assert not (folder / "toy" / MODEL).exists() and not (folder / "toy" / KEEPER).exists()
    assert shipped_weights("toy", folder) == whose and own_checkpoint(str(folder / "toy")) == str(whose)
    assert "`../pvt_fpn/models/model.safetensors` (float16)" in (folder / "toy" / "docs" / "README.md").read_text()

    out = folder.parent / "zoo"
    baseline = out / "surgical_instrument_segmentation_pvt_fpn"
    assert write_zoo(out, folder) == [baseline, out / "toy"]
    shutil.rmtree(baseline)
    assert own_checkpoint(str(out / "toy")) == str(out / "toy" / MODEL)
    assert stored_weights(out / "toy" / EXPORTED).keys() >= load_weights(whose).keys()
    with pytest.raises(ValueError, match=r"zoo exists already; name a new folder"):
        write_zoo(out, folder)
    (folder / "toy" / MODEL).write_bytes(b"")
    with pytest.raises(ValueError, match=r"toy.yaml says same_weights_as: pvt_fpn; remove the file"):
        make.check_weights("toy", folder)
    whose.unlink()
    with pytest.raises(ValueError, match=r"bundle 'pvt_fpn' ships no weights"):
        write_zoo(folder.parent / "half", folder)
    assert not list(folder.parent.glob("*half*"))
    with pytest.raises(ValueError, match=r"bundle 'toy' uses the weights of 'pvt_fpn' \(.*pvt_fpn/models/model.safe"):
        own_checkpoint(str(folder / "toy"))
    (folder / "toy.yaml").write_text(NEW + "same_weights_as: toy\n")
    with pytest.raises(ValueError, match=r"toy.yaml: same_weights_as is 'toy'; name another of the bundles pvt_fpn"):
        write_bundle("toy", folder)


@pytest.mark.parametrize("zoo_name", ["../toy", "Toy", "toy_", "surgical_instrument_segmentation_pvt_fpn"])
def test_a_zoo_name_is_one_folder_of_one_bundle(bundles, folder, zoo_name):
    (folder / "toy.yaml").write_text(NEW + f"zoo_name: {zoo_name}\n")
    shutil.copy(bundles / "pvt_fpn.yaml", folder)
    with pytest.raises(ValueError, match=rf"toy.yaml: zoo_name (is )?'{zoo_name}'"):
        write_zoo(folder.parent / "zoo", folder)
    assert not list(folder.parent.glob("*zoo*"))


def test_a_second_time_nothing_is_written_and_edits_by_hand_are_mended_or_kept_in_the_card(folder):
    assert len(write_bundle("toy", folder)) == len(make.bundle_files("toy", folder))
    assert write_bundle("toy", folder) == []
    config = folder / "toy" / "configs" / "train.yaml"
    right = config.read_text()
    config.write_text(right.replace("rounds: 1", "rounds: 2"))
    assert write_bundle("toy", folder) == [config] and config.read_text() == right
    card = folder / "toy" / "docs" / "README.md"
    card.write_text("# My toy\n" + card.read_text().replace("bundles/toy/configs/train.yaml", "elsewhere"))
    assert write_bundle("toy", folder) == [card]
    assert card.read_text().startswith("# My toy\n") and "bundles/toy/configs/train.yaml" in card.read_text()
    card.write_text(card.read_text().replace(make.marks("use")[0], ""))
    with pytest.raises(ValueError, match="put them under '## Use'"):
        write_bundle("toy", folder)


@pytest.mark.parametrize(("line", "changed", "sentence"), [
    ("title: A toy", "titel: A toy", r"toy\.yaml: unknown key 'titel'; known keys: alone, metadata, method, "),
    ("title: A toy", "", r"toy\.yaml: key 'title' is missing"),
    ("  task: to be small", "", r"toy\.yaml: metadata: 'task' is missing"),
    ("height: 64", "heigth: 64", r"training: unknown key 'heigth'"),
])  # fmt: skip
def test_a_wrong_description_is_refused_in_one_sentence(folder, line, changed, sentence):
    (folder / "toy.yaml").write_text(NEW.replace(line, changed))
    with pytest.raises(ValueError, match=sentence):
        make.bundle_files("toy", folder)


def test_the_committed_files_and_weights_are_what_the_command_makes_and_it_checks_without_writing(monkeypatch, capsys):
    assert make.described_bundles() == bundle_names()
    assert main(["bundles", "--check"]) == 0
    read = make.read_description
    own = read("pvt_fpn")
    object.__setattr__(own, "title", "Another")
    described = {"pvt_fpn": own}
    monkeypatch.setattr(
        "shared_components.weights.bundle_files.make.read_description",
        lambda name, folder: described.get(name) or read(name, folder),
    )
    assert main(["bundles", "--check"]) == 2
    assert "train.yaml does not match" in capsys.readouterr().err


# ---- commands as typed, from the repository and inside a bundle's folder

REPOSITORY = Path(__file__).parents[2]
SIZES = ["--training#height", "64", "--training#width", "96", "--training#batch_size", "2"]
SHORT = [*SIZES, "--training#rounds", "1", "--training#iterations", "2"]
MONAI = ["-m", "monai.bundle"]


def type_in(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_train_and_evaluate_run_from_the_command_line(quick_python, site_config, tmp_path):
    done = type_in(*MONAI, "run", "--config_file", "bundles/pfedsis/configs/train.yaml", "--site_confg", "x")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: unknown option --site_confg; did you mean")
    assert "Traceback" not in done.stderr
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
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


EACH = pytest.mark.parametrize("bundle", SEGMENTING)
INFERENCE = "configs/inference.yaml"


@pytest.fixture
def copied(zoo, tmp_path):
    """Return a function: a bundle's copy for the zoo under another name, with a frame in it."""

    def copied(bundle):
        folder = Path(shutil.copytree(zoo / bundle, tmp_path / "mine"))
        frame = np.tile(np.arange(96, dtype=np.uint8), (64, 1))
        cv2.imwrite(str(folder / "frame.png"), np.dstack([frame] * 3))
        return folder

    return copied


@EACH
@pytest.mark.full_width
def test_inference_runs_in_the_folder_with_its_own_weights_as_by_the_repositorys(copied, bundles, bundle, monkeypatch):
    folder = copied(bundle)
    monkeypatch.chdir(folder)
    options = {"logging_file": False, **PROMPTED.get(bundle, {})}
    monai.bundle.run(config_file=INFERENCE, input="frame.png", output_dir="results", **options)
    record = json.loads((folder / "results" / "prediction.json").read_text())
    assert record["model"] == str(folder / "models" / "model.safetensors")
    monkeypatch.chdir(folder.parent)
    monai.bundle.run(config_file=str(bundles / bundle / INFERENCE), input="mine/frame.png", output_dir="out", **options)
    assert masks(folder / "results") == masks(folder.parent / "out") and masks(folder / "results")


def test_training_and_evaluation_run_in_the_folder(copied, site_config, small, monkeypatch):
    folder = copied("pvt_fpn")
    monkeypatch.chdir(folder)
    site = {"site_config": str(site_config), "logging_file": False}
    monai.bundle.run(config_file="configs/train.yaml", **site, **small)
    (left,) = (folder / "runs" / "pvt_fpn").iterdir()
    assert (left / "model.safetensors").is_file()
    configs = ["configs/train.yaml", "configs/evaluate.yaml"]
    checkpoint = os.path.relpath(left / "best.safetensors")
    monai.bundle.run(config_file=configs, checkpoint=checkpoint, output_dir="results", **site)
    assert json.loads((folder / "results" / "metrics.json").read_text())["frames"] == 2
