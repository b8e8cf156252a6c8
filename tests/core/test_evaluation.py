"""Pictures of a scored split: the best, a typical and the worst sample, with the scores that they had."""

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.card import Metric
from shared_components.core.evaluation import (
    exemplars,
    score_batches,
    score_fully,
    score_quickly,
    small_batches,
    with_randomness,
)
from shared_components.core.metrics import frame_scores
from shared_components.core.task import make_task
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.tiny import Tiny
from tests.federation.conftest import render

DICE, RMSE = Metric("dice", "Dice", True), Metric("rmse", "RMSE", False)
NAN = math.nan


@pytest.mark.parametrize(("values", "metric", "chosen"), [
    ([0.5, 0.9, 0.1, 0.7, 0.6], DICE, {1: "best", 4: "typical", 2: "worst"}),
    ([0.5, 0.9, 0.1, 0.7, 0.6], RMSE, {2: "best", 4: "typical", 1: "worst"}),
    ([0.5, NAN, 0.1, 0.7], DICE, {3: "best", 0: "typical", 2: "worst"}),
    ([0.2, 0.4, 0.6, 0.8], DICE, {3: "best", 2: "typical", 0: "worst"}),
    ([0.3, 0.3, 0.3], DICE, {0: "best", 1: "typical", 2: "worst"}), ([0.3, NAN, 0.4], DICE, {2: "best", 0: "worst"}),
    ([NAN, 0.4], DICE, {1: "typical"}), ([NAN, NAN], DICE, {0: "not scored"}), ([], DICE, {}),
])  # fmt: skip
def test_the_best_the_median_and_the_worst_are_chosen(values, metric, chosen) -> None:
    assert exemplars(values, metric) == chosen


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory):
    [file] = render(tmp_path_factory.mktemp("scenes"), sites=1)
    return load_site(file, name="a")


def score(network: nn.Module, kind: str, site, folder: Path, **numbers):
    task = make_task(kind, numbers, classes=("background", "shaft", "wrist", "clasper"))
    chosen = samples(site, "validation", task.spec)
    scores = score_fully(network, task, chosen, size=(32, 64), split="validation", pictures=folder)
    records = {r["rank"]: r for r in map(json.loads, (f.read_text() for f in folder.glob("*.json")))}
    return task, chosen, scores, records


def test_records_have_the_samples_own_scores_and_leave_the_network_in_training(site, tmp_path):
    network = Tiny(out_channels=4)
    _, chosen, scores, records = score(network, "segmentation", site, tmp_path)
    assert set(records) == {"best", "typical", "worst"} and len(list(tmp_path.glob("*.png"))) == 3
    dice = {rank: record["scores"]["dice"]["mean"] for rank, record in records.items()}
    assert dice["best"] >= dice["typical"] >= dice["worst"]
    assert {r["split"] for r in records.values()} == {"validation"} and records["best"]["of"] == len(chosen) == 4
    numbers = {(sample.video, sample.index) for sample in chosen}
    assert {(r["video"], r["frame"]) for r in records.values()} <= numbers
    assert dice["worst"] <= scores["dice"]["mean"] <= dice["best"]
    network = Tiny(out_channels=4).train()
    score(network, "segmentation", site, tmp_path)
    assert network.training and all(p.requires_grad for p in network.parameters())


def test_each_sample_has_its_numbers_beside_its_video(site) -> None:
    task = make_task("segmentation", {}, classes=("background", "shaft", "wrist", "clasper"))
    chosen = samples(site, "validation", task.spec)
    torch.manual_seed(0)
    found = score_fully(Tiny(out_channels=4), task, chosen, size=(32, 64), split="validation", by_sample=True)
    assert [one["video"] for one in found["samples"]] == [sample.video for sample in chosen]
    known = [one["values"]["dice"] for one in found["samples"] if one["values"]["dice"] is not None]
    assert len({one["sample"] for one in found["samples"]}) == len(chosen) and all(0 <= v <= 1 for v in known)


def test_a_picture_is_of_the_sample_that_its_record_names(site, tmp_path: Path) -> None:
    """What the error panel shows wrong is what the scores count: a network that says background everywhere."""

    nothing = nn.Conv2d(3, 4, 1)
    nn.init.zeros_(nothing.weight)
    nothing.bias.data = torch.tensor([1.0, 0.0, 0.0, 0.0])
    _, chosen, _, _ = score(nothing, "segmentation", site, tmp_path)
    for file in tmp_path.glob("*.json"):
        record = json.loads(file.read_text())
        sample = next(s for s in chosen if (s.video, s.index) == (record["video"], record["frame"]))
        truth = read_sample(sample).targets["label"]
        marks = frame_scores(np.zeros_like(truth), truth, classes=range(1, 4), distances=False)
        seen = [None if math.isnan(value) else value for value in marks.dice]
        assert [record["scores"]["dice"][name] for name in ("shaft", "wrist", "clasper")] == seen
        errors = next(panel for panel in record["panels"] if panel["name"] == "errors")
        assert errors["note"] == f"{100 * np.mean(truth > 0):.1f} % of the pixels"
        x, y, width, height = errors["box"]
        panel = cv2.imread(str(file.with_suffix(".png")))[y : y + height, x : x + width]
        assert (panel == (0, 94, 213)).all(axis=2).mean() == pytest.approx(np.mean(truth > 0), abs=0.02)


def test_hidden_patches_of_a_picture_are_those_that_were_scored(site, tmp_path: Path) -> None:
    network, batch = Tiny(out_channels=3), {"image": torch.zeros(1, 3, 32, 64)}
    task, _, scores, records = score(network, "reconstruction", site, tmp_path, patch=8)
    assert scores == score(network, "reconstruction", site, tmp_path, patch=8)[2]
    errors = sorted(record["scores"]["mse"]["mean"] for record in records.values())
    assert [records[rank]["scores"]["mse"]["mean"] for rank in ("best", "typical", "worst")] == errors
    for file in tmp_path.glob("*.png"):
        number = int(file.name.split("-")[1])
        [x, y, width, height] = json.loads(file.with_suffix(".json").read_text())["panels"][1]["box"]
        masked = cv2.imread(str(file))[y : y + height, x : x + width].astype(int)
        grey = (np.abs(masked - 128) <= 2).all(axis=2)
        for other in range(4):
            hidden = with_randomness(task, batch, other)["hidden"][0].numpy().astype(np.uint8)
            large = cv2.resize(hidden, (width, height), interpolation=cv2.INTER_NEAREST) > 0
            assert ((large == grey).mean() > 0.9) == (other == number)


def test_pictures_of_an_older_model_go_and_those_of_another_split_stay(site, tmp_path: Path) -> None:
    for name in ("validation-0009-old.png", "validation-0009-old.json", "test-0001-x.png"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "validation-0009-old.json").unlink()
    score(Tiny(out_channels=4), "segmentation", site, tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert "test-0001-x.png" in left and not any("old" in name for name in left) and len(left) == 7


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-6), ("bf16", 0.02)])
def test_quick_scores_by_fused_decoders_are_the_scores_of_the_network_itself(site, precision, tolerance) -> None:
    torch.manual_seed(0)
    network, task = PvtFpn(out_channels=4), make_task("segmentation", classes=site.classes)
    data = SampleDataset(samples(site, "validation"), height=64, width=96, site=site)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    quick = score_quickly(network, task, data, precision=precision)

    plain = score_batches(network, task, small_batches(data, task))
    assert quick["dice"]["mean"] == pytest.approx(plain["dice"]["mean"], abs=tolerance)
    assert network.training and all(torch.equal(before[n], value) for n, value in network.state_dict().items())
