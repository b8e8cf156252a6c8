"""What MONAI's own verification and the public model zoo ask of a bundle, without a network connection."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from monai.bundle import ConfigParser, ckpt_export, verify_metadata, verify_net_in_out

from shared_components.bundle_config import build_network, bundle_names, load_bundle
from shared_components.checkpoints import export_pt, save_weights

pytestmark = pytest.mark.filterwarnings("ignore:No hash value:UserWarning")
SCHEMA = Path(__file__).with_name("metadata_schema.json")
EACH = pytest.mark.parametrize("bundle", bundle_names())


def document(bundles: Path, bundle: str, config: str) -> dict:
    return yaml.safe_load((bundles / bundle / "configs" / f"{config}.yaml").read_text())


@EACH
def test_a_bundle_has_the_files_that_the_zoo_looks_for(bundles, bundle):
    for file in (
        "LICENSE",
        "docs/README.md",
        "configs/metadata.json",
        "configs/inference.yaml",
        "configs/train.yaml",
        "configs/evaluate.yaml",
        "configs/multi_gpu_train.yaml",
        "configs/logging.conf",
    ):
        assert (bundles / bundle / file).is_file(), file
    assert "Apache License" in (bundles / bundle / "LICENSE").read_text()


@EACH
def test_metadata_follow_the_schema(bundles, bundle, tmp_path):
    shutil.copy(SCHEMA, tmp_path / "schema.json")  # an existing file is not downloaded
    metadata = bundles / bundle / "configs" / "metadata.json"
    verify_metadata(meta_file=str(metadata), filepath=str(tmp_path / "schema.json"))


def test_the_schema_refuses_metadata_without_a_version(bundles, tmp_path):
    metadata = json.loads((bundles / "pfedsis" / "configs" / "metadata.json").read_text())
    del metadata["version"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="'version' is a required property"):
        verify_metadata(meta_file=str(tmp_path / "metadata.json"), filepath=str(SCHEMA))


@EACH
def test_the_changelog_knows_the_version(bundles, bundle):
    metadata = json.loads((bundles / bundle / "configs" / "metadata.json").read_text())
    assert metadata["version"] in metadata["changelog"]


@EACH
@pytest.mark.parametrize("config", ["train", "inference"])
def test_the_network_takes_and_gives_what_the_metadata_say(bundles, bundle, config):
    configs = bundles / bundle / "configs"
    verify_net_in_out(
        net_id="network_def",
        meta_file=str(configs / "metadata.json"),
        config_file=str(configs / f"{config}.yaml"),
        device="cpu",
        **{"_meta_#network_data_format#inputs#image#spatial_shape": [64, 96]},
    )


@EACH
def test_training_and_inference_define_one_network(bundles, bundle):
    definitions = [document(bundles, bundle, config)["network_def"] for config in ("train", "inference")]
    assert definitions[0] == definitions[1]


@EACH
def test_training_and_inference_have_one_input_size(bundles, bundle):
    training, inference = (
        document(bundles, bundle, "train")["training"],
        document(bundles, bundle, "inference"),
    )
    metadata = json.loads((bundles / bundle / "configs" / "metadata.json").read_text())
    size = [training["height"], training["width"]]
    assert size == [inference["height"], inference["width"]]
    assert size == metadata["network_data_format"]["inputs"]["image"]["spatial_shape"]


@pytest.mark.parametrize("config", ["evaluate", "inference", "multi_gpu_train"])
def test_the_two_bundles_differ_in_name_network_and_tasks_alone(bundles, config):
    pfedsis, pvt_fpn = (document(bundles, bundle, config) for bundle in ("pfedsis", "pvt_fpn"))
    pfedsis.get("network_def", {}).pop("appearance_head", None)
    for kinds in (pfedsis.get("tasks", {}), pvt_fpn.get("tasks", {})):
        for kind in ("depth", "reconstruction"):
            kinds.pop(kind, None)
    assert json.dumps(pfedsis).replace("pfedsis", "pvt_fpn") == json.dumps(pvt_fpn)


@EACH
@pytest.mark.parametrize("config", ["train", "evaluate", "inference", "multi_gpu_train"])
def test_expressions_hold_no_logic(bundles, bundle, config):
    """Style rule 15: a `$` expression does one call or joins two strings; ifs, loops and lambdas are Python's."""
    parser = ConfigParser(document(bundles, bundle, config))
    text = json.dumps(parser.get())
    assert not any(word in text for word in (" if ", " for ", "lambda", " and ", " or "))


@EACH
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("use_trace", [False, True])
def test_a_federations_weights_become_a_torchscript_of_the_bundle(bundles, bundle, use_trace, tmp_path):
    torch.manual_seed(0)
    network = build_network(load_bundle(bundle).network).eval()
    save_weights(tmp_path / "model.safetensors", network.state_dict())
    export_pt(tmp_path / "model.safetensors", tmp_path / "models" / "model.pt")
    ckpt_export(
        net_id="network_def",
        filepath=str(tmp_path / "models" / "model.ts"),
        ckpt_file=str(tmp_path / "models" / "model.pt"),
        meta_file=str(bundles / bundle / "configs" / "metadata.json"),
        config_file=str(bundles / bundle / "configs" / "inference.yaml"),
        use_trace=use_trace,
        input_shape=[1, 3, 64, 96],
    )
    image = torch.rand(1, 3, 64, 96)
    exported = torch.jit.load(str(tmp_path / "models" / "model.ts")).eval()
    assert torch.equal(exported(image), network(image))
