import json
import math
from timeit import repeat

import cv2
import numpy as np
import pytest
import torch

from shared_components.core.metrics import _nearest, _query, frame_scores, image_iou, summarise

CASES = 320
CLASSES = (1, 2, 3)


def random_labels(seed):
    """One of seven kinds of label map with ids 0..3: at the border, full, of single pixels, disjoint..."""
    rng = np.random.default_rng(seed)
    H, W = rng.integers(9, 48, size=2)
    labels = np.zeros((H, W), np.uint8)
    kind = seed % 8
    if kind == 0:  # smooth regions that touch each other and the border
        noise = cv2.GaussianBlur(rng.standard_normal((H, W)), (0, 0), 3)
        labels[:] = np.digitize(noise, np.quantile(noise, [0.3, 0.6, 0.8]))
    elif kind == 1:  # pixel noise
        labels[:] = rng.integers(0, 4, size=(H, W))
    elif kind == 2:  # single pixels
        labels[tuple(rng.integers(0, (H, W), size=(3, 2)).T)] = [1, 2, 3]
    elif kind == 3:  # one class fills the frame
        labels[:] = rng.integers(1, 4)
    elif kind == 4:  # full frame with a hole and one pixel in a corner
        labels[:] = 1
        labels[2:5, 3:7], labels[-1, -1] = 2, 3
    elif kind == 5:  # stripes along the borders
        labels[0], labels[-1], labels[:, 0] = 1, 2, 3
    else:  # disjoint rectangles, some cut by the border
        for _ in range(6):
            top, left = rng.integers(-4, (H, W))
            labels[max(top, 0) : top + 6, max(left, 0) : left + 9] = rng.integers(0, 4)
    return labels


