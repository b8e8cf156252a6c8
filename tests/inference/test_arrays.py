"""The Python API: masks and probabilities equal to the command's, and errors for invalid arrays."""

import numpy as np
import pytest
import torch
from torch import nn

import surgfl
from shared_components.core.evaluation import network_input
from shared_components.core.task import make_task
from shared_components.core.trained_model import Trained
from shared_components.inference import InferenceError
from shared_components.inference.arrays import Model, check_frame
from shared_components.inference.frames import FrameStream
from shared_components.inference.predict import Predictor, shown_frames
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from tests.inference.conftest import PARTS, SEGMENTATION, noise, write_video


@pytest.fixture
def model():
    """Return a model whose logits (B, 4, H/4, W/4) are of the colours of a pixel."""
    return Model(Trained(nn.Conv2d(3, 4, 1, stride=4), SEGMENTATION, (32, 64)))


def frame(height=48, width=128):
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)


def test_probabilities_are_the_softmax_at_the_nearest_pixels_and_the_mask_is_their_largest(model):
    given = frame()
    result = model.segment(given)
    assert result.mask.shape == (48, 128) and result.mask.dtype == np.uint8
    assert result.probabilities.shape == (4, 48, 128) and result.probabilities.dtype == np.float32
    assert np.allclose(result.probabilities.sum(0), 1, atol=1e-5)
    assert (result.probabilities.argmax(0) == result.mask).all() and len(np.unique(result.mask)) > 1
    assert result.classes == model.classes == PARTS and result.frame is given
    with torch.no_grad():
        shares = model._network(network_input(given[None], 32, 64)).softmax(1)
    large = nn.functional.interpolate(shares, size=(48, 128), mode="nearest-exact")
    assert np.allclose(result.probabilities, large[0].numpy(), atol=1e-6)
    same = Model(Trained(nn.Conv2d(3, 4, 1), SEGMENTATION, (32, 64))).segment(frame(32, 64))  # not enlarged
    assert same.probabilities.shape == (4, 32, 64) and same.probabilities.flags.c_contiguous


def test_a_video_gives_the_commands_masks_with_times_one_frame_at_a_time(model, tmp_path):
    video = write_video(tmp_path / "a.mp4", noise(6), rate=10)
    result = list(model.segment_video(video, every=2))
    stream = FrameStream(video, height=32, width=64, every=2)
    predictor = Predictor(model._network, SEGMENTATION)
    expected = [predictor(item["image"], item["shot"].image.shape[:2])[1] for item in stream]
    assert [(one.mask == mask).all() for one, mask in zip(result, expected, strict=True)] == [True] * 3
    assert [one.seconds for one in result] == pytest.approx([0.0, 0.2, 0.4])
    assert [one.name for one in result] == ["frame_000000", "frame_000002", "frame_000004"]
    begun = model.segment_video(video)
    next(begun)
    begun.close()
    with pytest.raises(InferenceError, match="does not exist"):  # before the first frame is asked for
        model.segment_video(tmp_path / "none.mp4")


def test_a_model_of_clips_remembers_in_a_video_and_not_between_single_frames(tmp_path):
    torch.manual_seed(0)
    task = make_task("segmentation", {"frames": 4, "interval": 0.1}, classes=PARTS)
    clips = Model(Trained(PvtFpnClips(out_channels=4), task, (32, 64)))
    video = write_video(tmp_path / "a.mp4", noise(3), rate=10)
    result = list(clips.segment_video(video))
    stream = FrameStream(video, height=32, width=64)
    predictor = Predictor(shown_frames(clips._network, task, stream), task)
    expected = [predictor(item["image"], item["shot"].image.shape[:2])[1] for item in stream]
    assert all((one.mask == mask).all() for one, mask in zip(result, expected, strict=True))
    single = clips.segment(result[0].frame).probabilities
    clips.segment(result[1].frame)
    assert (clips.segment(result[0].frame).probabilities == single).all()
    assert np.allclose(single, result[0].probabilities, atol=1e-6), "the first frame has no earlier ones"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "the frame is a NoneType; .* numpy.asarray"), ([[[0, 0, 0]]], "the frame is a list; "),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), "the frame is a Tensor; "),
        (np.zeros((8, 8, 3)), r"type float64 and values from 0 to 0; .*\(255 \* frame\)\.round\(\) with astype"),
        (np.full((8, 8, 3), 300, np.int64), "type int64 and values from 300 to 300; .* scaling it to 0 to 255"),
        (np.full((8, 8, 3), np.nan, np.float32), "type float32 and values from nan to nan; "),
        (np.zeros((8, 8, 3), bool), "type bool and values from 0 to 0; "),
        *((np.zeros(shape, np.uint8), "repeat the grey channel three times") for shape in ((8, 8), (8, 8, 1))),
        (np.zeros((8, 8, 4), np.uint8), r"remove alpha with frame\[\.\.\., :3\]"),
        (np.zeros((3, 8, 8), np.uint8), r"has the shape \(3, 8, 8\); .* move the channels to the end"),
        (np.zeros((2, 8, 8, 3), np.uint8), "pass the frames one by one"),
        (np.zeros((0, 8, 3), np.uint8), r"has the shape \(0, 8, 3\)"), (np.zeros(3, np.uint8), r"has the shape \(3,\)"),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused_in_one_sentence_with_the_remedy(model, given, sentence):
    with pytest.raises(InferenceError, match=sentence) as refusal:
        model.segment(given)
    assert "uint8, RGB, with shape (H, W, 3)" in str(refusal.value) and "\n" not in str(refusal.value)
    check_frame(frame())


def test_a_frame_that_is_a_view_is_taken_and_not_changed(model):
    given = frame()
    before = given.copy()
    turned = model.segment(given[::-1, ::2])
    assert turned.mask.shape == (48, 64) and (given == before).all()
    assert (turned.mask == model.segment(np.ascontiguousarray(given[::-1, ::2])).mask).all()


def test_models_of_other_tasks_are_refused():
    with pytest.raises(InferenceError, match="was trained for depth, not segmentation"):
        Model(Trained(nn.Conv2d(3, 1, 1), make_task("depth"), (32, 64)))


@pytest.mark.slow
def test_a_model_that_follows_boxes_is_refused():
    with pytest.raises(InferenceError, match="needs boxes in the first frame; use `surgfl segment --box`"):
        surgfl.load(bundle="surgfed")
