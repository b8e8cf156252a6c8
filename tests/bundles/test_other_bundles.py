"""A model of one bundle, evaluated and used with the configs of another."""

import json

import pytest
import torch

from shared_components.bundle_engines import trained_network_for
from shared_components.core.task import make_task
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import build_network, bundle_names, load_bundle
from shared_components.networks.checkpoints import export_pt, load_weights, save_weights
from shared_components.networks.pvt_fpn import PvtFpn


def task_at(site_config):
    return make_task("segmentation", classes=load_site(site_config).classes)


PAIRS = pytest.mark.parametrize(("trained", "used"), [("pvt_fpn", "pfedsis"), ("pfedsis", "pvt_fpn")])


@pytest.fixture(params=["model.safetensors", "model.pt"])
def model_of(request, tmp_path):
    """Return a function that leaves a bundle's model as a federation and as the zoo do."""

    def model_of(bundle):
        torch.manual_seed(1)
        path = tmp_path / "model.safetensors"
        save_weights(path, build_network(load_bundle(bundle).network).state_dict(), {"bundle": bundle})
        if request.param == "model.pt":
            export_pt(path, tmp_path / "model.pt")
        return str(tmp_path / request.param)

    return model_of


@PAIRS
def test_a_model_scores_the_same_with_both_bundles_evaluate(run, model_of, trained, used, site_config, small, tmp_path):
    found = []
    for bundle in (trained, used):
        out = tmp_path / bundle
        given = {"site_config": str(site_config), "checkpoint": model_of(trained), "output_dir": str(out)}
        run(bundle, "train", "evaluate", **given, **small)
        found.append(json.loads((out / "metrics.json").read_text()))
    assert found[0] == found[1]


@PAIRS
def test_a_model_predicts_the_same_with_both_bundles_inference(run, model_of, trained, used, video, tmp_path):
    for bundle in (trained, used):
        given = {"input": str(video), "checkpoint": model_of(trained), "output_dir": str(tmp_path / bundle)}
        run(bundle, "inference", height=64, width=96, **given)
    masks = [sorted((tmp_path / bundle / "masks").iterdir()) for bundle in (trained, used)]
    assert len(masks[0]) == 5
    assert [path.read_bytes() for path in masks[0]] == [path.read_bytes() for path in masks[1]]


def test_the_network_is_that_of_the_bundle_which_the_header_names(site_config, tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, PvtFpn().state_dict(), {"bundle": "pvt_fpn"})
    definition = PvtFpn(appearance_head=True, dropout=0.5)
    network = trained_network_for(definition, task_at(site_config), str(path), bundle="pfedsis")
    assert network.state_dict().keys() == load_weights(path).keys()
    assert network.decoder_global.dropout.p == load_bundle("pvt_fpn").network.get("dropout", 0.2)


def test_the_config_in_use_defines_the_network_of_its_own_bundle(site_config, tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(path, PvtFpn().state_dict(), {"bundle": "pvt_fpn"})
    definition = PvtFpn(dropout=0.5)
    network = trained_network_for(definition, task_at(site_config), str(path), bundle="pvt_fpn")
    assert network.decoder_global.dropout.p == 0.5


@pytest.mark.parametrize("configs", [("train", "evaluate"), ("inference",)])
def test_a_bundle_that_is_not_here_is_named(run, refusal, site_config, video, tmp_path, configs):
    path = tmp_path / "model.safetensors"
    save_weights(path, {"weight": torch.ones(1)}, {"bundle": "elsewhere"})
    own = {"input": str(video)} if configs == ("inference",) else {"site_config": str(site_config)}
    sentence = refusal(run, "pfedsis", *configs, checkpoint=str(path), output_dir=str(tmp_path / "out"), **own)
    assert f"{path} is a checkpoint of another network than PvtFpn" in sentence
    names = ", ".join(bundle_names())
    assert sentence.endswith(f"it is of bundle 'elsewhere', which is not among those here ({names})")
