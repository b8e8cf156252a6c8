"""Size, batch and steps follow from the frames, the measured speed and the minutes; worked by hand."""

import math

import pytest

from shared_components.weights.fine_tuning import plan as planning
from shared_components.weights.fine_tuning.plan import Settings

FEW = planning.Counts(train=4, validation=1, test=1)
SECOND = planning.Speed(step=1.0, validation=0.5, test=1.0)


def planned(minutes=5.0, counts=FEW, speed=SECOND, native=(192, 256), **given):
    size = given.get("size") or (192, 256)
    return planning.choose_plan(
        Settings(minutes=minutes, **given), counts, speed, measured_at=size, native=native, batch=4, stride=32
    )


def test_few_frames_take_80_steps_with_twelve_validations_and_the_time_is_their_sum():
    plan = planned()
    assert (plan.size, plan.batch_size, plan.steps, plan.every) == ((192, 256), 4, 80, 7)
    assert plan.seconds_of_training == pytest.approx(80 * 1.0 + (1 + 12) * 1 * 0.5)
    assert plan.seconds_of_scoring == pytest.approx((2 * 1 + 6) * 1.0)
    assert plan.seconds == pytest.approx(94.5)


@pytest.mark.parametrize("frames, batch, steps", [(1, 2, 80), (8, 4, 80), (30, 4, 300), (31, 4, 310), (999, 4, 2000)])
def test_more_frames_are_seen_forty_times_within_bounds(frames, batch, steps):
    assert planning.target_steps(frames, batch) == steps


@pytest.mark.parametrize(("frames", "gpu", "batch"), [(1, False, 2), (3, False, 3), (9, False, 4), (9, True, 8)])
def test_a_batch_is_of_the_machine_and_of_no_more_frames_than_there_are_but_two(frames, gpu, batch):
    assert planning.automatic_batch_size(frames, gpu=gpu) == batch


def test_the_largest_size_that_fits_is_taken_and_none_beyond_the_frames_own():
    """256x352 has 1.83 times the pixels of 192x256, 384x512 four times, 512x672 seven times."""
    large = (1080, 1920)
    assert planned(minutes=94.5 / 60, native=large).size == (192, 256)
    wide = planned(minutes=94.5 * 1.84 / 60, native=large)
    assert wide.size == (256, 352) and wide.seconds == pytest.approx(94.5 * 256 * 352 / (192 * 256))
    assert planned(minutes=94.5 * 4 / 60 + 0.01, native=large).size == (384, 512)
    assert planned(minutes=60, native=large).size == (512, 672)
    assert planned(minutes=60, native=(480, 640)).size == (384, 512)
    assert planned(minutes=60, native=large, size=(192, 256)).size == (192, 256), "what is given is not chosen"


def test_steps_are_as_many_as_fit_or_as_given_and_too_few_minutes_are_refused():
    plan = planned(minutes=1)
    assert 20 <= plan.steps < 80 and plan.seconds <= 60
    assert plan.steps == int(60 - 8 - 13 * 0.5), "what scoring and thirteen validations leave"
    assert planned(minutes=0.1, steps=500, native=(1080, 1920)).steps == 500
    with pytest.raises(ValueError, match=r"^0\.5 minutes are not enough: a step takes 1\.0 s here, .*--minutes 2, or"):
        planned(minutes=0.5)
    planned(minutes=2)


@pytest.mark.parametrize(("name", "value"), [
    ("minutes", math.nan), ("minutes", 0), ("minutes", -1), ("minutes", math.inf), ("minutes", "5"), ("steps", 0),
    ("steps", 2.5), ("batch_size", 0), ("batch_size", True), ("seed", -1),
])  # fmt: skip
def test_numbers_out_of_their_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^train: {name} is "):
        Settings(**{name: value})
