"""A hospital's own data, drawn by hand: names and values unlike any public dataset's."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from shared_components.inference.video import H264Video
from tests.data.volumes import write_labels

H, W, FRAMES = 24, 32, 4
VALUES = (0, 40, 200)
COLOURS = ((0, 0, 0), (255, 128, 0), (0, 64, 255))
IDS = {40: "irrigator", 200: "bulldog clamp"}
CLASSES = ("background", "bulldog clamp", "irrigator")
"""The alphabet's order: 40 is 2, and 200 is 1."""


def canonical(index: int) -> np.ndarray:
    """Draw an irrigator at the left and a clamp at the right, lower in each frame; uint8 (H, W) class ids."""
    mask = np.zeros((H, W), np.uint8)
    mask[index : index + 8, 4:10] = 2
    mask[index + 2 : index + 6, 20:30] = 1
    return mask


def values(index: int) -> np.ndarray:
    """Return the mask's pixel values, uint8 (H, W)."""
    return np.array([0, 200, 40], np.uint8)[canonical(index)]


def colours(index: int) -> np.ndarray:
    """Return the mask's colours, uint8 RGB (H, W, 3)."""
    return np.array([COLOURS[0], COLOURS[2], COLOURS[1]], np.uint8)[canonical(index)]


def image(index: int) -> np.ndarray:
    """Draw a frame, uint8 RGB (H, W, 3)."""
    drawn = np.full((H, W, 3), 60, np.uint8)
    drawn[..., 0] += canonical(index) * 70
    drawn[..., 2] = 10 * index
    return drawn


def write(path: Path, array: np.ndarray) -> None:
    """Write an image; RGB(A) in its own order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if array.ndim == 3:
        array = cv2.cvtColor(array, cv2.COLOR_RGBA2BGRA if array.shape[2] == 4 else cv2.COLOR_RGB2BGR)
    assert cv2.imwrite(str(path), array)


def write_video(path: Path, drawn: Callable[[int], np.ndarray], *, rate: int, frames: int = FRAMES) -> None:
    """Write a video of so many frames, each as it is drawn by its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    video = H264Video(path, rate=Fraction(rate))
    for index in range(frames):
        video.add(drawn(index), Fraction(index, rate))
    video.close()


@pytest.fixture
def own_site(tmp_path: Path) -> Callable[..., Path]:
    """Write a site of three videos, a, b and c, and return its site.yaml; None omits a key."""

    def make(kind: str = "frames", **changes: Any) -> Path:
        for video in "abc":
            for index in range(FRAMES):
                write(tmp_path / f"images/{video}/f{index:03d}.png", image(index))
                if kind == "frames":
                    write(tmp_path / f"masks/{video}/f{index:03d}.png", values(index))
            if kind == "nifti":
                write_labels(tmp_path / f"masks/{video}.nii.gz", [values(index) for index in range(FRAMES)])
        config = {
            "name": "hospital-x",
            "dataset": kind,
            "root": ".",
            "ids": IDS,
            "split": {"train": ["a"], "validation": ["b"], "test": ["c"]},
        }
        config |= changes
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
        return path

    return make
