"""Options of MONAI's runner, and errors for options with a wrong type or no effect."""

import json
import logging
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import product
from types import ModuleType

import cv2
import monai.bundle
import numpy as np
import pytest

from shared_components.bundle_engines import options
from shared_components.bundle_engines.options import wrong_option
from shared_components.networks.checkpoints import load_weights, save_weights
from shared_components.networks.pvt_fpn import PvtFpn

TRACKED = {  # as MONAI's own settings of mlflow, with a handler that needs no other package
    "handlers_id": {"trainer": {"id": "train#trainer", "handlers": "train#handlers"}},
    "configs": {
        "tracking_uri": "none", "experiment_name": "mine", "run_name": None, "colour": "blue",
        "save_execute_config": True, "is_not_rank0": False,
        "trainer": {
            "_target_": "TensorBoardStatsHandler", "_disabled_": "@is_not_rank0",
            "log_dir": "$@output_dir + '/' + @experiment_name",
        },
    },
}  # fmt: skip


@pytest.fixture
def inference(bundles, video, tmp_path):
    """Run the inference config by MONAI's runner, as the command line does."""
    save_weights(tmp_path / "model.safetensors", PvtFpn().state_dict(), {"height": "64", "width": "96"})

    def inference(**options):
        given = {"input": str(video), "checkpoint": str(tmp_path / "model.safetensors")}
        given |= {"output_dir": str(tmp_path / "out"), "logging_file": False, **options}
        given.setdefault("config_file", str(bundles / "pvt_fpn" / "configs" / "inference.yaml"))
        monai.bundle.run(**given)

    return inference


@pytest.fixture
def train(bundles, site_config, small, tmp_path):
    def train(**options):
        config = {"config_file": str(bundles / "pvt_fpn" / "configs" / "train.yaml"), "logging_file": False}
        given = {"site_config": str(site_config), "output_dir": str(tmp_path / "out"), **small}
        monai.bundle.run(**config | given | options)

    return train


@pytest.fixture
def _own_logging():
    """Restore the process's logging, which MONAI's `logging_file` replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def written(path, content):
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(("typed", "parsed"), [("2024_01", 202401), ("7", 7), ("a,b", ("a", "b")), ("1e5", 1e5)])
def test_a_folder_is_found_by_the_name_that_was_typed(inference, tmp_path, monkeypatch, typed, parsed):
    """MONAI's runner reads the text of an option as a Python value."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / typed).mkdir()
    cv2.imwrite(f"{typed}/f.png", np.zeros((64, 96, 3), np.uint8))
    monkeypatch.setattr(sys, "argv", ["monai.bundle", "run", "--input", typed])
    inference(input=parsed)
    assert (tmp_path / "out" / "masks" / "f.png").is_file()


@pytest.mark.usefixtures("_own_logging")
def test_options_of_monais_runner_are_no_misspelt_keys(inference, bundles, tmp_path):
    configs = bundles / "pvt_fpn" / "configs"
    inference(
        logging_file=str(configs / "logging.conf"), meta_file=str(configs / "metadata.json"),
        args_file=written(tmp_path / "args.json", {"final_id": "finalize", "output_dir": "elsewhere"}),
        properties_path=written(tmp_path / "properties.json", {"train": {}, "meta": {}}),
        init_id="initialize", workflow_type="infer", run_id="run",
    )  # fmt: skip
    assert len(list((tmp_path / "out" / "masks").iterdir())) == 5


def test_experiment_tracking_adds_its_keys_and_follows_the_training(train, tmp_path):
    train(tracking=written(tmp_path / "settings.json", TRACKED), run_name="first")
    assert len(list((tmp_path / "out" / "mine").iterdir())) == 1
    recorded = next((tmp_path / "out").glob("config_*.json"))
    assert json.loads(recorded.read_text())["run_name"] == "first"


def test_what_tracking_takes_is_unknown_without_it_and_a_missing_mlflow_is_said(train, refusal, tmp_path):
    assert refusal(train, run_name="first").startswith("unknown option --run_name; ")
    if find_spec("mlflow") is None:
        sentence = refusal(train, tracking="mlflow")
        assert sentence.startswith("--tracking mlflow needs the package mlflow, which is not installed")
    assert not (tmp_path / "out" / "tensorboard").exists()


def test_wandb_records_losses_and_validation_scores_of_every_round(train, bundles, refusal, tmp_path, monkeypatch):
    files = [str(bundles / "pvt_fpn" / "configs" / f"{name}.yaml") for name in ("train", "wandb")]
    if find_spec("wandb") is None:
        sentence = refusal(train, config_file=files)
        assert sentence.startswith("wandb.yaml needs the package wandb, which is not installed: pip install wandb")
    begun, logged = [], []
    wandb = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    wandb.init, wandb.log = lambda **kwargs: begun.append(kwargs), lambda values, step: logged.append((step, values))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train(config_file=files)
    (given,) = begun
    assert (given["name"], given["dir"], given["mode"]) == ("hospital-a", str(tmp_path / "out"), None)
    assert given["config"]["iterations"] == 2 and (tmp_path / "out").is_dir()
    assert [step for step, _ in logged] == [1, 1, 2, 2]  # of each round the validation, then the losses
    assert all(0 <= values["validate/dice"] <= 1 for _, values in logged[::2])
    assert all(values["train/loss"] > 0 for _, values in logged[1::2])


