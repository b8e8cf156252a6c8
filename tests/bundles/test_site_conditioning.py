# ruff: noqa: F401, F811 (the fixture `scenes`)
"""FedST's models with the bundle's configs: text vectors of a site's own model and of the model for unseen sites."""

import json
import sys

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shared_components.bundle_engines import trained_network_for
from shared_components.cli import main
from shared_components.core import evaluation
from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method
from shared_components.core.site_conditioning import conditioned_header, describe_site, needs_site, unconditioned_header
from shared_components.core.task import make_task
from shared_components.core.text.pretrained import MINILM_SHA256
from shared_components.core.text.site_text import site_text
from shared_components.core.text.vectors import read_vectors
from shared_components.core.trained_model import load_trained
from shared_components.data.samples import LABELLED, samples
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import run_together
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Predictor
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import CheckpointError, load_metadata, save_weights
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from tests.federation.conftest import make_job, rewritten, scenes

SIZE = (32, 64)


@pytest.fixture(scope="module")
def federation(scenes, tmp_path_factory, narrow_module):
    """Two sites have trained FedST and publish a model; the third site is unseen."""
    folder = tmp_path_factory.mktemp("fedst")
    sites = {f"site-{n + 1}": rewritten(path, folder / f"s{n}", publish=["model"]) for n, path in enumerate(scenes[:2])}
    return run_together(make_job("fedst", rounds=1), sites, folder / "runs", server_data=scenes[2])


@pytest.fixture
def own(federation):
    return federation.folder / "site-1" / "model.safetensors"


@pytest.fixture
def for_unseen(federation):
    return federation.folder / "server" / "model.safetensors"


def vector_of(path):
    vectors = read_vectors()
    return vectors.values[vectors.texts.index(site_text(load_site(path).text))]


def scored(checkpoint, site_config, indicator):
    """Score a model with an indicator, without bundle code."""
    network = PvtFpnClips(out_channels=4)
    network.load_state_dict(load_file(checkpoint))
    network.set_indicator(indicator)
    site, task = load_site(site_config), make_task("segmentation", classes=load_site(site_config).classes)
    result = evaluation.score_fully(network.eval(), task, samples(site, "test", LABELLED), size=SIZE, split="test")
    return json.loads(json.dumps({metric.name: result[metric.name] for metric in task.metrics}))


@pytest.fixture
def evaluate(evaluated, tmp_path):
    """Return a function that returns the scores of a model by their metrics."""

    def evaluate(checkpoint, site_config):
        result = evaluated("fedst", site_config, checkpoint, tmp_path / "results")
        return {metric["name"]: result[metric["name"]] for metric in result["metrics"]}

    return evaluate


def test_headers_record_the_encoder_of_the_sites_text_if_the_method_uses_it(own, for_unseen, federation):
    assert load_metadata(own)["told"] == f"sentence {MINILM_SHA256}"
    notes = load_metadata(for_unseen)
    assert notes["told"] == "" and notes["sites"] == "2"
    assert json.loads(notes["arguments"]) == dict(federation.job.arguments)
    assert needs_site(notes) and not needs_site(load_metadata(own)) and not needs_site({})
    assert conditioned_header("") == unconditioned_header(load_method("fedavg"), {}, 3) == {}


def test_own_models_keep_their_vector_and_models_for_unseen_sites_take_the_sites(evaluate, own, scenes, for_unseen):
    for scene in scenes[:2]:
        assert evaluate(own, scene) == scored(own, scene, vector_of(scenes[0]))
    mean = load_file(for_unseen)["indicator"]
    torch.testing.assert_close(mean, (vector_of(scenes[0]) + vector_of(scenes[1])) / 2)
    expected = vector_of(scenes[2])
    assert evaluate(for_unseen, scenes[2]) == scored(for_unseen, scenes[2], expected)
    task = make_task("segmentation", classes=load_site(scenes[2]).classes)
    for site, indicator in ((load_site(scenes[2]), expected), (None, mean)):
        network = trained_network_for(PvtFpnClips(), task, str(for_unseen), bundle="fedst", site=site)
        assert torch.equal(network.indicator, indicator)


