"""The command ships a pre-training in two bundles with scores and cards, or changes nothing."""

import json

import numpy as np
import pytest
import torch
import yaml

from shared_components.cli import main
from shared_components.commands import _ship as ship
from shared_components.core.evaluation import network_input
from shared_components.core.initial_weights import load_initial_weights
from shared_components.core.metrics import frame_scores, summarise
from shared_components.core.shipped_weights import FACTS, KEEPER, MODEL, sha256_of, shipped_weights
from shared_components.core.task import make_task
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.networks.checkpoints import load_metadata, save_weights
from shared_components.scenes.site import write_site
from shared_components.tasks.segmentation import enlarge
from shared_components.weights.bundle_files.make import outdated_files
from shared_components.weights.shipping.weights import network_with
from tests.weights.shipping.conftest import NOTES

pytestmark = pytest.mark.slow

SMALL = ["--looks", "rose", "--unseen", "1", "--families", "random", "--videos", "1", "--frames", "2"]


@pytest.fixture
def real(tmp_path):
    return write_site(
        tmp_path / "secret-hospital", look="ivory", seed=3, videos={"test": 1}, frames_per_video=2, height=64, width=96
    )


def shipped(pretrained, *more):
    return main(["ship", str(pretrained), "--bundle", "one", "--bundle", "two", *SMALL, *more])


def test_both_bundles_get_one_file_whose_card_says_all(toy_bundles, pretrained, weights, real, capsys):
    coarse = real.with_name("coarse.yaml")
    coarse.write_text(yaml.safe_dump({**yaml.safe_load(real.read_text()), "classes": "shaft_manipulator"}))
    assert shipped(pretrained, "--real", f"Hospital A={real}", "--real", f"Hospital B={coarse}") == 0

    one, two = (toy_bundles / name for name in ("one", "two"))
    assert (one / MODEL).read_bytes() == (two / MODEL).read_bytes()
    assert (one / FACTS).read_text() == (two / FACTS).read_text()
    assert shipped_weights("one", toy_bundles) == one / MODEL and load_metadata(one / MODEL) == NOTES
    network = network_with(one / MODEL, "one", 4)
    assert torch.equal(network.head.weight, weights["head.weight"].half().float())

    text = (one / FACTS).read_text()
    card = json.loads(text)
    assert "secret" not in text and "jane" not in text and str(real.parent.parent) not in text
    listed = [(s["name"], s["where"], s["classes"], s["frames"]) for s in card["scores"]]
    assert listed == [
        ("rose", "named look", "parts", 2), ("random-2000000", "unseen look", "parts", 2),
        ("Hospital A", "real", "parts", 2), ("Hospital A", "real", "foreground", 2),
        ("Hospital B", "real", "shaft_manipulator", 2), ("Hospital B", "real", "foreground", 2),
    ]  # fmt: skip
    assert set(card["scores"][4]["dice"]) == {"shaft", "manipulator", "mean"}
    assert_scores_are(card["scores"], network, real)
    message = capsys.readouterr().out
    assert "mean of 1 unseen look" in message and "Hospital B" in message and "shaft_manipulator" in message


def assert_scores_are(records, network, real):
    """Compare with a loop over frames that merges probabilities."""
    parts, merged_scores = [], []
    for frame in samples(load_site(real), "test"):
        item = read_sample(frame)
        truth = item.targets["label"]
        with torch.no_grad():
            chances = network(network_input(item.images, 64, 96)).double().softmax(1)[0]
        merged = torch.stack([chances[0], chances[1:].sum(0)])
        one, two = (enlarge(c.argmax(0).to(torch.uint8).numpy(), truth.shape) for c in (chances, merged))
        parts.append(frame_scores(one, truth, classes=(1, 2, 3), distances=False))
        merged_scores.append(frame_scores(two, (truth > 0).astype(np.uint8), classes=(1,), distances=False))
    of_parts, of_one = summarise(parts, ("shaft", "wrist", "clasper")), summarise(merged_scores, ("instrument",))
    assert records[2]["dice"]["mean"] == pytest.approx(of_parts["dice"]["mean"], abs=1e-12)
    assert records[3]["dice"]["instrument"] == pytest.approx(of_one["dice"]["instrument"], abs=1e-12)


