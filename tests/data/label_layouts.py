"""Tiny copies of the layouts whose labels have no pixels, drawn by hand."""

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from tests.data.conftest import encode, frame_image, write, write_yaml

SIZES = {"triplet": 100, "instrument": 6, "verb": 10, "target": 15, "phase": 7}
PHASES = ("Preparation", "CalotTriangleDissection", "ClippingCutting", "GallbladderDissection")


def lines(path: Path, rows: Sequence[Sequence[object]], separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def one_hot(place: int, count: int) -> list[int]:
    return [int(p == place) for p in range(count)]


def write_video(path: Path, frames: int, rate: int) -> None:
    """Write a video whose frame n is as bright as 40 + n."""
    encode(path, [np.full((64, 80, 3), 40 + number, np.uint8) for number in range(frames)], rate=rate)


def write_cholect45(root: Path, videos: int, frames: int) -> list[str]:
    """Write frame 3 i with triplet 90 + i, instrument 0, verb i, target 2 and phase i."""
    names = [f"VID{video:02d}" for video in range(1, videos + 1)]
    for name in names:
        for index in range(frames):
            write(root / f"data/{name}/{3 * index:06d}.png", frame_image(index))
        places = {"triplet": 90, "instrument": 0, "verb": 0, "target": 2, "phase": 0}
        moves = {"triplet", "verb", "phase"}
        for kind, first in places.items():
            rows = [[3 * i, *one_hot(first + i * (kind in moves), SIZES[kind])] for i in range(frames)]
            lines(root / kind / f"{name}.txt", rows)
    return names


def write_cholect50(root: Path, videos: int, frames: int) -> list[str]:
    """Write the same, and a second instrument that does nothing known."""
    names = [f"VID{video:02d}" for video in range(1, videos + 1)]
    for name in names:
        annotations = {}
        for i in range(frames):
            write(root / f"videos/{name}/{3 * i:06d}.png", frame_image(i))
            known = [90 + i, 0, 1.0, 0.1, 0.1, 0.2, 0.2, i, 2, 1.0, -1, -1, -1, -1, i]
            annotations[str(3 * i)] = [known, [*[-1] * 14, i]]
        content = {"categories": {"triplet": {str(i): "" for i in range(100)}}, "annotations": annotations}
        (root / "labels").mkdir(exist_ok=True)
        (root / f"labels/{name}.json").write_text(json.dumps(content))
    return names


def write_cholec80(root: Path, videos: int, frames: int) -> list[str]:
    """Write frame 25 i with phase i and tool i, and phases of all frames between."""
    names = [f"video{video:02d}" for video in range(1, videos + 1)]
    for name in names:
        for index in range(frames):
            write(root / f"frames/{name}/{name}_{index + 1:06d}.png", frame_image(index))
        phases = [(n, PHASES[n // 25]) for n in range(25 * frames)]
        tools = [(25 * i, *one_hot(i, 7)) for i in range(frames)]
        lines(root / f"phase_annotations/{name}-phase.txt", [("Frame", "Phase"), *phases], "\t")
        head = ("Frame", "Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
        lines(root / f"tool_annotations/{name}-tool.txt", [head, *tools], "\t")
    return names


def write_appendix300(root: Path, videos: int, frames: int) -> list[str]:
    """Write video k with grade k - 1."""
    names = [f"{video:03d}" for video in range(1, videos + 1)]
    for name, index in product(names, range(frames)):
        write(root / f"videos/{name}/{index:06d}.jpg", frame_image(index))
    lines(root / "grades.csv", [("video", "grade"), *((name, (int(name) - 1) % 6) for name in names)])
    return names


def write_gynsurg(root: Path, videos: int, frames: int) -> list[str]:
    """Write clips of actions, each of a patient of its own, in two of four folds."""
    names = [f"clip_{video}" for video in range(1, videos + 1)]
    folder = root / "GynSurg_Action_3sec/GynSurg_action_dataset"
    for name in names:
        write_video(folder / f"clips/{name}.mp4", frames, 30)
    head = ("split", "set_type", "case_id", "vids", "labels")
    for fold in (1, 2):
        sets = ["test" if (place + fold) % 2 else "train" for place in range(videos)]
        numbered = enumerate(zip(sets, names, strict=True))
        rows = [(fold, of, f"case{n}", f"clips/{name}.mp4", n % 5) for n, (of, name) in numbered]
        lines(folder / f"fold_{fold}.csv", [head, *rows])
    return [f"action/{name}" for name in names]


LABEL_WRITERS: dict[str, Callable[[Path, int, int], list[str]]] = {
    writer.__name__.removeprefix("write_"): writer
    for writer in (write_appendix300, write_cholec80, write_cholect45, write_cholect50, write_gynsurg)
}


def site_of(tmp_path: Path, dataset: str, frames: int = 4, videos: int = 3, **changes: object) -> Site:
    """Write a site that validates on the last video but one, and tests on the last."""
    names = LABEL_WRITERS[dataset](tmp_path / "data", videos, frames)
    split = {"train": names[:-2], "validation": [names[-2]], "test": [names[-1]]}
    config = {"name": "hospital-a", "dataset": dataset, "root": "data", "split": split, **changes}
    return load_site(write_yaml(tmp_path / "site.yaml", config))
