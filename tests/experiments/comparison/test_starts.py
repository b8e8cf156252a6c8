"""Initial weights of rows: files by name, shipped weights, and remarks on missing weights."""

import re

import pytest
import torch

from shared_components.commands import _compare as compare
from shared_components.core.shipped_weights import sha256_of
from shared_components.experiments.comparison.starts import given_starts, start_of
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.mae_vit import MaeVit
from tests.experiments.comparison.conftest import PLANNED, parsed


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Two files of FL-EndoViT's autoencoder."""
    files = {}
    for seed, name in enumerate(("imagenet", "centralised")):
        torch.manual_seed(seed)
        files[name] = tmp_path_factory.mktemp("weights") / f"{name}.safetensors"
        save_weights(files[name], MaeVit().state_dict(), {"bundle": "fl_endovit"})
    return files


def given(weights, *names):
    return [word for name in names for word in ("--start-of", f"{name}={weights[name]}")]


def test_rows_without_weights_are_left_out_with_a_remark_and_none_begins_from_others(planned):
    preset, runs = planned()
    starts = {run.variant.label.partition(",")[0]: run.start for run in runs}
    assert starts == {"Random": "random", "FL-EndoViT": "rendered"} and len(runs) == 4
    without = "Without rows of ImageNet and CEN-EndoViT, since no weights are given"
    assert preset.remark == f"{without}: --start-of imagenet=FILE --start-of centralised=FILE"
    assert preset.versus == ()
    assert not str(given_starts(["imagenet=~/mae.pth"])["imagenet"]).startswith("~")
    row = compare.presets.PRESETS["fedsurg"].variants[0]
    assert start_of(row, {}) is None and row.start == ""


def test_a_file_is_what_its_rows_begin_from_and_its_hash_is_part_of_their_names(planned, weights):
    preset, runs = planned(*given(weights, "imagenet", "centralised"))
    of = {name: f"{name}.safetensors ({sha256_of(file)[:8]})" for name, file in weights.items()}
    assert preset.remark == f"ImageNet is {of['imagenet']}, CEN-EndoViT is {of['centralised']}"
    assert len(runs) == 8 and len({run.name.rpartition("-")[2] for run in runs}) == 8
    for run in runs:
        if file := weights.get(run.variant.start):
            assert (run.start, run.start_file, run.start_hash) == ("file", str(file), sha256_of(file))
        else:
            assert run.start != "file" and not run.start_file
    (pair,) = preset.versus
    assert pair.models == ("FL-EndoViT", "CEN-EndoViT") and list(pair.rows) == ["all", "all, frozen"]
    labels = {run.variant.label for run in runs}
    assert all(label in labels for rows in pair.rows.values() for label in rows)


def test_the_published_network_begins_from_files_alone(planned, weights):
    preset, runs = planned("--scale", "paper")
    assert {run.start for run in runs} == {"random"}
    reason = "the shipped weights do not fit the network"
    assert preset.remark.endswith(f". Without rows of FL-EndoViT, since {reason}: --start-of federated=FILE")
    with pytest.raises(ValueError, match=re.escape(f"{weights['imagenet']}")):
        planned("--scale", "paper", *given(weights, "imagenet"))


def test_weights_are_read_before_anything_is_rendered(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(compare.sites, "write_site", lambda *_, **__: pytest.fail("a site was rendered"))
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"no weights")
    other = [f"--start-of=imagenet={weights['imagenet']}", *given(weights, "imagenet")]
    for words, message in (
        (["--start-of", "imagnet=a"], "'imagnet=a'; give imagenet, centralised, federated, resnet and a file"),
        (["--start-of", "imagenet="], "--start-of is 'imagenet='"), (["--start-of", "random=a.pth"], "'random=a.pth'"),
        (other, "--start-of gives imagenet twice"),
        (["--start-of", "imagenet=/nowhere/mae.pth"], "checkpoint /nowhere/mae.pth does not exist"),
        (["--start-of", f"federated={damaged}"], f"checkpoint {damaged} is damaged"),
        (["--start", "random"], "--start is given, and all rows have their own start; give --start-of"),
        (["--preset", "fedsurg", *given(weights, "imagenet")], "gives imagenet, but no row of 'Layout of FedSurg"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(message)):
            compare.run(parsed(*PLANNED, *words, "--out", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