def test_mlflow_records_a_training(train, tmp_path):
    train(tracking="mlflow", experiment_name="mine")
    assert (tmp_path / "out" / "mlruns.db").stat().st_size > 0


def test_an_overlay_of_ones_own_may_bring_keys_of_its_own(inference, bundles, tmp_path):
    overlay = tmp_path / "own.yaml"
    overlay.write_text("colour: blue\nevaluator#val_handlers: []\n")
    inference(config_file=[str(bundles / "pvt_fpn" / "configs" / "inference.yaml"), str(overlay)])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("overrides", "sentence"), [
    ({"train#trainer#ampp": True}, "unknown option --train#trainer#ampp; "),
    ({"train#steps": 3}, "unknown option --train#steps; did you mean --train#step?"),
    ({"train#handlers#1#intervall": 2}, "unknown option --train#handlers#1#intervall; did you mean "
     "--train#handlers#1#interval?"),
    ({"train::dataloader::rnk": 1}, "unknown option --train#dataloader#rnk; "),
    ({"network_def#dropot": 0.1}, "unknown option --network_def#dropot; "),
    ({"training#roundss": 3}, "training: unknown key 'roundss'; did you mean 'rounds'? known keys: "),
    ({"method#momentun": 0.9}, "method 'fedavg': "),
    ({"trackng": "mlflow"}, "unknown option --trackng; did you mean --tracking?"),
    ({"train#trainer#amp": True}, "--train#trainer#amp True has no effect, since the training step is "
     "ours; use --training#precision bf16"),
])  # fmt: skip
def test_an_override_that_would_change_nothing_is_refused(train, refusal, tmp_path, overrides, sentence):
    assert refusal(train, **overrides).startswith(sentence)
    assert not (tmp_path / "out").exists()


def test_settings_of_an_overlay_are_no_overrides(train, bundles, refusal, tmp_path):
    overlay = written(tmp_path / "paper.yaml", {"+training": {"rounds": 1, "iterations": 7, "epochs": 1}})
    files = [str(bundles / "pvt_fpn" / "configs" / "train.yaml"), overlay]
    alike = {"training#rounds": 1, "training#iterations": 7, "training#epochs": 1}
    train(config_file=files, **alike)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    message = refusal(train, config_file=files, **alike | {"training#iterations": 2})
    assert message.startswith("--training#iterations 2 has no effect, since epochs is 1; add --training#epochs 0")


def test_an_argument_that_the_config_leaves_at_its_default_can_be_given(train, tmp_path):
    train(**{"network_def#drop_path": 0.0, "train#trainer#amp": False, "validate#dataloader#batch_size": 1})
    assert "head_global.weight" in load_weights(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize(("keys", "values", "words"), [
    ("val_interval every height width", (0, -1, 1.5, float("nan"), True, "x", None, [1]),
     "it is a whole number from 1 on"),
    ("output_dir", ("", " ", 5, True, ["a"], {"a": 1}), "it is a path"),
    ("site_config input checkpoint", ("", " ", 5, True, ["a"], {"a": 1}), "it is a path, or null"),
    ("split", ("", " ", 5, True, ["a"]), "it is the name of a split: train, validation or test"),
    ("start", ("", " ", 5, True, ["a"]), "it is random, rendered or a path, or null"),
    ("video_rate", (0, -1, float("inf"), float("nan"), "x", True),
     "it is a number of images a second, above 0, or null"),
    ("training tasks network_def method", ("x", [1], None, 5),
     "it is a section: set its keys with --{}#<name> <value>"),
    ("device", ("nonsense", "cuda:99", 3.5, ["cpu"], "meta:x"),
     "it is a device of this machine, such as cpu or cuda:0"),
])  # fmt: skip
def test_an_option_of_a_wrong_kind_is_refused_with_its_value(keys, values, words):
    for key, value in product(keys.split(), values):
        assert wrong_option({key: value}) == f"--{key} is {value!r}; {words.format(key)}"


@pytest.mark.full_width
def test_another_size_than_the_checkpoints_is_refused(run, refusal, video, tmp_path):
    given = {"input": str(video), "output_dir": str(tmp_path / "out")}
    for key, value in (("height", 64), ("width", 96)):
        message = refusal(run, "pvt_fpn", "inference", **given, **{key: value})
        assert message.startswith(f"--{key} {value} has no effect, since ")
        assert message.endswith(f"was trained at 192x256 and is used at that size; remove --{key}")
        assert not (tmp_path / "out").exists()
    run("pvt_fpn", "inference", **given, height=192, width=256)
    assert (tmp_path / "out" / "masks").is_dir()
    assert not options.is_overridden("height")  # nothing runs
