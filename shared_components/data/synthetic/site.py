"""Writing a whole synthetic site: videos in a public layout, side files, and their site.yaml.

OUT/site.yaml                     what the readers need
OUT/<layout>/...                  the data set, exactly as the public one lies on disk
OUT/side/<video>/frames.csv       frame, phase, tools, actions and gesture of each frame
OUT/side/<video>/depth/<stem>.png uint16, mm * 256, 0 = unknown (as scared_toolkit writes SCARED)
OUT/render.json                   how it was made; marks the folder as ours
"""

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shared_components.common.progress import report_progress
from shared_components.data.files import depth_values
from shared_components.data.synthetic.frame_times import TARGETS, Schedule, schedule
from shared_components.data.synthetic.layouts import LAYOUTS, write_png
from shared_components.data.synthetic.looks import look_named
from shared_components.data.synthetic.motion import PHASES
from shared_components.data.synthetic.scene import SceneFrame
from shared_components.data.synthetic.site_plan import layouts_for

MARK = "render.json"
SPLITS = ("train", "validation", "test")
PUBLISH = ("style", "model")  # a synthetic site is nobody's


@dataclass(frozen=True)
class Recipe:
    """All that a rendered site follows from; `clip` and `interval` as in `schedule`."""

    look: str
    seed: int
    layout: str
    height: int
    width: int
    frames_per_video: int
    videos: Mapping[str, int]
    task: str
    clip: int
    interval: float

    def plan(self) -> Schedule:
        """Which frames of its videos are rendered; ValueError where its clips cannot be."""
        labels = bool(TARGETS[self.task])
        return schedule(self.layout, clip=self.clip, interval=self.interval, labels=labels)


