"""Measure how often `surgfl segment` reports doubtful masks on rendered scenes and on labelled real surgeries.

    python -m evidence.doubtful_masks --videos 30 --real /data/endovis2015_rigid

A mask is wrong if tissue makes up a third of its instrument pixels and 2 % of the picture.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from shared_components.common.machine import hardware
from shared_components.core.evaluation import network_input
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.trained_model import Trained, load_trained
from shared_components.data.readers import find_reader
from shared_components.data.samples import LABELLED
from shared_components.federation.runs.provenance import commit
from shared_components.inference.doubtful import LIMIT, DoubtWatch
from shared_components.inference.frames import Shot
from shared_components.inference.predict import Predictor
from shared_components.reporting.tables import Table, as_markdown
from shared_components.weights.pretraining.stream import held_out
from shared_components.weights.shipping.calibrating import FIRST, KNOWN

Pair = tuple[np.ndarray, np.ndarray]  # a frame, uint8 RGB (H, W, 3), and its label (H, W)
LOOKS, FRAMES = FIRST + 9000, 6  # first number of looks that nothing else uses; frames per rendered video
TISSUE, LEAST = 1 / 3, 0.02


@dataclass(frozen=True)
class Judged:
    """One frame: share of the picture that changes by mirroring, whether its mask is wrong, and its Dice."""

    changed: float
    wrong: bool
    dice: float


def judged(model: Trained, pairs: Iterator[Pair]) -> tuple[list[Judged], int]:
    """Check one frame per second of a video; return the frames, and the number of doubtful stretches."""
    height, width = model.size
    predictor, watch = Predictor(model.network, model.task), DoubtWatch(model, model.size, Fraction(1))
    found = []
    for number, (image, label) in enumerate(pairs):
        mask = predictor(network_input(image[None], height, width), image.shape[:2])[1]
        watch.add(Shot(f"frame_{number:06d}", image, seconds=Fraction(number)), mask)
        seen, true = mask > 0, label > 0
        tissue, both = (seen & ~true).mean(), seen.sum() + true.sum()
        dice = 2 * (seen & true).sum() / both if both else 1.0
        wrong = tissue > max(LEAST, TISSUE * seen.mean())
        found.append(Judged(watch.changed(image, mask), bool(wrong), float(dice)))
    return found, len(watch.intervals())


def rendered(model: Trained, number: int) -> Iterator[Pair]:
    """Render a video in its own look."""
    look = f"{KNOWN[number % len(KNOWN)]}-{LOOKS + number}"
    for item in held_out(look, LOOKS + number, size=model.size, spec=LABELLED, count=FRAMES):
        yield item.images[-1], item.targets["label"]


def real(root: Path, video: str) -> Iterator[Pair]:
    """Read the frames of a surgery."""
    reader = find_reader("endovis2015_rigid")
    for _, image, targets in reader.frames(root, video):
        yield reader.read_image(image), reader.read_target("label", targets["label"])


def row(name: str, videos: list[tuple[list[Judged], int]]) -> tuple[str, ...]:
    """Return a row of the table."""
    frames = [frame for found, _ in videos for frame in found]
    doubted = [frame for frame in frames if frame.changed > LIMIT]
    wrong = [frame for frame in frames if frame.wrong]
    rest = [frame.dice for frame in frames if frame.changed <= LIMIT]
    return (
        name, str(len(frames)), str(len(doubted)), f"{sum(f.changed > LIMIT for f in wrong)} of {len(wrong)}",
        f"{np.mean([f.dice for f in doubted]):.2f}" if doubted else "–", f"{np.mean(rest):.2f}" if rest else "–",
        f"{sum(count > 0 for _, count in videos)} of {len(videos)}", str(sum(count for _, count in videos)),
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=30, help="rendered ones")
    parser.add_argument("--real", type=Path, help="folder of EndoVis 2015's rigid instruments")
    args = parser.parse_args()
    model = load_trained(shipped_weights("pvt_fpn"), bundle="pvt_fpn")
    videos = (
        {}
        if args.real is None
        else {name: real(args.real, name) for name in find_reader("endovis2015_rigid").videos(args.real)}
    )
    rows = [row(name, [judged(model, pairs)]) for name, pairs in videos.items()]
    rows.append(row("rendered", [judged(model, rendered(model, number)) for number in range(args.videos)]))
    head = (
        "Group", "Frames", "In doubt", "Wrong masks in doubt", "Dice of frames in doubt", "Dice of others",
        "Videos with a stretch", "Stretches",
    )  # fmt: skip
    print(as_markdown(Table("Masks in doubt", head, tuple(rows))))
    print(f"limit {LIMIT}, commit {commit()}, {hardware()}")


if __name__ == "__main__":
    main()