def test_the_card_has_each_family_of_unseen_looks_and_the_choice(toy_bundles, pretrained, tmp_path):
    choice = {"chosen": "b", "candidates": ["a", "b"], "by": "8 unseen looks, OP1", "scores": {}}
    (tmp_path / "choice.json").write_text(json.dumps(choice))
    assert shipped(pretrained, "--families", "microscope,flexible", "--choice", str(tmp_path / "choice.json")) == 0
    card = json.loads((toy_bundles / "one" / FACTS).read_text())
    assert [(s["name"], s["where"]) for s in card["scores"]] == [
        ("rose", "named look"), ("microscope-2000000", "unseen microscope look"),
        ("flexible-2000000", "unseen flexible look"),
    ]  # fmt: skip
    text = (toy_bundles / "one" / "docs" / "README.md").read_text()
    assert "| Selected | b, by 8 unseen looks, OP1 |" in text
    assert card["choice"] == choice and "| mean of 1 unseen microscope look | 2 |" in text


def test_the_card_and_metadata_say_which_weights_and_the_check_compares_them(toy_bundles, pretrained, capsys):
    card = toy_bundles / "one" / "docs" / "README.md"
    assert "The bundle has no weights." in card.read_text() and (toy_bundles / "one" / KEEPER).is_file()
    assert shipped(pretrained) == 0
    network = network_with(pretrained / "model.safetensors", "two", 4)
    task = make_task("segmentation", classes=NOTES["outputs"].split(","))
    facts = load_initial_weights(network, "rendered", card=task.card, bundle="two")
    assert facts["sha256"] == sha256_of(toy_bundles / "two" / MODEL) and facts["fresh"] == []
    text = card.read_text()
    assert "The bundle has no weights." not in text and "without a frame of any patient" in text
    training = "| Training | 24,000 frames, 3 steps, 1.50 hours |"
    for due in (training, "abc1234, 2022", "| mean of 1 named look | 2 |"):
        assert due in text
    assert sha256_of(toy_bundles / "one" / MODEL) in text and "| rose |" not in text
    assert not (toy_bundles / "one" / KEEPER).exists()
    metadata = json.loads((toy_bundles / "one" / "configs" / "metadata.json").read_text())
    assert set(metadata["eval_metrics"]) == {"dice, mean of 1 named look", "dice, mean of 1 unseen look"}
    assert sha256_of(toy_bundles / "one" / MODEL) in metadata["weights"]
    assert outdated_files("one", toy_bundles) == [] and main(["bundles", "--check"]) == 0

    card.write_text(text.replace("1.50 hours", "0.10 hours"))
    assert main(["bundles", "--check"]) == 2
    card.write_text(text)
    save_weights(toy_bundles / "two" / MODEL, {"a": torch.ones(1)})
    capsys.readouterr()
    assert main(["bundles", "--check"]) == 2
    assert "two/models/model.safetensors: weights with the hash" in capsys.readouterr().err
    (toy_bundles / "two" / FACTS).unlink()
    assert main(["bundles"]) == 2 and "bundle 'two' ships no weights" in capsys.readouterr().err


