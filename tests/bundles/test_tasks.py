"""Depth, reconstruction and clips with a bundle's configs: training, evaluation, predictions, errors."""

import csv
import json

import cv2
import numpy as np
import pytest
import torch

from shared_components.bundle_engines import FirstMetric
from shared_components.core import evaluation
from shared_components.core.bundle import load_bundle
from shared_components.core.evaluation import network_input
from shared_components.core.task import checkpoint_header, make_task
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from shared_components.networks.tiny import Tiny
from shared_components.scenes.site import write_site

KINDS = ("depth", "reconstruction")
FIRST = {"depth": "rmse", "reconstruction": "mse"}
SIZE = {"height": 64, "width": 96}


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Return the site.yaml of rendered sites for depth, reconstruction and clips."""

    def render(name, layout, task, **clip):
        return write_site(
            tmp_path_factory.mktemp(name) / "site", look="rose", seed=3, layout=layout, task=task, **SIZE, **clip,
            videos={"train": 1, "validation": 1, "test": 1}, frames_per_video=3,
        )  # fmt: skip

    return {
        "depth": render("depth", "scared", "depth"),
        "reconstruction": render("reconstruction", "endovis2018", "reconstruction"),
        "clips": render("clips", "sar_rarp50", "segmentation", clip=4, interval=0.2),
    }


@pytest.fixture
def model(tmp_path):
    """Return a function that writes a task's model, and returns path, task and network."""

    def model(kind, **numbers):
        bundle = load_bundle("pvt_fpn")
        task = make_task(kind, bundle.tasks[kind] | numbers, classes=("background", "shaft", "wrist", "clasper"))
        torch.manual_seed(1)
        network = build_network(bundle.network, out_channels=task.channels).eval()
        notes = checkpoint_header("pvt_fpn", "fedavg", task, bundle.tasks[kind] | numbers, size=(64, 96))
        path = tmp_path / f"{kind}.safetensors"
        save_weights(path, network.state_dict(), notes)
        return path, task, network

    return model


def predicted(run, images, checkpoint, out, *, bundle="pvt_fpn", **overrides):
    options = {"input": str(images), "checkpoint": str(checkpoint), "output_dir": str(out), **overrides}
    run(bundle, "inference", **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_weights_are_those_of_the_lowest_error(run, sites, small, tmp_path, monkeypatch, kind):
    measured, compute = [], FirstMetric.compute

    def scripted(self):
        measured.append(compute(self))
        return [3.0, 1.0, 2.0][len(measured) - 1]

    monkeypatch.setattr(FirstMetric, "compute", scripted)
    small["training#rounds"] = 3
    run("pvt_fpn", "train", site_config=str(sites[kind]), output_dir=str(tmp_path / "out"), **small)
    best = load_metadata(tmp_path / "out" / "best.safetensors")
    assert best["task"] == kind and best["round"] == "2" and best[f"validation_{FIRST[kind]}"] == "1.0"
    assert load_metadata(tmp_path / "out" / "model.safetensors")["round"] == "3"
    assert len(set(measured)) == 3 and all(0 < value < 200 for value in measured)
    channels = {"depth": 1, "reconstruction": 3}[kind]
    assert len(load_weights(tmp_path / "out" / "best.safetensors")["head_global.weight"]) == channels


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_the_one_evaluation(evaluated, sites, model, tmp_path, kind):
    path, task, network = model(kind)
    result = evaluated("pvt_fpn", sites[kind], path, tmp_path / "out")
    chosen = samples(load_site(sites[kind]), "test", task.spec)
    expected = evaluation.score_fully(network, task, chosen, size=(64, 96), split="test")
    assert {key: result[key] for key in expected} == expected and result["frames"] == 3
    assert result["task"] == task.card.to_json() and result["definitions"] == dict(task.definitions)
    assert result["metrics"] == [metric.to_json() for metric in task.metrics]
    with open(tmp_path / "out" / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["frame"]) for row in rows] == [sample.index for sample in chosen]
    first = np.mean([float(row[FIRST[kind]]) for row in rows])
    assert np.isclose(first, result[FIRST[kind]]["mean"], rtol=1e-4)


def test_predicted_depth_reads_back_to_a_256th_of_a_millimetre(run, sites, model, tmp_path):
    path, task, network = model("depth")
    images = [sample.images[-1] for sample in samples(load_site(sites["depth"]), "test", task.spec)]
    predicted(run, images[0].parent, path, tmp_path / "out")
    for image in images:
        frame = cv2.imread(str(image))[..., ::-1]
        with torch.no_grad():
            depth = task.predict(network, {"image": network_input(frame[None], 64, 96)})[0].numpy()
        stored = cv2.imread(str(tmp_path / "out" / "depth" / image.name), cv2.IMREAD_UNCHANGED)
        assert stored.dtype == np.uint16 and stored.shape == frame.shape[:2]
        assert np.abs(stored / 256 - depth).max() <= 1 / 512 + 1e-6 and depth.min() > 1
        assert cv2.imread(str(tmp_path / "out" / "overlays" / image.name)).shape[1] > 2 * 96


def test_a_restored_frame_keeps_what_was_visible(run, sites, model, tmp_path):
    path, task, _network = model("reconstruction")
    images = [sample.images[-1] for sample in samples(load_site(sites["reconstruction"]), "test", task.spec)]
    predicted(run, images[0].parent, path, tmp_path / "out")
    for image in images:
        frame, restored = cv2.imread(str(image)), cv2.imread(str(tmp_path / "out" / "restored" / image.name))
        kept = (frame == restored).all(-1).mean()
        assert 0.2 < kept < 0.4  # a quarter of the patches is visible
    assert len(list((tmp_path / "out" / "overlays").iterdir())) == 3


