"""Bundles are made from one base and a small description each; the committed files are those."""

import json
import shutil

import pytest
from monai.bundle import ConfigWorkflow

from shared_components.cli import main
from shared_components.core.shipped_weights import EXPORTED, FACTS, KEEPER, MODEL
from shared_components.experiments.shipping.bundle_files.make import (
    bundle_files,
    check_weights,
    described_bundles,
    marks,
    outdated_files,
    read_description,
    write_bundle,
)
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import bundle_names, load_bundle
from shared_components.networks.checkpoints import load_metadata, save_pt, stored_weights

NEW = """\
title: A toy

network_def: |
  _target_: shared_components.networks.pvt_fpn.PvtFpn
  out_channels: 4            # overridden
  dropout: 0.0               # of the decoders

tasks: |
  segmentation: {}

training: {height: 64, width: 96, batch_size: 2, rounds: 1, iterations: 1, learning_rate: 5.0e-5}

metadata:
  name: Toy
  task: to be small
  description: A network for a test.
  references: []
  network_data_format: {outputs: {pred: {num_channels: 7}}}
"""


@pytest.fixture
def folder(bundles, tmp_path):
    """A folder of bundles with one description, `toy.yaml`."""
    shutil.copy(bundles.parent / "LICENSE", tmp_path)
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "toy.yaml").write_text(NEW)
    return tmp_path / "bundles"


@pytest.mark.parametrize("bundle", bundle_names())
def test_the_committed_files_are_what_the_base_and_the_description_give(bundle):
    assert outdated_files(bundle) == []


def test_every_bundle_has_a_description():
    assert described_bundles() == bundle_names()


def test_a_new_bundle_is_one_small_file(folder, monkeypatch, site_config, tmp_path):
    write_bundle("toy", folder)
    monkeypatch.setattr(bundle_config, "bundles_folder", lambda: folder)
    bundle = load_bundle("toy")
    assert bundle.network["dropout"] == 0.0 and bundle.training.height == 64
    assert bundle.training.learning_rate == 5e-5 and bundle.training.weight_decay == 0.01
    metadata = json.loads((folder / "toy" / "configs" / "metadata.json").read_text())
    outputs = metadata["network_data_format"]["outputs"]["pred"]
    assert outputs["num_channels"] == 7 and outputs["spatial_shape"] == [64, 96]

    workflow = ConfigWorkflow(
        config_file=str(folder / "toy" / "configs" / "train.yaml"), logging_file=False,
        site_config=str(site_config), output_dir=str(tmp_path / "out"),
    )  # fmt: skip
    workflow.initialize()
    workflow.run()
    assert load_metadata(tmp_path / "out" / "model.safetensors")["bundle"] == "toy"


def test_a_new_bundle_gets_the_files_of_the_others(bundles, folder):
    """But for the weights, which not every bundle ships."""
    write_bundle("toy", folder)
    made, others = (
        {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        for root in (folder / "toy", bundles / "pvt_fpn")
    )
    assert made - {KEEPER} == others - {KEEPER, MODEL, EXPORTED, FACTS} and KEEPER in made


@pytest.mark.parametrize("bundle", bundle_names())
def test_the_weights_that_are_committed_are_those_of_their_card(bundle):
    check_weights(bundle)


def test_a_model_pt_that_is_not_the_shipped_weights_is_found_and_made_again(bundles, tmp_path):
    """Other numbers, a tensor that is missing, a tensor too many, another header, no file."""
    for name in ("LICENSE", "bundles/pfedsis.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(bundles.parent / name, tmp_path / name)
    shutil.copytree(bundles / "pfedsis", tmp_path / "bundles" / "pfedsis")
    exported = tmp_path / "bundles" / "pfedsis" / EXPORTED
    right, state, notes = exported.read_bytes(), stored_weights(exported), load_metadata(exported)
    assert outdated_files("pfedsis", tmp_path / "bundles") == []
    name, helper = "head_global.bias", "head_appearance.bias"
    for wrong, said in (
        (state | {name: state[name] + 1}, notes),
        (state | {name: state[name].float()}, notes),
        ({key: value for key, value in state.items() if key != name}, notes),
        ({key: value for key, value in state.items() if key != helper}, notes),
        (state | {"more": state[name]}, notes),
        (state, notes | {"height": "64"}),
    ):
        save_pt(exported, wrong, said)
        assert outdated_files("pfedsis", tmp_path / "bundles") == [exported]
        assert write_bundle("pfedsis", tmp_path / "bundles") == [exported] and exported.read_bytes() == right
    exported.unlink()
    assert write_bundle("pfedsis", tmp_path / "bundles") == [exported] and exported.read_bytes() == right


def test_a_second_time_nothing_is_written_and_what_was_edited_by_hand_is_mended(folder):
    assert len(write_bundle("toy", folder)) == len(bundle_files("toy", folder))
    assert write_bundle("toy", folder) == []
    config = folder / "toy" / "configs" / "train.yaml"
    right = config.read_text()
    config.write_text(right.replace("rounds: 1", "rounds: 2"))
    assert write_bundle("toy", folder) == [config] and config.read_text() == right


def test_what_a_person_wrote_in_the_card_is_kept(folder):
    write_bundle("toy", folder)
    card = folder / "toy" / "docs" / "README.md"
    card.write_text("# My toy\n" + card.read_text().replace("bundles/toy/configs/train.yaml", "elsewhere"))
    assert write_bundle("toy", folder) == [card]
    assert card.read_text().startswith("# My toy\n") and "bundles/toy/configs/train.yaml" in card.read_text()
    card.write_text(card.read_text().replace(marks("use")[0], ""))
    with pytest.raises(ValueError, match="put them under '## Use'"):
        write_bundle("toy", folder)


@pytest.mark.parametrize(
    ("line", "changed", "sentence"),
    [
        ("title: A toy", "titel: A toy", r"toy\.yaml: unknown key 'titel'; known keys: metadata, method, "),
        ("title: A toy", "", r"toy\.yaml: key 'title' is missing"),
        ("  task: to be small", "", r"toy\.yaml: metadata: 'task' is missing"),
        ("height: 64", "heigth: 64", r"training: unknown key 'heigth'"),
    ],
)
def test_a_wrong_description_is_refused_in_one_sentence(folder, line, changed, sentence):
    (folder / "toy.yaml").write_text(NEW.replace(line, changed))
    with pytest.raises(ValueError, match=sentence):
        bundle_files("toy", folder)


def test_the_command_checks_without_writing(monkeypatch, capsys):
    assert main(["bundles", "--check"]) == 0
    own = read_description("pvt_fpn")
    object.__setattr__(own, "title", "Another")
    described = {"pvt_fpn": own}
    monkeypatch.setattr(
        "shared_components.experiments.shipping.bundle_files.make.read_description",
        lambda name, folder: described.get(name) or read_description(name, folder),
    )
    assert main(["bundles", "--check"]) == 2
    assert "train.yaml is not what" in capsys.readouterr().err
