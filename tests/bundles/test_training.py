"""A bundle trains one site, with its own network or another: bit-equal to a federation, files, errors."""

import dataclasses
import json
from types import SimpleNamespace

import monai.bundle
import numpy as np
import pytest
import torch

from shared_components import bundle_engines as engines
from shared_components.cli import main
from shared_components.core import training
from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import score_quickly
from shared_components.core.initial_weights import START_VARIABLE
from shared_components.core.method import SiteFacts, load_method
from shared_components.core.task import make_task
from shared_components.core.trained_model import load_trained
from shared_components.core.training_settings import Training
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import Job
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_metadata, load_weights, save_pt
from shared_components.networks.network_class import VARIABLE
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.scenes.site import write_site
from tests.bundles.conftest import SIZES, masks
from tests.changed_method import changed
from tests.cuda_graphs import cuda_graphs, eager_by_context
from tests.federation.conftest import same
from tests.narrow import make_narrow
from tests.networks import own
from tests.networks.conftest import TOY
from tests.networks.test_sam2_checkpoint import published

CACHED = {"height": 64, "width": 64, "flips": False, "crops": False, "feature_cache_gb": 1.0}
BOTH = pytest.mark.parametrize(("bundle", "method"), [("pfedsis", "pfedsis"), ("pvt_fpn", "fedavg")])


def settings_of(sizes: dict) -> Training:
    return Training(**{name.removeprefix("training#"): value for name, value in sizes.items()})


def task_at(site):
    return make_task("segmentation", load_bundle("pvt_fpn").tasks["segmentation"], classes=site.classes)


@BOTH
def test_training_leaves_the_last_and_the_best_weights(run, bundle, method, site_config, small, tmp_path):
    workflow = run(bundle, "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small)
    assert workflow.check_properties() == []
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"model.safetensors", "best.safetensors", "tensorboard"}
    notes = load_metadata(tmp_path / "out" / "best.safetensors")
    assert notes["site"] == "hospital-a" and notes["bundle"] == bundle and notes["method"] == method
    assert notes["classes"] == "background,shaft,wrist,clasper"
    state = workflow.parser.get_parsed_content("validate#evaluator").state
    assert notes["validation_dice"] == str(state.best_metric) and notes["round"] == str(state.best_metric_epoch)


@BOTH
def test_recorded_steps_train_as_eager_steps(run, bundle, method, site_config, small, tmp_path, request, monkeypatch):
    graphs = request.getfixturevalue(cuda_graphs.__name__)
    make_narrow(monkeypatch)
    sizes = small | {"training#iterations": 4, "training#optimizer": "sgd", "training#learning_rate": 2**-11}
    ends = []
    for name in ("eager", "recorded"):
        with monkeypatch.context() as patch:
            if name == "recorded":
                patch.setattr(training, "why_eager", eager_by_context)
            out = str(tmp_path / name)
            workflow = run(bundle, "train", site_config=str(site_config), output_dir=out, **sizes)
        losses = workflow.parser.get_parsed_content("train#trainer").state.metrics
        ends.append((losses, load_weights(tmp_path / name / "model.safetensors")))
    assert {type(value) for value in ends[1][0].values()} == {float}
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-4)
    torch.testing.assert_close(ends[1][1], ends[0][1], rtol=1e-3, atol=1e-5)
    assert graphs.replays == 2  # in both rounds, one step follows the warm-up
    out = str(tmp_path / "off")
    with monkeypatch.context() as patch:
        patch.setattr(training, "why_eager", eager_by_context)
        run(bundle, "train", site_config=str(site_config), output_dir=out, **{"train#step#recorded": False}, **sizes)
    assert graphs.replays == 2


def test_the_number_of_classes_follows_the_site(run, three_class_site, small, tmp_path):
    run("pvt_fpn", "train", site_config=str(three_class_site), output_dir=str(tmp_path / "out"), **small)
    assert len(load_weights(tmp_path / "out" / "model.safetensors")["head_global.weight"]) == 3


@pytest.mark.full_width
def test_training_starts_from_the_shipped_weights_and_by_paper_yaml_from_the_seed(prepare, bundles, site_config):
    shipped = load_weights(bundles / "pvt_fpn" / "models" / "model.safetensors")["encoder.norm4.weight"].float()
    for configs, begun, size in ((["train"], True, (192, 256)), (["train", "paper"], False, (512, 640))):
        parser = prepare("pvt_fpn", *configs, site_config=str(site_config)).parser
        network, settings = (parser.get_parsed_content(name) for name in ("network", "settings"))
        assert torch.equal(network.encoder.norm4.weight, shipped) == begun
        assert (settings.height, settings.width) == size


