"""A model is shown frames one at a time; memory does not grow with their number."""

import psutil
import pytest
import torch

from shared_components.common.progress import Step, heard
from shared_components.core.task import make_task
from shared_components.inference import InferenceError
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import FrameCount, Predictor, predict_all
from shared_components.inference.results import PredictionFolder
from tests.inference.conftest import SEGMENTATION, Bright, grey, write_video


def test_enlarging_is_the_argmax_of_logits_enlarged_by_nearest_neighbours():
    torch.manual_seed(0)
    logits = torch.randn(1, 4, 8, 10)
    large = torch.nn.functional.interpolate(logits, size=(16, 20), mode="nearest")
    assert (SEGMENTATION.postprocess(logits, {}, [(16, 20)])[0] == large.argmax(1)[0].numpy()).all()


def test_a_prediction_has_the_frames_own_size():
    image = torch.zeros(1, 3, 32, 64)
    image[..., :16, :] = 1
    outputs, mask = Predictor(Bright(), SEGMENTATION)(image, (48, 100))
    assert outputs.shape == (1, 4, 32, 64) and mask.shape == (48, 100)
    assert (mask[:24] == 1).all() and (mask[24:] == 0).all()


def test_a_network_in_training_is_asked_as_one_in_evaluation():
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).train()
    before = network[1].running_mean.clone()
    Predictor(network, SEGMENTATION)(torch.rand(1, 3, 8, 8), (8, 8))
    assert torch.equal(network[1].running_mean, before) and not network.training


def test_what_is_left_to_chance_is_the_same_for_every_frame():
    task = make_task("reconstruction")
    predictor = Predictor(torch.nn.Conv2d(3, 3, 1), task)
    answers = [predictor(torch.rand(1, 3, 64, 64), (64, 64))[1] for _ in range(2)]
    assert (answers[0].hidden == answers[1].hidden).all()


def test_bf16_is_used_where_it_is_asked_for():
    network = torch.nn.Conv2d(3, 4, 1)
    image = torch.rand(1, 3, 8, 8)
    assert Predictor(network, SEGMENTATION)(image, (8, 8))[0].dtype == torch.float32
    assert Predictor(network, SEGMENTATION, precision="bf16")(image, (8, 8))[0].dtype == torch.bfloat16
    with pytest.raises(InferenceError, match="precision is 'half'; use one of float32, bf16"):
        Predictor(network, SEGMENTATION, precision="half")


@pytest.mark.parametrize(
    ("total", "step"),
    [
        (10_000, Step("frame", 3, 10_000, "0.5 frames/s  about 5.6 h left")),
        (3, Step("frame", 3, 3, "0.5 frames/s  about 0 s left")),
        (2, Step("frame", 3, None, "0.5 frames/s")),  # a container may announce too few
        (None, Step("frame", 3, None, "0.5 frames/s")),
    ],
)
def test_frames_are_reported_with_speed_and_time_left(monkeypatch, total, step):
    clock, steps = [100.0], []
    monkeypatch.setattr("shared_components.inference.predict.time.monotonic", lambda: clock[0])
    frames = FrameCount(total)
    with heard(steps.append):
        for _ in range(3):
            clock[0] += 2.0
            frames.step()
    assert steps[-1] == step and (frames.count, frames.seconds) == (3, 6.0)


@pytest.mark.slow
def test_memory_stays_what_it_is_over_many_frames(tmp_path):
    """The 500 frames after the first hundred are 74 MB of pixels."""
    video = write_video(tmp_path / "a.mp4", grey(600, 192, 256))
    resident, process, network = [], psutil.Process(), Bright()
    network.register_forward_hook(lambda *_: resident.append(process.memory_info().rss))
    stream = FrameStream(video, height=32, width=64)
    folder = PredictionFolder(tmp_path / "out", stream, SEGMENTATION)
    done = predict_all(Predictor(network, SEGMENTATION), stream, folder)
    assert done.count == folder.count == len(resident) == 600
    assert max(resident[100:]) - resident[100] < 12e6