@pytest.mark.parametrize(
    "learnt, has", [("segmentation", "depth"), ("depth", "reconstruction"), ("depth", "segmentation")]
)
def test_a_model_of_another_task_is_refused(evaluated, refusal, sites, site_config, model, tmp_path, learnt, has):
    path, *_ = model(learnt)
    sentence = refusal(evaluated, "pvt_fpn", sites.get(has, site_config), path, tmp_path / "out")
    assert sentence.startswith(f"checkpoint {path} was trained for {learnt}, but the site's task is {has}; use ")
    assert not (tmp_path / "out").exists()


def test_other_classes_and_tasks_are_refused(run, evaluated, refusal, sites, site_config, model, tmp_path):
    path, *_ = model("segmentation")
    notes = load_metadata(path) | {"outputs": "background,liver,gallbladder,bile duct"}
    save_weights(path, load_weights(path), notes)
    sentence = refusal(evaluated, "pvt_fpn", site_config, path, tmp_path / "out")
    assert "was trained for segmentation of background, liver, gallbladder, bile duct, but the site's" in sentence
    sentence = refusal(run, "pfedsis", "train", site_config=str(sites["depth"]), output_dir=str(tmp_path / "out"))
    assert "the task is 'depth', but this bundle learns segmentation; correct 'task' in site.yaml" in sentence


def test_a_model_is_used_with_the_numbers_that_it_has_learnt_with(run, evaluated, sites, model, tmp_path):
    """A network whose output has another unit than the bundle's 100 mm."""
    result = {}
    for scale in (100.0, 50.0):
        path, *_ = model("depth", scale=scale)
        result[scale] = evaluated("pvt_fpn", sites["depth"], path, tmp_path / str(scale))["mae"]["mean"]
        predicted(run, load_site(sites["depth"]).root / "dataset_1/keyframe_3/data/left_undistorted", path,
                  tmp_path / str(scale))  # fmt: skip
    depths = [next((tmp_path / name / "depth").iterdir()) for name in ("100.0", "50.0")]
    first, second = (cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(int) for path in depths)
    assert np.abs(first - 2 * second).max() <= 2 and result[100.0] != result[50.0]


def test_a_bundles_training_leaves_the_numbers_that_it_was_given(run, sites, small, tmp_path):
    options = {"site_config": str(sites["depth"]), "output_dir": str(tmp_path / "out"), "tasks#depth#scale": 50.0}
    run("pvt_fpn", "train", **options, **small)
    notes = load_metadata(tmp_path / "out" / "model.safetensors")
    assert json.loads(notes["numbers"]) == {"scale": 50.0} and notes["frames"] == "1"


@pytest.mark.parametrize(("overrides", "sentence"), [
    ({"tasks#depth#scal": 3}, "task 'depth': "),
    ({"tasks#depth#scale": 0}, "depth: scale is 0; it is a number, at least 0.001"),
    ({"training#iterations": 0}, "training: iterations is 0; it is a whole number, at least 1"),
    ({"training#fixed": ["encodr"]}, "training.fixed names 'encodr', which is no part"),
    ({"training#learning_rates": {"hed": 0.1}}, "training.learning_rates names 'hed', which is no part"),
    ({"training#fixed": ["encoder", "decoder", "head"]}, "no parameters are left to train; list fewer parts"),
    ({"tasks#depth#frames": 4, "tasks#depth#interval": 0.4},
     "depth asks for clips of 4 frames, and PvtFpn takes single ones"),
])  # fmt: skip
def test_a_wrong_number_is_refused_in_one_sentence(run, refusal, sites, small, tmp_path, overrides, sentence):
    options = {"site_config": str(sites["depth"]), "output_dir": str(tmp_path / "out"), **small, **overrides}
    assert refusal(run, "pvt_fpn", "train", **options).startswith(sentence)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("toy_bundle")
def test_a_bundle_trains_and_evaluates_on_clips(run, evaluated, refusal, sites, small, video, tmp_path):
    clips = {"tasks#segmentation#frames": 4, "tasks#segmentation#interval": 0.2}
    run("toy", "train", site_config=str(sites["clips"]), output_dir=str(tmp_path), **clips, **small)
    path = tmp_path / "best.safetensors"
    assert load_metadata(path)["frames"] == "4"
    result = evaluated("toy", sites["clips"], path, tmp_path, **clips)
    assert result["task"]["frames"] == 4 and result["frames"] == 3
    assert evaluated("toy", sites["clips"], path, tmp_path) == result  # the model knows its clips
    sentence = refusal(predicted, run, video, path, tmp_path / "out", bundle="toy", **clips)
    assert sentence.startswith("Tiny takes clips but has no memory for streams")


@pytest.mark.usefixtures("toy_bundle")
def test_a_model_pt_of_another_networks_head_is_used_with_as_many_classes(run, video, tmp_path):
    torch.save(Tiny(out_channels=7).state_dict(), tmp_path / "model.pt")
    predicted(run, video, tmp_path / "model.pt", tmp_path / "out", bundle="toy")
    assert len(list((tmp_path / "out" / "masks").iterdir())) == 5