def test_paper_yaml_of_surgfed_trains_sam2_small_from_weights_that_are_named(bundles, refusal, tmp_path, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "small", TOY)
    monkeypatch.delenv(START_VARIABLE, raising=False)
    videos = {"train": 1, "validation": 1, "test": 1}
    site = write_site(tmp_path / "site", look="rose", seed=1, videos=videos, frames_per_video=2, height=64, width=64)
    files = [str(bundles / "surgfed" / "configs" / f"{name}.yaml") for name in ("train", "paper")]
    options = {"config_file": files, "site_config": str(site), "output_dir": str(tmp_path / "out")}
    none = refusal(monai.bundle.run, **options)
    assert none.startswith("training: start is 'file', but no file is given; set") and "or --start" in none
    path = published(tmp_path)
    monai.bundle.run(**options, start=str(path), **{"training#rounds": 1, "training#epochs": 1})
    model = tmp_path / "out" / "model.safetensors"
    notes, state = load_metadata(model), load_weights(model)
    assert json.loads(notes["network"]) == {"architecture": "small", "size": 512}
    assert (notes["height"], notes["width"]) == ("512", "512")
    meta = torch.load(path, weights_only=True)["model"]
    fixed = "image_encoder.trunk.patch_embed.proj.weight"
    assert torch.equal(state["vision_encoder.backbone.patch_embed.projection.weight"], meta[fixed])
    assert not torch.equal(state["mask_decoder.conv_s0.weight"], meta["sam_mask_decoder.conv_s0.weight"])
    assert load_bundle("surgfed").network["architecture"] == "cpu"  # a job names its own network


def test_validation_scores_as_in_a_federation_and_rounds_differ_between_processes(site_config, small):
    site, settings = load_site(site_config), settings_of(small)
    task = task_at(site)
    dataset = engines.readable_dataset(site, "validation", task, settings)
    torch.manual_seed(0)
    network = build_network(load_bundle("pvt_fpn").network).eval()
    step = engines.EvaluationStep(task, quick=True)
    for number, batch in enumerate(engines.ValidationBatches(dataset, task, batch_size=1), start=1):
        state = SimpleNamespace(iteration=number, device="cpu")
        step(SimpleNamespace(state=state, network=network), batch)
    scores = score_quickly(network, task, dataset)
    assert engines.FirstMetric(step).compute() == scores["dice"]["mean"] and step.scorer.summary() == scores
    dataset, method = engines.readable_dataset(site, "train", task, settings), load_method("pfedsis")
    rounds, again, other = (engines.Rounds(dataset, settings, task, method, rank=rank) for rank in (0, 0, 1))
    first, second = list(rounds), list(rounds)
    assert len(first) == len(rounds) == 2
    assert not torch.equal(first[0]["image"], second[0]["image"])
    assert torch.equal(first[0]["image"], next(iter(again))["image"])
    assert not torch.equal(first[0]["image"], next(iter(other))["image"])
    assert rounds.context.site == other.context.site == 0


@pytest.mark.parametrize(("overrides", "sentence"), [
    ({"site_config": None}, "site_config: not given; add --site_config"),
    ({"site_config": "/nowhere/site.yaml"}, "/nowhere/site.yaml: no such file"),
    ({"training#heigth": 64}, "training: unknown key 'heigth'"),
    ({"site_confg": "x"}, "unknown option --site_confg; did you mean --site_config?"),
    ({"checkpoint": "x"}, "unknown option --checkpoint"),
    ({"start": "/nowhere/b0.pth"}, "checkpoint /nowhere/b0.pth does not exist"),
    ({"start": "rendered", "training#start": "pretrained"}, "training: start is 'pretrained'; use one of random"),
    ({"training#batch_size": 99, "training#few_samples": "refuse"}, "site "),
    ({"training#start": "file"}, "training: start is 'file', but no file is given; set SURGFL_START"),
])  # fmt: skip
def test_a_wrong_command_line_is_refused(run, refusal, site_config, small, tmp_path, overrides, sentence):
    options = {"site_config": str(site_config), "output_dir": str(tmp_path / "out"), **small, **overrides}
    assert refusal(run, "pfedsis", "train", **options).startswith(sentence)
    assert not (tmp_path / "out").exists()


