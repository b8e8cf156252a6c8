"""`--network_def` of MONAI's runner: other networks are trained, scored, used and exported."""

import json

import pytest

from shared_components.cli import main
from shared_components.core.trained_model import load_trained
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.networks.checkpoints import load_metadata, load_weights, save_pt
from shared_components.networks.network_class import VARIABLE
from tests.bundles.conftest import SIZES
from tests.federation.conftest import same
from tests.networks import own

SMALL = f"{own.HERE}.Small"
UNET = {"_target_": "BasicUNet", "spatial_dims": 2, "in_channels": 3, "features": [4, 4, 8, 8, 8, 4]}


@pytest.fixture
def train(run, site_config, small, tmp_path):
    """Train a network of a definition for two rounds; return its last weights' file."""

    def train(definition, **options):
        out = tmp_path / "out"
        given = {"site_config": str(site_config), "output_dir": str(out), "network_def": definition}
        run("pvt_fpn", "train", **given, **small, **options)
        return out / "model.safetensors"

    return train


def test_ones_own_network_is_trained_to_the_bits_of_a_federation_of_one_site(train, site_config, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, SMALL)
    path = train({"_target_": SMALL, "num_classes": 2, "width": 8})
    chosen = {"class": SMALL, "width": 8}
    assert json.loads(load_metadata(path)["network"]) == chosen
    training = {name: value for name, value in SIZES.items() if name != "rounds"}
    job = Job("alone", "pvt_fpn", "fedavg", training=training, rounds=2, network=chosen)
    server = run_together(job, {"hospital-a": site_config}, tmp_path / "runs")
    assert same(load_weights(path), load_weights(server.folder / "hospital-a" / "model.safetensors"))


@pytest.mark.parametrize(("definition", "sentence"), [
    ({"_target_": SMALL, "num_classes": 4}, f"network_def: class '{SMALL}' is not allowed"),
    (UNET | {"features": "$[4, 4, 8, 8, 8, 4]"}, "network_def.features is the expression '$[4, 4"),
    (UNET | {"in_channels": 1}, "network_def: BasicUNet does not take frames [2, 3, 64, 96] ("),
])  # fmt: skip
def test_a_network_without_use_is_refused_at_the_start(train, refusal, definition, sentence, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert refusal(train, definition).startswith(sentence)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    sentence = "training: start is 'rendered', but 'pvt_fpn' ships no weights for BasicUNet; write start: random"
    assert refusal(train, UNET, start="rendered").startswith(sentence)


@pytest.mark.slow
def test_a_monai_network_is_trained_scored_and_shown(train, run, site_config, video, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    path = train(UNET)
    notes = load_metadata(path)
    assert json.loads(notes["network"]) == {"class": "monai.networks.nets.BasicUNet", **dict(list(UNET.items())[1:])}
    assert load_trained(path, bundle="pvt_fpn").size == (64, 96)
    scored = {"site_config": str(site_config), "checkpoint": str(path)}
    run("pvt_fpn", "train", "evaluate", output_dir=str(tmp_path / "scores"), **scored)
    run("pvt_fpn", "inference", input=str(video), checkpoint=str(path), output_dir=str(tmp_path / "seen"))
    assert main(["segment", str(video), "--model", str(path), "--out", "ours", "--threads", "1"]) == 0
    masks = [sorted((tmp_path / name / "masks").glob("*.png")) for name in ("seen", "ours")]
    assert len(masks[0]) == len(masks[1]) == 5
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*masks, strict=True))

    plain = tmp_path / "plain.pt"  # of another program: the same network_def says what it is of
    save_pt(plain, load_weights(path))
    sizes = {"training#height": 64, "training#width": 96, "network_def": UNET, "checkpoint": str(plain)}
    run("pvt_fpn", "train", "evaluate", output_dir=str(tmp_path / "again"), **scored | sizes)
    results = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("scores", "again")]
    assert results[0]["dice"] == results[1]["dice"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BasicUNet", "SegResNet"])
def test_it_is_exported_to_onnx(train, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"blocks_down": [1, 1], "blocks_up": [1]}  # each layer takes the exporter a second
    definition = UNET if name == "BasicUNet" else {"_target_": name, "spatial_dims": 2, "in_channels": 3, **few}
    path = train(definition | {"_target_": name})
    assert main(["onnx", "--model", str(path), "--out", "model.onnx"]) == 0
    assert (tmp_path / "model.onnx").stat().st_size > 0
