"""Pictures of test frames: selection, files, and rows of the page."""

import base64
import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core.evaluation import score_fully
from shared_components.core.task import make_task
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.pictures import OUTSIDE, TESTED, WIDTH, chosen, gallery, write_pictures
from shared_components.experiments.comparison.plan import HELD_OUT, DataChanges
from shared_components.scenes.site import write_site
from tests.experiments.comparison.conftest import illustrated, metrics, picture_record

CLASSES = ("background", "shaft", "wrist", "clasper")


class Constant(nn.Module):
    """Says the same everywhere: these outputs of every channel."""

    def __init__(self, *outputs):
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, image):
        B, _, H, W = image.shape
        return self.outputs[None, :, None, None].expand(B, -1, H, W)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    return {
        task: load_site(
            write_site(
                folder / task, look="rose", seed=2, layout=layout, task=task, frames_per_video=5,
                videos={"train": 1, "validation": 1, "test": 1}, height=64, width=96,
            ),
            name=task,
        )
        for task, layout in (("segmentation", "endovis2017"), ("depth", "scared"), ("reconstruction", "scared"))
    }  # fmt: skip


def written(site, folder, network, kind, *, size=(32, 64), **numbers):
    task = make_task(kind, numbers, classes=CLASSES if kind == "segmentation" else ())
    return task, write_pictures(network, task, samples(site, "test", task.spec), size=size, folder=folder)


def test_the_frames_are_the_middles_of_equal_stretches():
    assert chosen(12) == [2, 6, 10] and chosen(9) == [1, 4, 7] and chosen(3) == [0, 1, 2]
    assert chosen(2) == [0, 1] and chosen(1) == [0] and chosen(0) == []
    assert all(len(set(chosen(n))) == min(n, 3) and max(chosen(n)) < n for n in range(1, 200))


def test_a_models_masks_are_drawn_beside_the_truth_with_their_own_score_in_small_files(scenes, tmp_path):
    site = scenes["segmentation"]
    task, records = written(site, tmp_path, Constant(0.0, 1.0, 0.0, 0.0), "segmentation")
    assert records == json.loads(json.dumps(records)) and len(records) == 3
    names = sorted(file for record in records for _, file in record["files"])
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [name for name, _ in records[0]["files"]] == ["frame", "truth", "prediction"]
    assert records[0]["legend"][0] == {"name": "shaft", "colour": "#56b4e9"} and records[0]["scale"] is None
    every = samples(site, "test", task.spec)
    for number, record in zip(chosen(len(every)), records, strict=True):
        alone = score_fully(Constant(0.0, 1.0, 0.0, 0.0), task, [every[number]], size=(32, 64), split="test")
        assert record["value"] == pytest.approx(alone["dice"]["mean"])
        frame, truth, seen = (cv2.imread(str(tmp_path / file)).astype(int) for _, file in record["files"])
        assert frame.shape == truth.shape == seen.shape and frame.shape[1] == WIDTH
        assert np.abs(seen - frame).mean() > np.abs(truth - frame).mean() > 1  # everything is tinted; the tools are
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 25_000


def test_depth_keeps_the_truths_scale_whatever_a_model_says(scenes, tmp_path):
    """Softplus of 1 and of 9 are about 1.31 and 9.00 times the scale."""
    near, far = (written(scenes["depth"], tmp_path / str(x), Constant(x), "depth", scale=20.0)[1] for x in (1.0, 9.0))
    assert near[0]["scale"] == far[0]["scale"] and near[0]["scale"]["unit"] == "mm"
    assert 20 < near[0]["scale"]["low"] < near[0]["scale"]["high"] < 110
    assert near[0]["value"] != far[0]["value"]


def test_a_restored_frame_is_the_last_picture_where_there_is_no_prediction(scenes, tmp_path):
    grey = Constant(*[0.0] * make_task("reconstruction", {}).channels)
    _, records = written(scenes["reconstruction"], tmp_path, grey, "reconstruction", size=(64, 96))
    assert [name for name, _ in records[0]["files"]] == ["frame", "masked", "restored"]
    assert records[0]["legend"] == [] and isinstance(records[0]["value"], float)


