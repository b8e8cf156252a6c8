"""Options of a wrong kind are refused before anything is read, and a size that would change nothing is, too."""

import numpy as np
import pytest
import yaml
from monai.bundle import ConfigWorkflow
from PIL import Image

from shared_components.bundle_engines import options
from shared_components.bundle_engines.options import KINDS, ConfigError, wrong_option
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import check_size, load_bundle, weightless

NUMBERS = (0, -1, 1.5, float("nan"), True, "x", None, [1])


@pytest.mark.parametrize("key", ["val_interval", "every", "height", "width"])
@pytest.mark.parametrize("value", NUMBERS)
def test_a_count_is_a_whole_number_from_1_on(key, value):
    assert wrong_option({key: value}) == f"--{key} is {value!r}; it is a whole number from 1 on"


@pytest.mark.parametrize("value", ["", " ", 5, True, ["a"], {"a": 1}])
@pytest.mark.parametrize("key", ["output_dir", "site_config", "input", "checkpoint", "split", "start"])
def test_a_text_is_a_text(key, value):
    assert wrong_option({key: value}).startswith(f"--{key} is {value!r}; it is ")


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "x", True])
def test_a_rate_is_above_0(value):
    assert wrong_option({"video_rate": value}).endswith("a number of images a second, above 0")


@pytest.mark.parametrize("value", ["x", [1], None, 5])
@pytest.mark.parametrize("key", ["training", "tasks", "network_def", "method"])
def test_a_section_is_changed_by_its_keys(key, value):
    assert wrong_option({key: value}).endswith(f"it is a section: write its settings as --{key}#<name> <value>")


@pytest.mark.parametrize("value", ["nonsense", "cuda:99", 3.5, ["cpu"], "meta:x"])
def test_a_device_is_one_of_this_machine(value):
    assert wrong_option({"device": value}).endswith("a device of this machine, such as cpu or cuda:0")


@pytest.mark.parametrize("value", ["$engines.device()", "@site", 8, "cpu", None])
def test_what_monai_works_out_and_what_others_know_is_left_to_them(value):
    assert wrong_option({"output_dir": value} if isinstance(value, str) else {"another": value}) == ""


@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_the_files_own_values_fit_and_the_table_knows_them(name):
    folder = bundle_config.bundles_folder() / "pvt_fpn" / "configs"
    config = yaml.safe_load((folder / f"{name}.yaml").read_text())
    assert wrong_option(config) == ""
    assert KINDS.keys() & config.keys()


def test_every_option_that_is_checked_stands_in_a_file():
    folder = bundle_config.bundles_folder() / "pvt_fpn" / "configs"
    keys = set().union(*(yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")))
    assert KINDS.keys() <= keys


@pytest.mark.parametrize(
    ("size", "least", "near"),
    [((33, 64), 1, "32x64"), ((1, 64), 1, "32x64"), ((80, 90), 1, "64x96"), ((32, 64), 50, "64x64")],
)
def test_a_size_is_of_multiples_and_another_is_told_which_would_do(size, least, near):
    network = weightless(load_bundle("pvt_fpn").network)
    with pytest.raises(ValueError, match=rf"PvtFpn takes multiples of 32.*; {near} would do"):
        check_size(network, *size, least=least)
    check_size(network, *map(int, near.split("x")), least=least)


@pytest.mark.parametrize(("change", "key"), [({"height": 64}, "height"), ({"width": 96}, "width")])
def test_a_size_that_the_checkpoint_overrules_is_refused(tmp_path, change, key):
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(tmp_path / "frame.png")
    workflow = inference(tmp_path, **change)
    with pytest.raises(RuntimeError) as caught:
        workflow.run()
    reasons = []
    error = caught.value
    while error is not None:
        reasons.append(error)
        error = error.__cause__
    (said,) = [str(reason) for reason in reasons if isinstance(reason, ConfigError)]
    assert said.startswith(f"--{key} {change[key]} would change nothing, since ")
    assert said.endswith("was trained at 192x256 and is used at that size; leave it out")
    assert not (tmp_path / "out").exists()


def test_the_size_that_the_checkpoint_has_may_be_said(tmp_path):
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(tmp_path / "frame.png")
    inference(tmp_path, height=192, width=256).run()
    assert (tmp_path / "out" / "masks").is_dir()


def test_nothing_is_overridden_where_nothing_runs():
    assert not options.is_overridden("height")


def inference(folder, **change):
    config = bundle_config.bundles_folder() / "pvt_fpn" / "configs" / "inference.yaml"
    workflow = ConfigWorkflow(
        str(config),
        workflow_type="inference",
        input=str(folder / "frame.png"),
        output_dir=str(folder / "out"),
        **change,
    )
    workflow.initialize()
    return workflow
