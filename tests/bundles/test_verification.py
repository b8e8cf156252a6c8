"""Checks of MONAI's verification and the public model zoo, without a network connection."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import cv2
import monai
import numpy as np
import pytest
import torch
import yaml
from monai.bundle import ConfigParser, create_workflow, verify_metadata, verify_net_in_out
from safetensors.torch import load_file

from shared_components.bundle_engines import prepare
from shared_components.core.bundle import load_bundle
from shared_components.core.calibration import FILE as CALIBRATION
from shared_components.core.shipped_weights import EXPORTED, FACTS, MODEL, mean_of_real, sha256_of, shipped_weights
from shared_components.core.trained_model import load_trained
from shared_components.core.training_settings import training_from
from shared_components.networks.bundle_config import build_network, bundle_names, weightless, weights_of
from shared_components.networks.checkpoints import export_pt, load_metadata, save_weights
from shared_components.weights.bundle_files.make import read_description
from tests.bundles.conftest import BUNDLES, PROMPTED, SEGMENTING, SHIPPING, export

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full_width,
    pytest.mark.filterwarnings("ignore:No hash value:UserWarning", "error:Detected deprecated name:UserWarning"),
]
ROOT = Path(__file__).parents[2]
SCHEMA = Path(__file__).with_name("metadata_schema.json")
EACH = pytest.mark.parametrize("bundle", bundle_names())
WITH_WEIGHTS = pytest.mark.parametrize("bundle", SEGMENTING)
EXPORTED_TO_TORCHSCRIPT = pytest.mark.parametrize("bundle", [name for name in SHIPPING if name not in PROMPTED])


@pytest.fixture
def bundles(zoo: Path) -> Path:
    return zoo


def document(bundles: Path, bundle: str, config: str) -> dict:
    return yaml.safe_load((bundles / bundle / "configs" / f"{config}.yaml").read_text())


def metadata_of(bundles: Path, bundle: str) -> dict:
    return json.loads((bundles / bundle / "configs" / "metadata.json").read_text())


@WITH_WEIGHTS
def test_the_files_of_the_zoo_are_there_and_model_pt_holds_the_shipped_weights_bit_for_bit(bundles, bundle):
    """Necessary: LICENSE and metadata; preferred: model.pt and an inference config; none above 25 MB."""
    configs = ("metadata.json", "inference.yaml", "train.yaml", "evaluate.yaml", "multi_gpu_train.yaml", "logging.conf")
    others = ("models/model.pt", "docs/data_license.txt", "docs/README.md", "LICENSE")
    for file in (*others, *(f"configs/{name}" for name in configs)):
        assert (bundles / bundle / file).is_file(), file
    assert "Apache License" in (bundles / bundle / "LICENSE").read_text()
    assert max(path.stat().st_size for path in (bundles / bundle).rglob("*") if path.is_file()) < 25_000_000
    assert re.fullmatch("surgical_[a-z0-9_]+", read_description(bundle).zoo_name)
    state = torch.load(bundles / bundle / EXPORTED, weights_only=True)
    shipped = load_file(bundles / bundle / MODEL)
    assert all(torch.equal(state[name], value) and state[name].dtype == value.dtype for name, value in shipped.items())
    network = ConfigParser(document(bundles, bundle, "inference")).get_parsed_content("network_def")
    network.load_state_dict(state)  # strictly, as MONAI Label and ignite do
    helpers = {name.partition(".")[0] for name in state.keys() - shipped.keys()}
    assert helpers <= set(getattr(type(network), "training_only", ()))
    assert all(bool(value.isfinite().all()) for value in state.values())
    assert load_metadata(bundles / bundle / EXPORTED) == load_metadata(bundles / bundle / MODEL)


def test_the_repository_has_every_weight_once():
    """A fresh clone must contain the weights, although .gitignore lists `*.safetensors`."""
    listed = subprocess.run(["git", "ls-files", "bundles"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no repository")
    files = [ROOT / name for name in listed.stdout.split() if Path(name).suffix in (".safetensors", ".pt")]
    files = [file for file in files if file.name != CALIBRATION]
    named = {file.relative_to(ROOT / "bundles") for file in files}
    assert named == {shipped_weights(bundle).relative_to(ROOT / "bundles") for bundle in SHIPPING}
    assert len({sha256_of(file) for file in files}) == len(files) < len(SHIPPING)


@WITH_WEIGHTS
def test_metadata_hold_measured_scores_the_packages_of_these_tests_and_the_size_of_the_weights(bundles, bundle):
    metadata = metadata_of(bundles, bundle)
    facts = json.loads((bundles / bundle / FACTS).read_text())
    named = [score["dice"]["mean"] for score in facts["scores"] if score["where"] == "named look"]
    mean = pytest.approx(sum(named) / len(named), abs=0.02)
    assert metadata["eval_metrics"][f"dice, mean of {len(named)} named looks"] == mean
    kinds = {score["where"] for score in facts["scores"]} - {"real"}  # named looks, and unseen ones of each family
    assert len(metadata["eval_metrics"]) == len(kinds) + len(mean_of_real(facts))
    assert all(0 < v < 1 for v in metadata["eval_metrics"].values())
    assert "optional_packages_version" not in metadata  # MONAI's older name, of which it warns at every run
    for name, stated in metadata["required_packages_version"].items():
        assert version(name) == stated, name
    for name, key in (("monai", "monai_version"), ("numpy", "numpy_version"), ("torch", "pytorch_version")):
        assert version(name).partition("+")[0] == metadata[key]
    notes = load_metadata(bundles / bundle / MODEL)
    size = [int(notes["height"]), int(notes["width"])]
    data = metadata["network_data_format"]
    assert size == data["inputs"]["image"]["spatial_shape"] == data["outputs"]["pred"]["spatial_shape"]
    transforms = document(bundles, bundle, "inference")["preprocessing"]["transforms"]
    (fitted,) = [transform for transform in transforms if transform["_target_"].endswith("FrameToNetworkd")]
    assert size == [fitted["height"], fitted["width"]]
    names = notes["outputs"].split(",")
    assert data["outputs"]["pred"]["channel_def"] == {str(n): name for n, name in enumerate(names)}
    assert data["outputs"]["pred"]["num_channels"] == len(names)


@pytest.mark.parametrize("bundle", ["pvt_fpn", "pfedsis"])
def test_monais_load_returns_the_network_with_its_weights_and_begins_no_progress_bar(bundles, bundle, monkeypatch):
    monkeypatch.setattr(prepare, "listen", lambda listener: pytest.fail("a bar in somebody's session"))
    network = monai.bundle.load(bundle, bundle_dir=str(bundles), device="cpu")
    expected = load_trained(bundles / bundle / MODEL, bundle=bundle).network
    result = network.state_dict()
    assert all(torch.equal(result[name], value) for name, value in expected.state_dict().items() if name in result)
    assert type(network) is type(expected) and len(result) > 10
    configs = bundles / bundle / "configs"
    assert json.loads((configs / "train.json").read_text()) == document(bundles, bundle, "train")


@EXPORTED_TO_TORCHSCRIPT
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_shipped_model_pt_becomes_a_torchscript_as_the_zoo_exports_it(bundles, bundle, tmp_path):
    root = bundles / bundle
    export(root, tmp_path / "verify_model.ts", bundle_root=root)
    model = load_trained(root / MODEL, bundle=bundle)
    image = torch.rand(1, 3, 64, 96)
    exported = torch.jit.load(str(tmp_path / "verify_model.ts")).eval()
    assert torch.equal(exported(image), model.network.eval()(image))


@WITH_WEIGHTS
def test_the_properties_of_the_bundle_are_complete(bundles, bundle, tmp_path):
    """The zoo's check of properties, with the bundle's root; all properties are built, so a frame is needed."""
    cv2.imwrite(str(tmp_path / "frame.png"), np.zeros((64, 96, 3), np.uint8))
    configs = bundles / bundle / "configs"
    workflow = create_workflow(
        workflow_type="inference", bundle_root=str(bundles / bundle), logging_file=False,
        config_file=str(configs / "inference.yaml"), meta_file=str(configs / "metadata.json"),
        input=str(tmp_path / "frame.png"), output_dir=str(tmp_path / "out"), **PROMPTED.get(bundle, {}),
    )  # fmt: skip
    assert workflow.check_properties() == []
    for name in ("preprocessing", "postprocessing", "inferer", "network_def"):
        assert getattr(workflow, name) is not None


@EACH
def test_metadata_follow_the_schema_and_the_network_takes_their_size(bundles, bundle, tmp_path, monkeypatch):
    shutil.copy(SCHEMA, tmp_path / "schema.json")  # an existing file is not downloaded
    path = bundles / bundle / "configs" / "metadata.json"
    verify_metadata(meta_file=str(path), filepath=str(tmp_path / "schema.json"))
    metadata = metadata_of(bundles, bundle)
    assert metadata["version"] in metadata["changelog"]
    monkeypatch.chdir(bundles / bundle)
    files = {"meta_file": "configs/metadata.json", "config_file": "configs/inference.yaml"}
    verify_net_in_out("network_def", **files, device="cpu")


def together(bundles: Path, bundle: str, *configs: str) -> dict:
    return ConfigParser.load_config_files([str(bundles / bundle / "configs" / f"{name}.yaml") for name in configs])


@EACH
def test_all_configs_have_one_network_and_size_and_a_hospital_trains_at_a_laptops_settings(bundles, bundle):
    train, inference = (document(bundles, bundle, config) for config in ("train", "inference"))
    assert train["network_def"] == inference["network_def"]
    evaluation = together(bundles, bundle, "train", "evaluate")["training"]
    assert [evaluation[side] for side in ("height", "width")] == [inference["height"], inference["width"]]
    own = yaml.safe_load((BUNDLES / f"{bundle}.yaml").read_text()).get("training", {})
    paper = training_from(own)
    merged = training_from(together(bundles, bundle, "train", "paper")["training"])
    assert load_bundle(bundle).training == merged == paper
    alone = training_from(document(bundles, bundle, "train")["training"])
    start = "rendered" if weights_of(bundle) in SHIPPING else "random"
    assert (alone.start, alone.epochs, alone.rounds * alone.iterations) == (start, 0, 80)
    assert alone.height * alone.width <= 192 * 256 and alone.batch_size <= 4
    sizes = ("height", "width", "batch_size", "rounds", "iterations", "epochs", "start")
    assert replace(alone, **{name: getattr(paper, name) for name in sizes}) == paper


VIT_B_16 = 85_798_656
"""Parameters of ViT-B/16 at 224 x 224 without its classification layer, by its release."""


@pytest.mark.parametrize(("bundle", "without", "published"), [
    ("fl_endovit", (), 111_907_840),  # MAE's release, with its decoder of 512 x 8
    ("fl_endovit_clips", ("sequence",), VIT_B_16), ("fl_endovit_phases", ("head",), VIT_B_16),
    ("fl_endovit_segmentation", ("readout", "reassemble", "fusion", "neck", "head"), VIT_B_16 - 2 * 768),  # no norm
    ("fl_endovit_tecno", ("sequence",), VIT_B_16), ("fl_endovit_triplets", ("head",), VIT_B_16),
    ("resnet_clips", ("sequence",), 25_557_032 - 1000 * 2049),  # torchvision's ResNet-50
])  # fmt: skip
def test_paper_yaml_has_the_papers_network_and_size_and_begins_from_published_weights(bundle, without, published):
    config = together(BUNDLES, bundle, "train", "paper")
    assert (config["training"]["height"], config["training"]["width"], config["start"]) == (224, 224, "file")
    definition = {key: value for key, value in config["network_def"].items() if not str(value).startswith(("$", "@"))}
    parameters = weightless(definition).named_parameters()
    assert sum(value.numel() for name, value in parameters if name.split(".")[0] not in without) == published


@EACH
@pytest.mark.parametrize("config", ["train", "evaluate", "inference", "multi_gpu_train"])
def test_expressions_hold_no_logic(bundles, bundle, config):
    """Style rule 15: a `$` expression does one call or joins two strings; ifs, loops and lambdas are Python's."""
    parser = ConfigParser(document(bundles, bundle, config))
    text = json.dumps(parser.get())
    assert not any(word in text for word in (" if ", " for ", "lambda", " and ", " or "))


@EXPORTED_TO_TORCHSCRIPT
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_federations_weights_become_a_traced_torchscript_of_the_bundle(bundles, bundle, tmp_path):
    torch.manual_seed(0)
    network = build_network(load_bundle(bundle).network).eval()
    save_weights(tmp_path / "model.safetensors", network.state_dict())
    export_pt(tmp_path / "model.safetensors", tmp_path / "models" / "model.pt")
    traced = {"ckpt_file": tmp_path / "models" / "model.pt", "use_trace": True, "input_shape": [1, 3, 64, 96]}
    export(bundles / bundle, tmp_path / "models" / "model.ts", **traced)
    image = torch.rand(1, 3, 64, 96)
    exported = torch.jit.load(str(tmp_path / "models" / "model.ts")).eval()
    assert torch.equal(exported(image), network(image))