def test_merged_classes_condition_the_inner_network_and_numbered_kinds_count_one_more(for_unseen, scenes, tmp_path):
    site = load_site(rewritten(scenes[2], tmp_path / "c", classes="foreground"))
    task = make_task("segmentation", classes=site.classes)
    merged = trained_network_for(PvtFpnClips(), task, str(for_unseen), bundle="fedst", site=site)
    assert torch.equal(merged.network.indicator, vector_of(scenes[2]))
    notes = load_metadata(for_unseen) | {"arguments": json.dumps({"text_encoder": "one_hot"})}
    save_weights(tmp_path / "m.safetensors", load_file(for_unseen), notes)
    network = PvtFpnClips()
    assert describe_site(network, tmp_path / "m.safetensors", load_site(scenes[2])) == "one_hot"
    assert network.indicator.nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize("text, sentence", [
    ("", "the site's text is ''; describe the site"), ("liver resection", "has no vector of the text"),
])  # fmt: skip
def test_a_site_without_a_text_of_use_is_refused(evaluate, for_unseen, own, scenes, tmp_path, capsys, text, sentence):
    bad = rewritten(scenes[2], tmp_path / "bad", text=text)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        evaluate(for_unseen, bad)
    capsys.readouterr()
    sys.excepthook(caught.type, caught.value, caught.tb)  # as at the command line
    message = capsys.readouterr().err
    assert message.startswith(f"error: site bad, {bad}: ") and sentence in message and message.count("\n") == 1
    assert evaluate(own, bad)["dice"]  # the site's own model asks for none


@pytest.mark.parametrize("changed", [
    {"method": "fedsgd"}, {"arguments": "[]"}, {"arguments": "{"},
    *({"sites": n} for n in ("many", "-1", "10001", "1" * 12)),
])  # fmt: skip
def test_a_header_without_the_methods_arguments_is_refused(for_unseen, scenes, tmp_path, changed):
    save_weights(tmp_path / "m.safetensors", load_file(for_unseen), load_metadata(for_unseen) | changed)
    with pytest.raises(CheckpointError, match=r"m\.safetensors needs a site, but its header lacks the settings"):
        describe_site(PvtFpnClips(), tmp_path / "m.safetensors", load_site(scenes[2]))


def masks_in(folder):
    return [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in sorted((folder / "masks").iterdir())]


def shown(checkpoint, indicator, video):
    network = build_network(load_bundle("fedst").network, out_channels=4)
    network.load_state_dict(load_file(checkpoint))
    network.set_indicator(indicator)
    task = make_task("segmentation", classes=("background", "shaft", "wrist", "clasper"))
    predictor = Predictor(network.eval(), task)
    stream = FrameStream(video, height=SIZE[0], width=SIZE[1])
    return [predictor(item["image"], item["shot"].image.shape[:2])[1] for item in stream]


def test_frames_are_predicted_with_the_sites_vector(run, refusal, for_unseen, own, scenes, video, tmp_path, caplog):
    options = {"input": str(video), "checkpoint": str(for_unseen)}
    seen, mean = tmp_path / "seen", tmp_path / "mean"
    run("fedst", "inference", site_config=str(scenes[2]), output_dir=str(seen), **options)
    assert "goes by" not in caplog.text and "mean of its training sites' texts" not in caplog.text
    expected = shown(for_unseen, vector_of(scenes[2]), video)
    assert all(np.array_equal(a, b) for a, b in zip(masks_in(seen), expected, strict=True))
    run("fedst", "inference", output_dir=str(mean), **options)
    assert "uses the mean of its training sites' texts; give the site.yaml" in caplog.text
    expected = shown(for_unseen, load_file(for_unseen)["indicator"], video)
    assert all(np.array_equal(a, b) for a, b in zip(masks_in(mean), expected, strict=True))
    options["checkpoint"] = str(own)
    message = refusal(run, "fedst", "inference", site_config=str(scenes[2]), output_dir=str(tmp_path / "x"), **options)
    assert message == f"checkpoint {own} needs no site, or contains its own site; leave {scenes[2]} out"
    run("fedst", "inference", output_dir=str(tmp_path / "own"), **options)
    expected = shown(own, vector_of(scenes[0]), video)
    assert all(np.array_equal(a, b) for a, b in zip(masks_in(tmp_path / "own"), expected, strict=True))


def test_the_command_takes_the_site_too(for_unseen, scenes, video, tmp_path, monkeypatch):
    site = load_site(scenes[2])
    assert torch.equal(load_trained(for_unseen, bundle="pvt_fpn", site=site).network.indicator, vector_of(scenes[2]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    command = ["segment", str(video), "--model", str(for_unseen), "--out", "seen", "--site"]
    assert main([*command, str(scenes[2])]) == 0
    expected = shown(for_unseen, vector_of(scenes[2]), video)
    assert all(np.array_equal(a, b) for a, b in zip(masks_in(tmp_path / "seen"), expected, strict=True))
