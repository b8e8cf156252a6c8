"""Compare the frame metrics with medpy and MONAI on instrument-like masks of 1280 x 1024 pixels.

    python -m evidence.benchmarks.frame_metrics            # about 30 s, one thread

Each figure is the median over frames of the frame's best time in this run. medpy and MONAI are skipped if they are not
installed.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch start their threads

import time
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch

from evidence.benchmarks.turns import fastest
from shared_components.core.metrics import frame_scores

HEIGHT, WIDTH = 1024, 1280
CLASSES = (1, 2, 3)
FRAMES = 3


def draw_instrument(mask: np.ndarray, rng: np.random.Generator) -> None:
    """Draw a shaft (1) from a side of the frame, its wrist (2) and two open jaws (3)."""
    tip = rng.uniform(0.3, 0.7, size=2) * (WIDTH, HEIGHT)
    base = np.array([rng.choice([-50, WIDTH + 50]), rng.uniform(0.2, 0.9) * HEIGHT])
    axis = (tip - base) / np.linalg.norm(tip - base)
    across = np.array([-axis[1], axis[0]])
    half = rng.uniform(40, 70)
    wrist, jaws = tip - axis * rng.uniform(150, 200), tip - axis * rng.uniform(80, 110)
    for start, end, taper, part in ((base, wrist, 1.0, 1), (wrist, jaws, 0.7, 2)):
        corners = [start + across * half, start - across * half]
        corners += [end - across * half * taper, end + across * half * taper]
        cv2.fillPoly(mask, [np.rint(corners).astype(np.int32)], part)
    for side in (-1, 1):
        end = tip + across * side * rng.uniform(15, 60)
        cv2.line(mask, np.rint(jaws).astype(int).tolist(), np.rint(end).astype(int).tolist(), 3, 22)


def clean_prediction(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the mask of a good network: smoothed at half resolution and shifted by a few pixels."""
    small = cv2.resize(truth, (WIDTH // 2, HEIGHT // 2), interpolation=cv2.INTER_NEAREST)
    back = cv2.resize(cv2.medianBlur(small, 9), (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
    return np.roll(back, rng.integers(-4, 5, size=2), axis=(0, 1))


def noisy_prediction(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the mask of a poor network: warped outlines, false blobs and wrong single pixels."""
    noise = rng.standard_normal((2, HEIGHT // 4, WIDTH // 4)).astype(np.float32)
    shift = [cv2.resize(cv2.GaussianBlur(n, (0, 0), 6), (WIDTH, HEIGHT)) * 250 for n in noise]
    row, column = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    prediction = cv2.remap(truth, column + shift[0], row + shift[1], cv2.INTER_NEAREST)
    for part in rng.integers(0, 4, size=12).tolist():
        centre, axes = rng.integers(0, (WIDTH, HEIGHT)).tolist(), rng.integers(4, 40, size=2).tolist()
        cv2.ellipse(prediction, centre, axes, 0, 0, 360, part, -1)
    wrong = rng.random(truth.shape) < 0.002
    prediction[wrong] = rng.integers(0, 4, size=int(wrong.sum()))
    return prediction


def with_ours(prediction: np.ndarray, truth: np.ndarray) -> None:
    frame_scores(prediction, truth, classes=CLASSES)


def with_medpy(prediction: np.ndarray, truth: np.ndarray) -> None:
    from medpy.metric import binary

    for part in CLASSES:
        masks = prediction == part, truth == part
        for metric in (binary.dc, binary.jc, binary.assd, binary.hd95):
            metric(*masks)


def with_monai(prediction: np.ndarray, truth: np.ndarray) -> None:
    from monai import metrics

    # (1, classes, H, W), one-hot
    ours, true = (torch.from_numpy(np.stack([m == c for c in CLASSES])[None]) for m in (prediction, truth))
    metrics.compute_dice(ours, true, include_background=True)
    metrics.compute_iou(ours, true, include_background=True)
    metrics.compute_average_surface_distance(ours, true, include_background=True, symmetric=True)
    metrics.compute_hausdorff_distance(ours, true, include_background=True, percentile=95)


def median_time(function: Callable[..., None], pairs: list[tuple[np.ndarray, np.ndarray]], repeats: int) -> float:
    """Return the median over frames of the best time of each function, in ms."""
    works = {str(number): partial(function, *pair) for number, pair in enumerate(pairs)}
    return 1000 * float(np.median(list(fastest(works, repeats, clock=time.perf_counter).values())))


def main() -> None:
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    for predict in (clean_prediction, noisy_prediction):
        rng = np.random.default_rng(0)
        pairs = []
        for _ in range(FRAMES):
            truth = np.zeros((HEIGHT, WIDTH), np.uint8)
            for _ in range(3):
                draw_instrument(truth, rng)
            pairs.append((predict(truth, rng), truth))
        ours = median_time(with_ours, pairs, repeats=9)
        for library, function in (("medpy", with_medpy), ("MONAI", with_monai)):
            name = f"{predict.__name__.replace('_', ' ')}, four metrics / {library}"
            try:
                theirs = median_time(function, pairs, repeats=2)
            except ImportError:
                print(f"{name}: not installed")
                continue
            print(f"{name}: {theirs / ours:.1f}x faster, {ours:.1f} ms a frame against {theirs:.0f} ms")


if __name__ == "__main__":
    main()
