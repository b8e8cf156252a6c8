"""Layouts of data sets with labels per frame or per video, rather than pictures of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shared_components.data.triplets import INSTRUMENTS, TARGETS, TRIPLETS, VERBS
from shared_components.scenes.operations import PHASES
from shared_components.scenes.scene import SceneFrame
from shared_components.scenes.shots import Shot, Written, write_image, write_png

GRADES_FILE = "grades.csv"


def write_cholect45(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """data/VIDxx/%06d.png, 0-based at 1 frame a second; {triplet,instrument,verb,target,phase}/VIDxx.txt; dict/*.txt.

    A row of labels is a frame's number and a 0 or 1 per class: 100 triplets, 6 instruments, 10 verbs, 15 targets, 7
    phases.
    """
    rows: dict[str, list[str]] = {name: [] for name in ("triplet", "instrument", "verb", "target", "phase")}
    for shot in shots:
        stem = f"{shot.number:06d}"
        write_png(root / "data" / video / f"{stem}.png", shot.frame.image)
        if shot.labelled:
            for name, (ids, count) in _labels(shot.frame).items():
                rows[name].append(",".join([str(shot.number), *(str(int(c in ids)) for c in range(count))]) + "\n")
        yield shot.frame, stem
    if rows["triplet"]:
        for name, lines in rows.items():
            _write_text(root / name / f"{video}.txt", lines)
        _write_names(root / "dict")


def _labels(frame: SceneFrame) -> dict[str, tuple[set[int], int]]:
    """Return what a frame has of each kind of label, and how many there are."""
    parts = list(zip(*(TRIPLETS[number] for number in frame.triplets), strict=True)) or [()] * 3
    counts = len(INSTRUMENTS), len(VERBS), len(TARGETS)
    found = {
        name: (set(ids), count)
        for name, ids, count in zip(("instrument", "verb", "target"), parts, counts, strict=True)
    }
    return {"triplet": (set(frame.triplets), len(TRIPLETS)), **found, "phase": ({frame.phase}, len(PHASES))}


def _write_names(folder: Path) -> None:
    """Write the names of all labels, and of each triplet the numbers of its components."""
    names = [f"{INSTRUMENTS[i]},{VERBS[v]},{TARGETS[t]}" for i, v, t in TRIPLETS]
    lists: dict[str, Sequence[str]] = {
        "triplet": names, "instrument": INSTRUMENTS, "verb": VERBS, "target": TARGETS, "phase": PHASES,
    }  # fmt: skip
    for kind, listed in lists.items():
        _write_text(folder / f"{kind}.txt", [f"{number}:{name}\n" for number, name in enumerate(listed)])
    maps = [f"{n},{i},{v},{t},{10 * i + v},{15 * i + t}\n" for n, (i, v, t) in enumerate(TRIPLETS)]
    _write_text(folder / "maps.txt", ["# IVT, I, V, T, IV, IT\n", *maps])


def write_appendix300(root: Path, video: str, shots: Iterable[Shot]) -> Written:
    """videos/<video>/%06d.jpg, 2 frames a second, and grades.csv: video,grade.

    This layout is ours: that of the published archive was not seen.
    """
    grade = None
    for shot in shots:
        stem = f"{shot.number:06d}"
        write_image(root / "videos" / video / f"{stem}.jpg", shot.frame.image)
        grade = shot.frame.grade if shot.labelled else grade
        yield shot.frame, stem
    if grade is not None:
        file = root / GRADES_FILE
        earlier = [] if not file.exists() else [file.read_text("utf-8")]
        _write_text(file, [*(earlier or ["video,grade\n"]), f"{video},{grade}\n"])


def _write_text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), "utf-8")