def random_pair(seed):
    """A label map with a perturbed copy of itself, or with a map of another kind."""
    truth = random_labels(seed)
    rng = np.random.default_rng(10_000 + seed)
    if seed % 3 == 0:
        other = random_labels(5_000 + seed // 3)
        return cv2.resize(other, truth.shape[::-1], interpolation=cv2.INTER_NEAREST), truth
    prediction = np.roll(truth, rng.integers(-3, 4, size=2), axis=(0, 1))
    flip = rng.random(truth.shape) < 0.02
    prediction[flip] = rng.integers(0, 4, size=flip.sum())
    return prediction, truth


def present_classes(prediction, truth):
    return [c for c in CLASSES if (prediction == c).any() and (truth == c).any()]


def random_cases(seeds):
    """Yield the pairs of these seeds by class, for the classes that both maps have; more than one per pair."""
    count = 0
    for seed in seeds:
        prediction, truth = random_pair(seed)
        for c in present_classes(prediction, truth):
            count += 1
            yield prediction == c, truth == c, frame_scores(prediction, truth, classes=[c]), f"seed {seed} class {c}"
    assert count > len(seeds)


def test_the_four_metrics_equal_medpy_on_random_masks_and_a_noisy_frame():
    medpy = pytest.importorskip("medpy.metric.binary")
    for prediction, truth, ours, case in random_cases(range(CASES)):
        theirs = [f(prediction, truth) for f in (medpy.dc, medpy.jc, medpy.assd, medpy.hd95)]
        measured = [ours.dice[0], ours.iou[0], ours.assd[0], ours.hd95[0]]
        np.testing.assert_allclose(measured, theirs, rtol=1e-9, atol=1e-9, err_msg=case)
    rng = np.random.default_rng(5)
    prediction, truth = rng.integers(0, 4, size=(2, 400, 420), dtype=np.uint8)
    truth[:, 200:] = 0
    scores = frame_scores(prediction, truth, classes=[2])
    masks = prediction == 2, truth == 2
    assert scores.assd[0] == pytest.approx(medpy.assd(*masks), rel=1e-9)
    assert scores.hd95[0] == pytest.approx(medpy.hd95(*masks), rel=1e-9)


def test_hausdorff_and_surface_distance_equal_monai_on_random_masks():
    monai = pytest.importorskip("monai.metrics")
    for prediction, truth, ours, case in random_cases(range(CASES // 4)):
        masks = [torch.from_numpy(mask)[None, None] for mask in (prediction, truth)]
        hd95 = monai.compute_hausdorff_distance(*masks, include_background=True, percentile=95)
        assd = monai.compute_average_surface_distance(*masks, include_background=True, symmetric=True)
        measured = [ours.hd95_monai[0], ours.assd[0]]
        np.testing.assert_allclose(measured, [hd95.item(), assd.item()], rtol=1e-5, atol=1e-5, err_msg=case)


def test_distances_of_pixels_and_both_hd95_definitions_are_those_worked_by_hand():
    prediction, truth = np.zeros((2, 6, 8), np.uint8)
    prediction[1, 1], truth[4, 5] = 1, 1
    scores = frame_scores(prediction, truth, classes=[1])
    assert (scores.dice[0], scores.iou[0]) == (0.0, 0.0)
    assert (scores.assd[0], scores.hd95[0], scores.hd95_monai[0]) == (5.0, 5.0, 5.0)
    # One pixel is right, one lies 10 away. Prediction to truth: 0, 10; truth to prediction: 0.
    prediction, truth = np.zeros((2, 1, 11), np.uint8)
    prediction[0, [0, 10]], truth[0, 0] = 1, 1
    scores = frame_scores(prediction, truth, classes=[1])
    assert scores.dice[0] == pytest.approx(2 / 3) and scores.iou[0] == pytest.approx(1 / 2)
    assert scores.assd[0] == pytest.approx(10 / 3)
    assert scores.hd95[0] == pytest.approx(9.0)  # pooled 0, 0, 10 at position 0.95 * 2
    assert scores.hd95_monai[0] == pytest.approx(9.5)  # 0, 10 at position 0.95; the other direction is 0


@pytest.fixture(params=[1, 2])
def cv2_threads(request):
    """Run with one or two cv2 threads: its distance transforms are two implementations."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(request.param)
    yield request.param
    cv2.setNumThreads(before)


@pytest.mark.parametrize(("side", "density"), [(300, 0.3), (1024, 0.03), (1024, 1.0)])
def test_dense_surfaces_are_measured_exactly_also_across_a_long_frame(side, density, cv2_threads):
    # Targets on the left only: on one thread, thousands of points of the first case are beyond the 885 pixels
    # from which the float32 transform rounds to a wrong square.
    targets = np.argwhere(np.random.default_rng(4).random((side, side)) < density)
    points = np.argwhere(np.ones((120, 480), bool)) * (9, 4)
    assert len(points) > 30_000
    np.testing.assert_array_equal(_nearest(points, targets), _query(points, targets))


def frame(*pixels):
    """Return a label map of 3 x 4 pixels, whose diagonal is 5."""
    labels = np.zeros((3, 4), np.uint8)
    for pixel in pixels:
        labels[pixel] = 1
    return labels


def distances_of(scores):
    return [scores.assd[0], scores.hd95[0], scores.hd95_monai[0]]


def test_a_class_empty_in_both_is_not_counted():
    scores = frame_scores(frame(), frame(), classes=[1])
    assert np.isnan([scores.dice[0], scores.iou[0], *distances_of(scores)]).all()
    assert scores.empty_prediction[0] and scores.empty_truth[0]


@pytest.mark.parametrize("missed", [True, False])
def test_a_class_empty_in_one_scores_zero_and_the_diagonal(missed):
    pair = (frame(), frame((1, 1))) if missed else (frame((1, 1)), frame())
    scores = frame_scores(*pair, classes=[1])
    assert (scores.dice[0], scores.iou[0]) == (0.0, 0.0) and distances_of(scores) == [5.0, 5.0, 5.0]
    assert (scores.empty_prediction[0], scores.empty_truth[0]) == (missed, not missed)
    empty = summarise([scores], ["tool"])["empty"]["tool"]
    assert empty == {"prediction": int(missed), "truth": int(not missed), "both": 0}


def test_paper_policy_fills_empty_masks_with_the_first_pixel():
    scores = frame_scores(frame(), frame(), classes=[1], policy="paper")
    assert (scores.dice[0], scores.iou[0], *distances_of(scores)) == (1.0, 1.0, 0.0, 0.0, 0.0)
    assert scores.empty_prediction[0] and scores.empty_truth[0] and scores.policy == "paper"
    scores = frame_scores(frame(), frame((0, 3)), classes=[1], policy="paper")
    assert (scores.dice[0], *distances_of(scores)) == (0.0, 3.0, 3.0, 3.0)
    # Prediction {[0, 0], [0, 3]}, truth {[0, 0]}: Dice 2/3; distances 0, 3 and 0.
    scores = frame_scores(frame((0, 3)), frame(), classes=[1], policy="paper")
    assert scores.dice[0] == pytest.approx(2 / 3) and scores.iou[0] == pytest.approx(1 / 2)
    assert scores.assd[0] == pytest.approx(1.0) and scores.hd95[0] == pytest.approx(2.7)


def test_paper_policy_leaves_masks_that_are_not_empty_and_its_inputs_alone():
    prediction, truth = random_pair(0)
    copies = prediction.copy(), truth.copy()
    classes = present_classes(prediction, truth)
    paper, plain = (frame_scores(prediction, truth, classes=classes, policy=p) for p in ("paper", "diagonal"))
    np.testing.assert_array_equal(paper.assd, plain.assd)
    frame_scores(prediction, truth, classes=[7], policy="paper")
    assert (prediction == copies[0]).all() and (truth == copies[1]).all()


def test_wrong_policies_shapes_and_types_are_refused():
    with pytest.raises(ValueError, match=r"'skip'.*diagonal, paper"):
        frame_scores(frame(), frame(), classes=[1], policy="skip")
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(4, 3\)"):
        frame_scores(np.zeros((3, 4), np.uint8), np.zeros((4, 3), np.uint8), classes=[1])
    with pytest.raises(ValueError, match="prediction is of type float32"):
        frame_scores(np.zeros((3, 4), np.float32), frame(), classes=[1])


def test_scores_do_not_depend_on_types_memory_order_or_other_classes():
    prediction, truth = random_pair(1)
    expected = frame_scores(prediction, truth, classes=CLASSES)
    tensors = [torch.from_numpy(labels).long() for labels in (prediction, truth)]
    np.testing.assert_array_equal(frame_scores(*tensors, classes=CLASSES).assd, expected.assd)
    padded = np.zeros((truth.shape[0], 2 * truth.shape[1]), np.uint8)
    padded[:, ::2] = truth
    strided = frame_scores(np.asfortranarray(prediction), padded[:, ::2], classes=CLASSES)
    np.testing.assert_array_equal(strided.assd, expected.assd)
    np.testing.assert_allclose(frame_scores(prediction.T, truth.T, classes=CLASSES).assd, expected.assd, rtol=1e-12)
    for seed in range(24):
        prediction, truth = random_pair(seed)
        together = frame_scores(prediction, truth, classes=CLASSES)
        for column, c in enumerate(CLASSES):
            alone = frame_scores(prediction, truth, classes=[c])
            for name in ("dice", "iou", "assd", "hd95", "hd95_monai", "empty_prediction", "empty_truth"):
                np.testing.assert_array_equal(getattr(together, name)[column], getattr(alone, name)[0])


def test_summary_averages_counted_frames_per_class_and_refuses_mixed_scores():
    truth, half, both = frame((0, 0)), frame((0, 0), (0, 3)), frame()
    frames = [frame_scores(truth, truth, classes=[1, 2]), frame_scores(half, truth, classes=[1, 2])]
    frames.append(frame_scores(both, both, classes=[1, 2]))
    summary = summarise(frames, ["shaft", "wrist"])
    assert summary["dice"]["shaft"] == pytest.approx((1 + 2 / 3) / 2) and summary["dice"]["wrist"] is None
    assert summary["dice"]["mean"] == summary["dice"]["shaft"]
    assert summary["assd"]["shaft"] == pytest.approx((0 + 1.0) / 2)
    assert summary["empty"] == {
        "shaft": {"prediction": 0, "truth": 0, "both": 1},
        "wrist": {"prediction": 0, "truth": 0, "both": 3},
    }
    assert (summary["frames"], summary["policy"]) == (3, "diagonal")
    scores = [frame_scores(frame(), frame(), classes=[1], policy=policy) for policy in ("diagonal", "paper")]
    with pytest.raises(ValueError, match="no frames"):
        summarise([], ["shaft"])
    with pytest.raises(ValueError, match="policy 'diagonal'"):
        summarise(scores, ["shaft"])
    with pytest.raises(ValueError, match=r"\('background', 'shaft'\) do not fit"):
        summarise(scores[:1], ["background", "shaft"])


def test_summary_is_plain_json_without_nan_and_without_distances_that_were_not_measured():
    prediction, truth = random_pair(0)
    summary = summarise([frame_scores(prediction, truth, classes=[1, 9])], ["shaft", "never"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    summary = summarise([frame_scores(prediction, truth, classes=[1], distances=False)], ["shaft"])
    assert sorted(summary) == ["dice", "empty", "frames", "iou", "policy"]


@pytest.mark.slow
def test_a_full_size_frame_is_measured_fifteen_times_faster_than_with_medpy():
    medpy = pytest.importorskip("medpy.metric.binary")
    truth = np.zeros((1024, 1280), np.uint8)
    for c, (top, bottom) in zip(CLASSES, ((600, 1024), (480, 600), (400, 480)), strict=True):
        truth[top:bottom, 500:640] = truth[top:bottom, 900:1000] = c
    prediction = np.roll(truth, (5, -7), axis=(0, 1))

    def with_medpy():
        for c in CLASSES:
            for metric in (medpy.dc, medpy.jc, medpy.assd, medpy.hd95):
                metric(prediction == c, truth == c)

    ours = min(repeat(lambda: frame_scores(prediction, truth, classes=CLASSES), number=1, repeat=5))
    assert min(repeat(with_medpy, number=1, repeat=2)) > 15 * ours


def test_unlabelled_pixels_count_nowhere_and_the_image_iou_is_over_present_classes():
    prediction, truth = random_labels(0), random_labels(0)[::-1].copy()
    H, W = truth.shape
    truth[:, W // 2 :] = 255
    whole = frame_scores(prediction, truth, classes=CLASSES)
    left = frame_scores(prediction[:, : W // 2], truth[:, : W // 2], classes=CLASSES)
    for metric in ("dice", "iou", "assd", "hd95", "empty_truth", "empty_prediction"):
        np.testing.assert_array_equal(getattr(whole, metric), getattr(left, metric))

    nothing = frame_scores(prediction, np.full((H, W), 255, np.uint8), classes=CLASSES)
    assert np.isnan(nothing.dice).all() and np.isnan(nothing.hd95).all()
    prediction, truth = np.array([[0, 0, 1, 1, 3]], np.uint8), np.array([[0, 1, 1, 2, 255]], np.uint8)
    assert image_iou(prediction, truth, classes=4) == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert image_iou(truth[:, :4], truth[:, :4], classes=4) == 1
    assert math.isnan(image_iou(prediction, np.full_like(truth, 255), classes=4))