def test_a_mask_with_an_unknown_id_is_named_before_training(run, refusal, site_config, small, tmp_path):
    path = tmp_path / "data" / "train" / "mask" / "video2frame001.npy"
    np.save(path, np.full((64, 96), 9, np.uint8))
    sentence = refusal(run, "pfedsis", "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small)
    assert "hospital-a" in sentence and str(path) in sentence and "9" in sentence
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_method_conditions_the_network_on_the_only_site_before_it_trains(site_config):
    site, heard = dataclasses.replace(load_site(site_config), text="porcine"), []
    rounds = SimpleNamespace(task=task_at(site), dataset=SimpleNamespace(site=site), settings=Training(), rank=0)
    network = build_network(load_bundle("pvt_fpn").network, out_channels=4)

    def condition(options, facts):
        heard.append((options, facts))
        return ""

    engines.TrainingStep(changed(load_method("fedavg"), local_condition_on_site=condition), network, rounds)
    assert heard == [(network, SiteFacts("porcine", dataset=site.dataset, task=site.task, classes=site.classes))]

    def refuse(options, facts):
        raise ValueError("has no vector")

    with pytest.raises(SiteError, match=rf"^site {site.name}, {site.path}: has no vector$"):
        engines.TrainingStep(changed(load_method("fedavg"), local_condition_on_site=refuse), network, rounds)


def test_a_network_of_other_arguments_is_known_by_the_header_alone(run, site_config, small, tmp_path):
    site_config.write_text(site_config.read_text() + "\ntext: porcine nephrectomy\n")
    alone = {"network_def#temporal": False, "tasks#segmentation#frames": 1, "tasks#segmentation#interval": 0.0}
    run("fedst", "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small, **alone)
    path = tmp_path / "out" / "best.safetensors"
    assert json.loads(load_metadata(path)["network"]) == {"temporal": False}
    assert not load_trained(path, bundle="fedst").network.takes_clips


@pytest.mark.slow
@pytest.mark.parametrize(("bundle", "method", "changed"), [
    ("pfedsis", "pfedsis", {}), ("pvt_fpn", "fedavg", {"colour": 1.0}), ("pfedsis", "pfedsis", {"precision": "bf16"}),
    ("surgfed", "surgfed", CACHED),
])  # fmt: skip
def test_a_bundle_trains_to_the_bits_of_a_federation_of_one(run, bundle, method, changed, site_config, small, tmp_path):
    small |= {f"training#{name}": value for name, value in changed.items()}
    training = {name.removeprefix("training#"): value for name, value in small.items()}
    small |= {"training#epochs": 0}  # as iterations do in a job
    site_config.write_text(site_config.read_text() + "rate: 1\n")
    network = {"text": "none"} if bundle == "surgfed" else {}
    small |= {f"network_def#{name}": value for name, value in network.items()}
    job = Job("alone", bundle, method, rounds=training.pop("rounds"), training=training, network=network)
    folder = run_together(job, {"only": site_config}, tmp_path / "runs").folder
    run(bundle, "train", site_config=str(site_config), output_dir=str(tmp_path / "out"), **small)

    federated = load_weights(folder / "only" / "model.safetensors")
    alone = load_weights(tmp_path / "out" / "model.safetensors")
    assert federated.keys() == alone.keys()
    assert [name for name in alone if not torch.equal(alone[name], federated[name])] == []
    assert len(list((tmp_path / "out").glob("features/*/*"))) == (3 if "feature_cache_gb" in changed else 0)


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
def test_a_monai_network_is_trained_scored_and_shown(train, run, evaluated, site_config, video, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    path = train(UNET)
    notes = load_metadata(path)
    assert json.loads(notes["network"]) == {"class": "monai.networks.nets.BasicUNet", **dict(list(UNET.items())[1:])}
    assert load_trained(path, bundle="pvt_fpn").size == (64, 96)
    scores = evaluated("pvt_fpn", site_config, path, tmp_path / "scores")
    run("pvt_fpn", "inference", input=str(video), checkpoint=str(path), output_dir=str(tmp_path / "seen"))
    assert main(["segment", str(video), "--model", str(path), "--out", "ours", "--threads", "1"]) == 0
    assert masks(tmp_path / "seen") == masks(tmp_path / "ours") and len(masks(tmp_path / "ours")) == 5

    plain = tmp_path / "plain.pt"  # of another program: the same network_def says what it is of
    save_pt(plain, load_weights(path))
    sizes = {"training#height": 64, "training#width": 96, "network_def": UNET}
    assert evaluated("pvt_fpn", site_config, plain, tmp_path / "again", **sizes)["dice"] == scores["dice"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BasicUNet", "SegResNet"])
def test_it_is_exported_to_onnx(train, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"blocks_down": [1, 1], "blocks_up": [1]}  # each layer takes the exporter a second
    definition = UNET if name == "BasicUNet" else {"_target_": name, "spatial_dims": 2, "in_channels": 3, **few}
    path = train(definition | {"_target_": name})
    assert main(["onnx", "--model", str(path), "--out", "model.onnx"]) == 0
    assert (tmp_path / "model.onnx").stat().st_size > 0
