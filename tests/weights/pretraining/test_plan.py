"""Settings, phases, the learning rate of each step, and the reported speed."""

import math

import pytest

from shared_components.common.progress import Step, listening
from shared_components.core.bundle import load_bundle
from shared_components.weights.pretraining import train
from shared_components.weights.pretraining.plan import Phase, Settings, build, read_sizes, task_for
from shared_components.weights.pretraining.train import Pace
from tests.weights.pretraining.conftest import tiny


@pytest.mark.parametrize("text", ["96x128", "96:10", "x:1", "96x128:", "96x128:-3", "96x128:2.5", "٣x4:1"])
def test_sizes_are_read_as_height_width_and_steps_and_others_refused(text):
    assert read_sizes(["96x128:6000", "64x96:1"]) == (Phase(96, 128, 6000), Phase(64, 96, 1))
    with pytest.raises(ValueError, match=r"--size is .*; give height, width and steps such as 96x128:6000"):
        read_sizes([text])


def test_phases_follow_each_other_with_one_warm_up_and_cosine():
    settings = tiny(phases=(Phase(64, 64, 3), Phase(64, 96, 2)))
    assert settings.steps == 5 and settings.size == (64, 96)
    assert [settings.phase_of(step).width for step in range(5)] == [64, 64, 64, 96, 96]
    with pytest.raises(IndexError):
        settings.phase_of(5)
    settings = tiny(phases=(Phase(64, 64, 60), Phase(64, 96, 45)), warmup=0.05, learning_rate=1.0)
    rates = [settings.rate(step) for step in range(105)]
    assert rates[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])  # a twentieth of 105 is 5 steps
    assert rates[30] == pytest.approx(0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2)  # a quarter of the 100 left
    assert rates[55] == pytest.approx(0.505)  # half of them
    assert 0.01 <= rates[-1] < 0.0105 and rates[5:] == sorted(rates[5:], reverse=True)
    assert tiny(phases=(Phase(64, 64, 1),)).rate(0) == 1e-2


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"batch": 0}, "pretrain: batch is 0; it is a whole number, at least 1"), ({"seed": -1}, "pretrain: seed is -1"),
    ({"colour": 1.5}, "pretrain: colour is 1.5; it is a number, at least 0 and at most 1"),
    ({"average": 1.0}, "pretrain: average is 1.0; it is a number, at least 0 and below 1"),
    ({"precision": "fp16"}, "pretrain: precision is 'fp16'; use one of float32, bf16"),
    ({"phases": ()}, "no size; give height"),
])  # fmt: skip
def test_a_wrong_number_is_refused_by_name(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        tiny(**changes)
    with pytest.raises(ValueError, match="phase 64x64:0: steps is 0"):
        Phase(64, 64, 0)


@pytest.mark.parametrize(("size", "sentence"), [
    ((64, 90), "the size is 64x90, .*multiples of 32, at least 64; use 64x96"),
    ((32, 96), "the size is 32x96, .*; use 64x96"), ((100, 500), "; use 96x512"),
])  # fmt: skip
def test_a_size_that_the_network_or_the_renderer_does_not_take_is_refused(size, sentence):
    bundle = load_bundle("pvt_fpn")
    settings = Settings("pvt_fpn", "segmentation", (Phase(64, 96, 1), Phase(*size, 1)))
    with pytest.raises(ValueError, match=sentence):
        build(bundle, task_for(bundle, "segmentation"), settings)


SETTINGS = tiny(phases=(Phase(64, 64, 4), Phase(64, 128, 3)), batch=8)


def stepped(monkeypatch, *, seconds, steps):
    clock, steps_heard = [100.0], []
    monkeypatch.setattr(train.time, "monotonic", lambda: clock[0])
    pace = Pace(SETTINGS)
    with listening(steps_heard.append):
        for done in range(1, steps + 1):
            clock[0] += seconds
            pace.step(done, 0.5)
    return steps_heard


def test_a_step_is_reported_with_loss_speed_and_time_left(monkeypatch):
    steps_heard = stepped(monkeypatch, seconds=5.0, steps=4)
    assert steps_heard[1] == Step("step", 2, 7, "loss 0.500  1.6 pictures/s  about 40 s left")
    of_twice_the_pixels = "loss 0.500  1.6 pictures/s  about 30 s left"
    assert steps_heard[3] == Step("step", 4, 7, of_twice_the_pixels)
