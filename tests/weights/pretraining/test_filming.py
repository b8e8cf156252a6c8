"""Rendering for a network that tracks objects depends only on the generator."""

from types import SimpleNamespace

import numpy as np
import torch

from shared_components.weights.pretraining import stream


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def block(*ids, times=6):
    """Return a label (1, pixels) with so many pixels of each id."""
    return np.repeat(np.array(ids, np.uint8), times)[None]


def test_an_instrument_keeps_its_number_where_another_one_leaves():
    left = np.array([[1, 1, 0]], np.uint8)
    both = SimpleNamespace(tools=("Left", "Right"), instances=np.array([[1, 2, 0]], np.uint8), things=left * 0)
    right = SimpleNamespace(tools=("Right",), instances=left, things=np.array([[0, 3, 3]], np.uint8))
    first, second = stream.single_of([both, right])
    assert first[0, 1] == second[0, 0] == second[0, 1] != first[0, 0] and second[0, 2] == 3


def test_objects_of_the_first_frame_are_taken_first_and_small_ones_never():
    clip = np.stack([block(0, 5, 5, 7), block(9, 9, 9, 9)])
    assert np.unique(stream.renumbered(clip, 2)[0]).tolist() == [0, 1, 2] and not stream.renumbered(clip, 2)[1].any()
    assert stream.renumbered(clip, 3)[1].tolist() == [[3] * 24]  # the first frame has no third
    assert np.array_equal(stream.renumbered(clip[0], 1, order=[7, 5]), block(0, 0, 0, 1))
    assert not stream.renumbered(block(4, times=5), 3).any()
    labels = [stream.random_objects(block(1, 2, 3, 4, 5), 3, generator(seed)) for seed in range(40)]
    assert {int(one.max()) for one in labels} == {1, 2, 3}
    assert len({one.tobytes() for one in labels}) > 20
    assert np.array_equal(labels[3], stream.random_objects(block(1, 2, 3, 4, 5), 3, generator(3)))


def test_paces_lie_around_the_interval_and_clips_have_two_frames_up_to_the_most():
    drawn = [stream.drawn_filming(2.0, generator(seed), objects=3) for seed in range(60)]
    seconds = [1 / one.rate for one in drawn]
    assert 0.7 <= min(seconds) < 1 and 3 < max(seconds) <= 4
    assert {(one.things, one.ids) for one in drawn} == set(stream.KINDS)
    assert 0.35 <= 1 / stream.drawn_filming(0.0, generator(), objects=3).rate <= 2
    assert stream.drawn_filming(2.0, generator(), objects=0).ids is stream.scene_of
    assert {stream.clip_length(4, generator(seed)) for seed in range(40)} == {2, 3, 4}
    assert stream.clip_length(2, generator()) == 2 and stream.clip_length(1, generator()) == 1