def test_weights_that_went_on_from_the_shipped_ones_keep_how_those_were_made(toy_bundles, pretrained, weights):
    facts = json.loads((pretrained / "pretraining.json").read_text())
    (pretrained / "pretraining.json").write_text(json.dumps({**facts, "job": {"rounds": 7}, "sites": 2}))
    assert shipped(pretrained, "--data", "two sites") == 0
    start = {"start": "rendered", "from": "model.safetensors", "sha256": sha256_of(toy_bundles / "one" / MODEL)}
    (pretrained / "pretraining.json").write_text(json.dumps({**facts, "command": "surgfl pretrain on", "start": start}))
    save_weights(pretrained / "model.safetensors", {name: value + 1 for name, value in weights.items()}, NOTES)
    assert shipped(pretrained) == 0
    card = json.loads((toy_bundles / "one" / FACTS).read_text())
    assert [stage["command"] for stage in (card, *card["before"])] == [
        "surgfl pretrain on", "surgfl pretrain one --out run7 --start=a.pth --size 64x96:3",
    ]  # fmt: skip
    text = (toy_bundles / "one" / "docs" / "README.md").read_text()
    assert card["before"][0]["job"] == {"rounds": 7}
    assert "| Earlier stage | 24,000 frames, 3 steps, 1.50 hours |" in text and "| Initial weights | random |" in text


def test_a_bundle_that_shares_weights_gets_its_card_with_theirs_and_none_of_its_own(toy_bundles, pretrained, capsys):
    description = toy_bundles / "two.yaml"
    description.write_text(description.read_text() + "same_weights_as: one\n")
    assert shipped(pretrained) == 2
    assert "--bundle two: two.yaml has same_weights_as: one" in capsys.readouterr().err
    assert main(["ship", str(pretrained), "--bundle", "one", *SMALL]) == 0
    one, two = (toy_bundles / name for name in ("one", "two"))
    assert sha256_of(one / MODEL) in (two / "docs" / "README.md").read_text() and not (two / MODEL).exists()
    assert shipped_weights("two") == one / MODEL and main(["bundles", "--check"]) == 0


@pytest.mark.parametrize(("more", "message"), [
    (["--bundle", "three"], "bundle 'three' does not exist"),
    (["--real", "Hospital A"], "--real is 'Hospital A'; give a name and a site"),
    (["--real", "Hospital A=/nowhere/site.yaml"], "/nowhere/site.yaml: no such file"),
    (["--real", "A=a.yaml", "--real", "A=b.yaml"], "--real gives A twice"),
    (["--looks", "rsoe"], "look 'rsoe' is unknown"),
])  # fmt: skip
def test_a_wrong_command_line_changes_nothing(toy_bundles, pretrained, capsys, more, message):
    assert shipped(pretrained, *more) == 2
    assert message in capsys.readouterr().err
    assert not list(toy_bundles.glob("*/models/model.*"))


def test_unusable_cards_and_sites_are_refused_first(toy_bundles, pretrained, real, capsys, monkeypatch):
    card = toy_bundles / "one" / "docs" / "README.md"
    card.write_text(card.read_text().replace("begin of weights", "start of weights"))
    monkeypatch.setattr(ship.shipping, "rendered_sites", lambda *a, **k: pytest.fail("rendered"))
    assert shipped(pretrained) == 2
    assert "has no lines" in capsys.readouterr().err and not list(toy_bundles.glob("*/models/model.*"))
    card.write_text(card.read_text().replace("start of weights", "begin of weights"))
    site = yaml.safe_load(real.read_text())
    real.write_text(yaml.safe_dump({**site, "split": {"train": site["split"]["test"]}}))
    assert shipped(pretrained, "--real", f"A={real}") == 2
    assert "split 'test' is missing; list the videos" in capsys.readouterr().err


def test_weights_that_are_too_heavy_or_of_another_network_are_refused(toy_bundles, pretrained, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ship.shipping, "HEAVIEST", 1000)
        assert shipped(pretrained) == 2
    assert "MB in half precision, and a bundle ships at most" in capsys.readouterr().err
    save_weights(pretrained / "model.safetensors", {"a": torch.ones(1)}, NOTES)
    assert shipped(pretrained) == 2
    assert "another network than Tiny" in capsys.readouterr().err
    assert not list(toy_bundles.glob("*/models/model.*"))
