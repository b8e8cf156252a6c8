"""A hospital's own data, drawn by hand: names and values unlike any public dataset's."""

import hashlib
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared_components.cli import main
from shared_components.data.files.nifti import PictureWriter
from shared_components.data.samples import read_sample, samples
from shared_components.data.site_file import load_site
from shared_components.inference.video import H264Video
from tests.data.conftest import write, write_yaml
from tests.data.volumes import write_labels

H, W, FRAMES = 24, 32, 4
NAMED = ("--id", "40=irrigator", "--id", "200=bulldog clamp")
COLOURS = ((0, 0, 0), (255, 128, 0), (0, 64, 255))
IDS = {40: "irrigator", 200: "bulldog clamp"}
CLASSES = ("background", "bulldog clamp", "irrigator")
"""In alphabetical order: 40 is 2, and 200 is 1."""
Draw = Callable[[int], np.ndarray]
"""Draw a frame by its number."""


def init(folder: Path, *options: str) -> int:
    return main(["site", "init", str(folder), *options])


def photograph(index: int) -> np.ndarray:
    """Draw noise with as many values as a photograph, uint8 RGB (H, W, 3)."""
    return np.random.default_rng(index).integers(0, 255, (H, W, 3), dtype=np.uint8)


def canonical(index: int) -> np.ndarray:
    """Draw an irrigator at the left and a clamp at the right, lower in each frame; uint8 (H, W) class ids."""
    mask = np.zeros((H, W), np.uint8)
    mask[index : index + 8, 4:10] = 2
    mask[index + 2 : index + 6, 20:30] = 1
    return mask


def values(index: int) -> np.ndarray:
    return np.array([0, 200, 40], np.uint8)[canonical(index)]


def colours(index: int) -> np.ndarray:
    return np.array([COLOURS[0], COLOURS[2], COLOURS[1]], np.uint8)[canonical(index)]


def image(index: int) -> np.ndarray:
    drawn = np.full((H, W, 3), 60, np.uint8)
    drawn[..., 0] += canonical(index) * 70
    drawn[..., 2] = 10 * index
    return drawn


def write_video(path: Path, frames: int = FRAMES, *, drawn: Draw = image, rate: int = 25) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    video = H264Video(path, rate=Fraction(rate))
    for index in range(frames):
        video.add(drawn(index), Fraction(index, rate))
    video.close()


def lay(
    root: Path, images: str, masks: str, *, drawn: Draw = values, pictured: Draw = image,
    videos: Iterable[str] = "abc", frames: int = FRAMES,
) -> None:  # fmt: skip
    """Write frames and masks by templates: `{v}` is a video, `{n}` the number of a frame, `{h}` a hash."""
    for video in videos:
        for template, array in ((images, pictured), (masks, drawn)):
            hashes = [hashlib.md5(f"{video}{index}".encode()).hexdigest() for index in range(frames)]
            path = root / template.format(v=video, n=0, h=hashes[0])
            if path.suffix == ".mp4":
                write_video(path, frames, drawn=array)
            elif path.suffix in (".nii", ".gz") and template is images:
                with PictureWriter(path) as writer:
                    for index in range(frames):
                        writer.add(array(index))
            elif path.suffix in (".nii", ".gz"):
                write_labels(path, map(array, range(frames)))
            else:
                for index in range(frames):
                    write(root / template.format(v=video, n=index, h=hashes[index]), array(index))


def assert_read(site: Path, indices: Iterable[int] = range(FRAMES), *, split: str = "train") -> None:
    """Assert that the labels of a split are those of these frames."""
    labels = [read_sample(sample).targets["label"] for sample in samples(load_site(site), split)]
    np.testing.assert_array_equal(labels, [canonical(index) for index in indices])


@pytest.fixture
def own_site(tmp_path: Path) -> Callable[..., Path]:
    """Write a site of three videos, a, b and c, and return its site.yaml; None omits a key."""

    def make(kind: str = "frames", laid: tuple[str, str] | None = None, **changes: Any) -> Path:
        masks = "masks/{v}/f{n:03d}.png" if kind == "frames" else "masks/{v}.nii.gz"
        lay(tmp_path, *(laid or ("images/{v}/f{n:03d}.png", masks)))
        split = {"train": ["a"], "validation": ["b"], "test": ["c"]}
        config = {"name": "hospital-x", "dataset": kind, "root": ".", "ids": IDS, "split": split}
        return write_yaml(tmp_path / "site.yaml", config | changes)

    return make