def video_seed(seed: int, number: int) -> int:
    """Return the seed of a site's video `number` (from 1)."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def write_site(
    out: Path,
    *,
    look: str,
    seed: int,
    videos: Mapping[str, int],
    frames_per_video: int,
    height: int = 256,
    width: int = 320,
    layout: str = "endovis2017",
    task: str = "segmentation",
    clip: int = 1,
    interval: float = 0.0,
) -> Path:
    """Render a site into `out` and return the path of its site.yaml.

    The folder appears whole or not at all: it is written beside `out` and renamed. A folder that an earlier
    call made is replaced.

    Args:
        videos: number of videos per split, e.g. {"train": 3, "validation": 1, "test": 1}.
        frames_per_video: with labels, if the task has any.
        layout: one of `plan.layouts_for(task)`.
        task: "segmentation", "depth", or "reconstruction", whose site has no label files.
        clip: write what clips of this many frames show before each labelled frame, too.
        interval: seconds between the frames of a clip.

    Raises:
        ValueError: on unknown looks, layouts, tasks or splits, clips that the layout cannot give, or a site
            without frames.
        FileExistsError: if `out` exists and was not made by this function.
    """
    out = Path(out)
    recipe = Recipe(look, seed, layout, height, width, frames_per_video, dict(videos), task, clip, interval)
    _check(recipe)
    _check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.parent / f".{out.name}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        names = _write_videos(part, recipe)
        _describe(part, recipe, names)
        facts = asdict(recipe) | {"videos": names}
        (part / MARK).write_text(json.dumps(facts, indent=2) + "\n")
        _replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / "site.yaml"


def remove_sites(out: Path, *, keep: Collection[str]) -> tuple[list[Path], list[Path]]:
    """Remove the sites `site-N` that an earlier rendering left in `out`, each at once.

    Args:
        keep: names of the folders that stay.

    Returns:
        The folders that were removed, and those that are not ours (no `render.json`) and were left alone.
    """
    others = [path for path in sorted(out.iterdir()) if re.fullmatch(r"site-\d+", path.name)]
    others = [path for path in others if path.name not in keep and path.is_dir()]
    ours = [path for path in others if (path / MARK).is_file() and not path.is_symlink()]
    for path in ours:
        old = path.with_name(f".{path.name}.old-{os.getpid()}")
        path.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    return ours, [path for path in others if path not in ours]


def _check(recipe: Recipe) -> None:
    look_named(recipe.look)
    if recipe.layout not in LAYOUTS:
        raise ValueError(f"layout {recipe.layout!r} is unknown; known layouts: {', '.join(LAYOUTS)}")
    if recipe.layout not in (fitting := layouts_for(recipe.task)):
        raise ValueError(f"layout {recipe.layout!r} cannot hold {recipe.task}; layouts for it: {', '.join(fitting)}")
    recipe.plan()
    _check_videos(recipe.videos, recipe.frames_per_video)


def _check_videos(videos: Mapping[str, int], frames: int) -> None:
    for split, count in videos.items():
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; a site's splits are {', '.join(SPLITS)}")
        if count < 0:
            raise ValueError(f"split {split!r} cannot have {count} videos")
    if sum(videos.values()) < 1 or frames < 1:
        raise ValueError(f"a site of {sum(videos.values())} videos with {frames} frames each would be empty")


def _check_free(out: Path) -> None:
    if out.is_dir() and ((out / MARK).is_file() or not any(out.iterdir())):
        return
    if out.exists() or out.is_symlink():
        raise FileExistsError(
            f"{out} exists and was not rendered by surgfl (it has no {MARK}); move it away or choose another folder"
        )


def _write_videos(part: Path, recipe: Recipe) -> dict[str, list[str]]:
    """Write every video; return the names of the videos per split."""
    style, number, written = LAYOUTS[recipe.layout], 0, 0
    plan = recipe.plan()
    names: dict[str, list[str]] = {}
    frames, size = recipe.frames_per_video, {"height": recipe.height, "width": recipe.width}
    (part / recipe.layout).mkdir(parents=True)
    for split in SPLITS:
        for _ in range(recipe.videos.get(split, 0)):
            number += 1
            video = style.video.format(number)
            scene = plan.render(recipe.look, video_seed(recipe.seed, number), frames=frames, **size)
            shots = plan.shots(scene, frames=frames, labels=bool(TARGETS[recipe.task]))
            rows = []
            for frame, stem in style.write(part / recipe.layout, video, shots):
                rows.append(_write_side(part / "side" / video, frame, stem))
                written += 1
                report_progress("rendering", written, frames * sum(recipe.videos.values()))
            _write_table(part / "side" / video / "frames.csv", rows)
            names.setdefault(split, []).append(video)
    return names


def _write_side(folder: Path, frame: SceneFrame, stem: str) -> dict[str, str | int]:
    """Write one frame's depth; return its row of frames.csv."""
    write_png(folder / "depth" / f"{stem}.png", depth_values(frame.depth))
    return {
        "frame": stem,
        "phase": frame.phase,
        "phase_name": PHASES[frame.phase],
        "tools": ";".join(frame.tools),
        "actions": ";".join("/".join(action) for action in frame.actions),
        "gesture": frame.gesture,
    }


def _write_table(path: Path, rows: list[dict[str, str | int]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def _describe(part: Path, recipe: Recipe, names: Mapping[str, list[str]]) -> None:
    facts: dict[str, Any] = {"dataset": recipe.layout, "root": recipe.layout, "split": dict(names)}
    if recipe.task != "segmentation":
        facts["task"] = recipe.task
    numbers = recipe.plan().numbers
    if numbers != LAYOUTS[recipe.layout].numbers:
        facts["rate"] = numbers
    if LAYOUTS[recipe.layout].stills:
        facts["history"] = False
    facts |= {"text": f"synthetic: {look_named(recipe.look).text}", "publish": list(PUBLISH)}
    (part / "site.yaml").write_text(yaml.safe_dump(facts, sort_keys=False))


def _replace(part: Path, out: Path) -> None:
    """Put `part` in the place of `out`."""
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    if out.exists():
        out.rename(old)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)