def test_rows_are_frames_columns_methods_and_missing_files_are_empty(tmp_path):
    comparison = illustrated(tmp_path, 3)
    shown_gallery = gallery(comparison, comparison.groups[0])
    assert (shown_gallery.labels, shown_gallery.known, shown_gallery.seed) == (comparison.labels, ["frame", "truth"], 1)
    samples_of = {site: [row.sample for row in rows] for site, rows in shown_gallery.places}
    assert samples_of == {site: ["video 0", "video 1"] for site in "ab"}
    row = shown_gallery.places[1][1][0]
    assert [(one.name, one.text, one.best) for one in row.answers] == [
        ("Method 0", "0.050", False), ("Method 1", "0.060", False), ("Method 2", "0.070", True),
    ]  # fmt: skip
    kind, data = row.answers[2].uri.split(",")
    shown = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    assert kind == "data:image/webp;base64" and np.abs(shown[0, 0].astype(int) - (16, 120, 200)).max() < 6
    comparison = illustrated(tmp_path, 2)
    for path in (tmp_path / "0" / "a" / TESTED).iterdir():
        path.unlink()
    row = dict(gallery(comparison, comparison.groups[0]).places)["a"][0]
    assert [bool(one.uri) for one in row.answers] == [False, True]
    assert all(one.uri for one in row.known)  # another method's run has the same frame


def test_frames_are_matched_by_name_and_what_a_method_lacks_is_empty(tmp_path):
    """The second method was scored on other frames, and the third by an older version without pictures."""
    comparison = illustrated(tmp_path, 3)
    other, old = comparison.results[1], comparison.results[2]
    other.scores["sites"]["a"]["pictures"] = [picture_record(other.folder / "a" / TESTED, "video 1", None)]
    for site in "ab":
        del old.scores["sites"][site]["pictures"]
    rows = dict(gallery(comparison, comparison.groups[0]).places)["a"]
    assert [[bool(one.uri) for one in row.answers] for row in rows] == [[True, False, False], [True, True, False]]
    assert [one.text for one in rows[1].answers] == ["0.100", "–", ""]
    assert not any(one.best for one in rows[1].answers)  # a lone number is no best


def test_a_picture_is_the_best_where_the_rows_answers_differ(tmp_path):
    comparison = illustrated(tmp_path, 3)
    for one in comparison.results:
        for picture, value in zip(one.scores["sites"]["a"]["pictures"], (0.0, None), strict=True):
            picture["value"] = value
    rows = dict(gallery(comparison, comparison.groups[0]).places)["a"]
    answers = [[(one.text, one.best) for one in row.answers] for row in rows]
    assert answers == [[("0.000", False)] * 3, [("–", False)] * 3]


def test_the_site_outside_is_a_place_of_its_own(tmp_path):
    """The server's model is tested there, or the row's own model."""
    comparison = illustrated(tmp_path, 2)
    first, second = comparison.results
    own = replace(second.run.variant, data=DataChanges(held_out_trains=True))
    second = replace(second, run=replace(second.run, variant=own))
    for result, where in ((first, "server"), (second, HELD_OUT)):
        folder = result.folder / where / TESTED
        result.scores["held_out"] = metrics(0.3) | {"pictures": [picture_record(folder, "smoke", 0.3)]}
    comparison = replace(comparison, results=(first, second))
    places = dict(gallery(comparison, comparison.groups[0]).places)
    assert list(places) == ["a", "b", OUTSIDE] and places[OUTSIDE][0].sample == "smoke"
    assert all(answer.uri for answer in places[OUTSIDE][0].answers)


def test_the_lowest_seed_that_has_pictures_is_shown_and_without_any_there_is_no_gallery(tmp_path, comparison):
    assert gallery(comparison, comparison.groups[0]) is None
    comparison = illustrated(tmp_path, 2)
    first, second = comparison.results
    again = replace(second, run=replace(first.run, seed=2))
    del first.scores["sites"]["a"]["pictures"], first.scores["sites"]["b"]["pictures"]
    shown_gallery = gallery(replace(comparison, results=(first, again)), comparison.groups[0])
    assert (shown_gallery.seed, shown_gallery.labels) == (2, ["Method 0"])
