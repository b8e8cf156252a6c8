"""The warning for an unknown video: in the output, the record, the table and Python."""

import csv
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import surgfl
from shared_components.cli import main
from shared_components.core.calibration import FILE, Calibration, Facts, write_calibration
from shared_components.core.shipped_weights import sha256_of
from shared_components.core.trained_model import Trained
from shared_components.inference.arrays import Model
from shared_components.inference.doubtful import PART
from shared_components.inference.out_of_distribution import MOST, Watch
from shared_components.scenes.scene import render_video
from tests.inference.conftest import PARTS, SEGMENTATION, noise, write_video

WARNING = "Input unlike the training data (score {}, limit {}): the masks may be wrong."


class Colours(nn.Module):
    """Logits (B, 4, H, W) by colours; the encoder is the identity."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Identity()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, image):
        return self.layer(image) * 9


def calibrated(**facts):
    """Return a model calibrated on mid grey; the score is the difference of red in sixteenths of the range."""
    message = {"weights": "", "temperature": 1.0, "offset": 0.0, "limit": 2.0, "limit_of_few": 5.0, "card": {}} | facts
    made = Calibration(Facts(**message), torch.full((3,), 0.5), torch.tensor([[16.0, 0, 0]]), torch.zeros(3))
    return Trained(Colours().eval(), SEGMENTATION, (32, 64), made)


def grey(level):
    return np.full((20, 30, 3), level, np.uint8)


def test_a_video_is_looked_at_once_a_second_and_less_often_once_many_frames_are_kept():
    calls, looked = [], []
    model = calibrated()
    model.network.encoder.register_forward_hook(lambda *_: calls.append(1))
    watch = Watch(model, Fraction(30000, 1001))
    assert watch.likeness() is None
    for number in range(30 * (MOST + 4)):
        watch.add(grey(128))
        if len(calls) > len(looked):
            looked.append(number)
    expected = [30 * second for second in range(MOST)] + [30 * second for second in range(MOST, MOST + 4, 2)]
    assert looked == expected and watch.likeness().frames == MOST // 2 + 2


def test_the_score_is_of_the_mean_frame_and_few_frames_have_a_limit_of_their_own():
    watch = Watch(calibrated())
    for count, level in enumerate((102, 204, 204, 204), start=1):  # 0.4 and 0.8
        watch.add(grey(level))
        result = watch.likeness()
        assert result.score == pytest.approx(16 * abs(0.8 - 0.4 / count - 0.5), abs=1e-3)
        assert result.limit == (2.0 if count == 4 else 5.0)
    assert result.warning == WARNING.format(3.2, 2.0)
    assert Watch(calibrated(limit=4.0)).likeness() is None


def test_a_live_stream_is_warned_of_once_and_a_model_without_a_calibration_never(caplog):
    watch = Watch(calibrated(), early=True)
    for number in range(6):
        watch.add(grey(255))
        assert caplog.text.count("Input unlike") == (number >= 3)
    watch = Watch(Trained(nn.Conv2d(3, 4, 1), SEGMENTATION, (32, 64)))
    watch.add(grey(0))
    assert watch.likeness() is None


def test_in_python_a_frame_says_it_when_asked_and_the_temperature_changes_no_mask(tmp_path):
    hot, cold = (calibrated(temperature=t) for t in (4.0, 1.0))
    hot.network.load_state_dict(cold.network.state_dict())
    frame = np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8)
    one, other = (Model(trained).segment(frame) for trained in (hot, cold))
    assert (one.mask == other.mask).all() and one.warning == ""
    roots = other.probabilities.astype(np.float64) ** 0.25
    assert np.allclose(one.probabilities, roots / roots.sum(0), atol=1e-5)
    assert Model(cold).segment(grey(255)).warning == WARNING.format("8.0", "5.0")
    video = write_video(tmp_path / "white.mp4", [np.full((48, 64, 3), 255, np.uint8)] * 5, rate=1)
    warnings = [result.warning for result in Model(cold).segment_video(video)]
    assert all("limit 5.0" in warning for warning in warnings[:3]) and all(
        "limit 2.0" in warning for warning in warnings[3:]
    )


def test_the_command_says_it_in_the_output_the_record_and_the_table(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    checkpoint = model()
    video = write_video(tmp_path / "a.mp4", noise(4), rate=1)
    facts = {"temperature": 1.0, "offset": 0.0, "limit": 1e-6, "limit_of_few": 1e-6, "card": {}}
    axes = torch.eye(512)[:2].contiguous()
    made = Calibration(Facts(weights=sha256_of(checkpoint), **facts), torch.zeros(512), axes, torch.zeros(512))
    write_calibration(checkpoint.with_name(FILE), made)
    assert main(["segment", str(video), "--model", str(checkpoint), "--threads", "1"]) == 0
    record = json.loads((tmp_path / "a-segmented/prediction.json").read_text())["unlike"]
    assert record["frames"] == 4 and record["score"] > record["limit"] == 1e-6
    assert f"\n{record['warning']}\n" in capsys.readouterr().out and record["warning"].startswith("Input unlike")
    with (tmp_path / "a-segmented/intervals.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {name: record["warning"] if name == "part" else "" for name in rows[0]}
    assert all(row["part"] in (*PARTS, PART) for row in rows[1:])


@pytest.mark.parametrize(("look", "warned"), [("surgery-2900001", False), ("microscope-2900001", True)])
def test_the_shipped_model_warns_of_an_eye_and_not_of_a_laparoscopy(look, warned, tmp_path):
    frames = [scene.image for scene in render_video(look, 1, frames=6, rate=0.2, height=192, width=256)]
    video = write_video(tmp_path / "video.mp4", frames, rate=1)
    *_, last = surgfl.load().segment_video(video)
    assert bool(last.warning) is warned
