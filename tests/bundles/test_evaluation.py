"""The evaluate overlay: files, numbers at the masks' resolution, refusals."""

import csv
import hashlib
import json

import numpy as np
import pytest
import torch

from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import build_network, bundle_names, load_bundle
from shared_components.networks.checkpoints import load_metadata, load_weights, save_weights
from tests.bundles.conftest import scored_by_hand


@pytest.fixture
def evaluate(run, site_config, small, tmp_path):
    def evaluate(checkpoint, bundle="pfedsis", **overrides):
        given = {"site_config": str(site_config), "checkpoint": checkpoint and str(checkpoint), **small}
        run(bundle, "train", "evaluate", **given | {"output_dir": str(tmp_path / "results")} | overrides)
        return json.loads((tmp_path / "results" / "metrics.json").read_text())

    return evaluate


def test_summary_and_table_hold_the_metrics_at_the_masks_resolution(evaluate, checkpoint, site_config, tmp_path):
    torch.manual_seed(1)
    network = build_network(load_bundle("pfedsis").network).eval()
    assert {read_sample(frame).targets["label"].shape for frame in samples(load_site(site_config), "test")} == {
        (128, 192)
    }
    expected = scored_by_hand(site_config, lambda image: network(image).argmax(1)[0], ("shaft", "wrist", "clasper"))
    summary = evaluate(checkpoint)
    assert {key: summary[key] for key in expected} == expected
    assert summary["site"] == "hospital-a" and summary["split"] == "test" and summary["frames"] == 2
    assert summary["checkpoint_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert {"hd95", "hd95_monai", "assd"} <= set(summary["definitions"])
    with open(tmp_path / "results" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    places = [("0", "shaft"), ("0", "wrist"), ("0", "clasper"), ("1", "shaft")]
    assert [(row["video"], row["frame"], row["class"]) for row in rows[:4]] == [("test/video3", *p) for p in places]
    shaft = [float(row["dice"]) for row in rows if row["class"] == "shaft"]
    assert np.isclose(np.mean(shaft), summary["dice"]["shaft"], atol=1e-5)


@pytest.mark.parametrize("bundle", bundle_names())
def test_without_a_checkpoint_the_shipped_weights_are_evaluated(run, bundles, bundle, site_config, tmp_path):
    history = "history: false\n" if bundle == "fedst" else ""
    site_config.write_text(site_config.read_text() + history)
    run(bundle, "train", "evaluate", site_config=str(site_config), output_dir=str(tmp_path / "results"))
    shipped = (bundles / bundle / "models" / "model.safetensors").read_bytes()
    found = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert found["checkpoint_sha256"] == hashlib.sha256(shipped).hexdigest() and found["frames"] == 2


def test_another_split_and_policy_can_be_asked_for(evaluate, checkpoint):
    summary = evaluate(checkpoint, split="validation", empty_policy="paper")
    assert summary["split"] == "validation" and summary["policy"] == "paper"


def test_another_class_map_is_refused_by_both_numbers(evaluate, refusal, checkpoint, three_class_site):
    sentence = refusal(evaluate, checkpoint, site_config=str(three_class_site))
    assert "trained for 4 classes and the site has 3" in sentence and str(checkpoint) in sentence


@pytest.fixture
def of_parts(checkpoint):
    """A checkpoint whose header names the classes that it has learnt."""
    notes = {"task": "segmentation", "outputs": "background,shaft,wrist,clasper"}
    save_weights(checkpoint, load_weights(checkpoint), notes)
    return checkpoint


@pytest.mark.parametrize(
    ("classes", "merged"),
    [
        (None, {"background": ["background"], "shaft": ["shaft"], "manipulator": ["wrist", "clasper"]}),
        ("foreground", {"background": ["background"], "instrument": ["shaft", "wrist", "clasper"]}),
    ],
)
def test_a_model_of_parts_is_scored_where_classes_are_coarser(evaluate, of_parts, three_class_site, classes, merged):
    if classes:
        three_class_site.write_text(three_class_site.read_text() + f"classes: {classes}\n")
    found = evaluate(of_parts, site_config=str(three_class_site))
    assert found["merged_classes"] == merged
    torch.manual_seed(1)
    network = build_network(load_bundle("pfedsis").network).eval()
    names = ["background", "shaft", "wrist", "clasper"]

    def classify(image):
        learnt = network(image).double().softmax(1)[0]
        return torch.stack([sum(learnt[names.index(n)] for n in members) for members in merged.values()]).argmax(0)

    expected = scored_by_hand(three_class_site, classify, tuple(merged)[1:])
    assert {key: found[key] for key in expected} == expected


def test_half_precision_is_scored_as_its_numbers_in_full(evaluate, of_parts, tmp_path):
    halves = {name: value.half() for name, value in load_weights(of_parts).items()}
    save_weights(tmp_path / "half.safetensors", halves, load_metadata(of_parts))
    save_weights(tmp_path / "full.safetensors", {n: v.float() for n, v in halves.items()})
    half, full = (evaluate(tmp_path / f"{name}.safetensors") for name in ("half", "full"))
    assert half["dice"] == full["dice"] and half["assd"] == full["assd"]
    assert "merged_classes" not in half  # of the site's own classes


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"split": "tets"}, "site hospital-a has no split 'tets'; use one of train, validation, test"),
        ({"checkpoint": None}, "checkpoint: not given; add --checkpoint"),
        ({"empty_policy": "skip"}, "empty_policy is 'skip'; use one of diagonal, paper"),
        ({"splt": "test"}, "unknown option --splt; did you mean --split?"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_sentence(evaluate, refusal, checkpoint, overrides, sentence, tmp_path):
    assert sentence in refusal(evaluate, **{"checkpoint": str(checkpoint), **overrides})
    assert not (tmp_path / "results").exists()


def test_a_refused_evaluation_leaves_an_earlier_result_as_it_was(evaluate, refusal, checkpoint, tmp_path):
    earlier = evaluate(checkpoint)
    save_weights(tmp_path / "other.safetensors", {"weight": torch.ones(1)})
    sentence = refusal(evaluate, str(tmp_path / "other.safetensors"))
    assert "other.safetensors is a checkpoint of another network than PvtFpn" in sentence
    assert json.loads((tmp_path / "results" / "metrics.json").read_text()) == earlier
