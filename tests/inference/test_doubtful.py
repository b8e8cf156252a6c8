"""Intervals of doubtful masks, which change when the frame is mirrored."""

import csv
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import surgfl
from shared_components.cli import main
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.task import make_task
from shared_components.core.trained_model import Trained, load_trained
from shared_components.data.files.images import read_rgb
from shared_components.inference.doubtful import FEW, LIMIT, PART, DoubtWatch, warnings
from shared_components.inference.frames import Shot
from shared_components.scenes.scene import render_video
from tests.inference.conftest import PARTS, SEGMENTATION, write_image

SIZE = (32, 64)


class Sided(nn.Module):
    """Finds bright pixels, and only in the left half of its input."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(9.0))

    def forward(self, image):
        left = torch.arange(image.shape[-1]) < image.shape[-1] // 2
        result = torch.where(left, image[:, :1] - 0.5, torch.tensor(-1.0)) * self.scale
        return torch.cat([-result, result, result - 9, result - 9], 1)


def bright(columns):
    """Return a frame whose first columns of 64 are white."""
    image = np.zeros((*SIZE, 3), np.uint8)
    image[:, :columns] = 255
    return image


def looked_at(columns, *, rate=None, model=None):
    """Return a detector after frames with these numbers of bright columns."""
    model = model or Trained(Sided().eval(), SEGMENTATION, SIZE)
    watch = DoubtWatch(model, SIZE, rate)
    for number, count in enumerate(columns):
        mask = np.zeros(SIZE, np.uint8)
        mask[:, : min(count, 32)] = 1
        seconds = None if rate is None else number / rate
        watch.add(Shot(f"frame_{number:06d}", bright(count), seconds=seconds), mask)
    return watch


def test_a_stretch_has_the_times_and_frames_of_the_doubtful_looks():
    (stretch,) = looked_at([0, 0, 0, 16, 8, 24, 0, 0, 0, 0], rate=Fraction(1)).intervals()
    assert (stretch.first, stretch.last, stretch.frames) == ("frame_000003", "frame_000005", 3)
    assert (stretch.begin, stretch.end) == (3, 6) and stretch.largest == pytest.approx(100 * 24 / 64)
    (line,) = warnings([stretch])
    assert "(0:03 to 0:06, frame_000003 to frame_000005)" in line and "up to 38 % of the pixels" in line


def test_stretches_of_a_folder_without_times_have_frames_alone():
    result = looked_at([16, 16, 0, 0, 16, 16, 16]).intervals()
    assert [(one.first[-1], one.last[-1], one.begin) for one in result] == [("0", "1", None), ("4", "6", None)]
    assert [line.count(":") for line in warnings(result)] == [1, 1]


def test_one_look_is_no_stretch_among_many_but_one_image_may_be_in_doubt():
    assert looked_at([0, 0, 16, 0, 0]).intervals() == []
    assert FEW == 4 and len(looked_at([16]).intervals()) == len(looked_at([0, 0, 16]).intervals()) == 1


def test_a_mask_that_is_mirrored_with_its_frame_is_not_in_doubt():
    class Everywhere(Sided):
        def forward(self, image):
            return torch.cat([0.5 - image[:, :1], image[:, :1] - 0.5, image[:, :1] - 9, image[:, :1] - 9], 1)

    model = Trained(Everywhere().eval(), SEGMENTATION, SIZE)
    assert looked_at([16] * 6, model=model).intervals() == []
    changed = int(LIMIT * 64)  # columns, just not too many
    assert looked_at([changed] * 6).intervals() == [] and len(looked_at([changed + 1] * 6).intervals()) == 1


def test_a_video_is_looked_at_once_a_second():
    model, calls = Trained(Sided().eval(), SEGMENTATION, SIZE), []
    model.network.register_forward_hook(lambda *_: calls.append(1))
    assert looked_at([16] * 75, rate=Fraction(25), model=model).intervals()[0].end == 3 and len(calls) == 3


@pytest.mark.parametrize(
    "task", [make_task("depth"), make_task("segmentation", {"frames": 4, "interval": 0.2}, classes=PARTS)]
)
def test_other_models_are_not_looked_at(task):
    assert looked_at([16] * 6, model=Trained(Sided().eval(), task, SIZE)).intervals() == []


def test_many_stretches_are_counted_and_the_first_ones_named():
    result = looked_at([16, 16, 0] * 8).intervals()
    lines = list(warnings(result))
    assert len(result) == 8 and len(lines) == 6 and lines[-1].startswith("Further intervals with doubtful masks: 3")


def test_the_command_names_the_stretches_in_its_output_the_record_and_the_table(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shared_components.inference.doubtful.LIMIT", -1.0)  # weights that have learnt nothing
    for number in range(5):
        write_image(tmp_path / f"frames/f_{number}.png")
    assert main(["segment", "frames", "--model", str(model()), "--threads", "1"]) == 0
    out, folder = capsys.readouterr().out, tmp_path / "frames-segmented"
    assert "\nDoubtful masks (f_0 to f_4): mirrored frames differ" in out
    (stretch,) = json.loads((folder / "prediction.json").read_text())["doubtful"]
    assert (stretch["first_frame"], stretch["last_frame"]) == ("f_0", "f_4")
    with (folder / "intervals.csv").open(newline="") as file:
        first, *rest = csv.DictReader(file)
    assert (first["part"], first["first_frame"], first["last_frame"]) == (PART, "f_0", "f_4")
    assert all(row["part"] in PARTS for row in rest)


def segmented(frames):
    """Return the shipped model's doubtful intervals for one frame per second."""
    trained = load_trained(shipped_weights("pvt_fpn"), bundle="pvt_fpn")
    watch, model = DoubtWatch(trained, trained.size, Fraction(1)), surgfl.load()
    for number, image in enumerate(frames):
        watch.add(Shot(str(number + 1), image, seconds=Fraction(number)), model.segment(image).mask)
    return watch.intervals()


def test_a_rendered_operation_is_not_in_doubt():
    frames = render_video("surgery-2900001", 1, frames=5, rate=0.2, height=192, width=256)
    assert segmented([scene.image for scene in frames]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("surgery", "wrong"), [("OP2", (27, 28)), ("OP4", (36,))])
def test_stretches_of_real_surgeries_in_which_tissue_is_called_instrument_are_found(surgery, wrong, real_data):
    files = sorted((real_data / "endovis2015_rigid" / surgery / "Raw").glob("img_*_raw.*"))
    result = segmented([read_rgb(path) for path in files])
    named = {number for one in result for number in range(int(one.first), int(one.last) + 1)}
    assert named >= set(wrong) and len(named) < len(files) / 2
