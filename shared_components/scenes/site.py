"""Plan and write synthetic sites: videos in a public layout, side files, their site.yaml; contact sheets of several.

OUT/site.yaml                     what the readers need
OUT/<layout>/...                  the data set, exactly as the public one lies on disk
OUT/side/<video>/frames.csv       frame, phase, tools, actions and gesture of each frame
OUT/side/<video>/depth/<stem>.png uint16, mm * 256, 0 = unknown (as scared_toolkit writes SCARED)
OUT/render.json                   how it was made; marks the folder as ours
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shared_components.common.drawing.palette import DEPTH, class_entries
from shared_components.common.drawing.pictures import (
    captioned,
    coloured,
    legend,
    overlay,
    scale_bar,
    side_by_side,
    write,
)
from shared_components.common.progress import report_progress
from shared_components.data.classes import CLASS_MAPS
from shared_components.data.files import depth_values
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.site import RENDERED
from shared_components.data.triplets import NAMES
from shared_components.scenes.layouts import LAYOUTS, TARGETS, Schedule, schedule
from shared_components.scenes.looks import SITE_LOOKS, look_named
from shared_components.scenes.motion import PHASES
from shared_components.scenes.operations import OPERATIONS
from shared_components.scenes.scene import SceneFrame
from shared_components.scenes.shots import write_png


@dataclass(frozen=True)
class SitePlan:
    """One site to render."""

    folder: Path
    look: str
    seed: int
    layout: str
    task: str = "segmentation"


def plan_sites(
    out: Path,
    *,
    sites: int,
    seed: int = 0,
    looks: Sequence[str] = SITE_LOOKS,
    layouts: Sequence[str] = ("auto",),
    tasks: Sequence[str] = (),
) -> list[SitePlan]:
    """Plan `site-1`, `site-2`, ... below `out`, cycling through looks, tasks and layouts.

    Without tasks a site has that of its layout, or segmentation. A layout `auto` cycles through those of the site's
    task; layouts whose sites do not fit the others, in their classes or for want of videos, have no turn in it.

    Raises:
        ValueError: an unknown look, task or layout, a layout that cannot hold a task, no site, or a negative seed.
    """
    if sites < 1 or seed < 0:
        raise ValueError(f"{sites} sites must be at least 1 and seed {seed} not negative")
    names = [look_named(name.strip()).name for name in looks]
    seeds = np.random.SeedSequence(seed).generate_state(sites)
    plans = []
    for i in range(sites):
        asked = layouts[i % len(layouts)].strip()
        task = tasks[i % len(tasks)].strip() if tasks else task_of(asked)
        own = _turn(task, i) if asked == "auto" else asked
        _refuse_unfit(own, task)
        plans.append(SitePlan(out / f"site-{i + 1}", names[i % len(names)], int(seeds[i]), own, task))
    return plans


def task_of(layout: str) -> str:
    """Return what a site of a layout learns where nobody says it; `auto` and unknown ones have the first task."""
    wanted = (LAYOUTS[layout].target,) if layout in LAYOUTS else None
    return next((task for task, targets in TARGETS.items() if targets == wanted), next(iter(TARGETS)))


def _turn(task: str, place: int) -> str:
    turns = [name for name in layouts_for(task) if not LAYOUTS[name].asked]
    return turns[place % len(turns)]


def _refuse_unfit(layout: str, task: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is unknown; known layouts: {', '.join(LAYOUTS)}")
    if layout not in (fitting := layouts_for(task)):
        raise ValueError(f"layout {layout!r} cannot hold {task}; layouts for it: {', '.join(fitting)}")


def layouts_for(task: str) -> list[str]:
    """List the layouts that can hold a task's sites.

    Raises:
        ValueError: the task is unknown.
    """
    if task not in TARGETS:
        raise ValueError(f"task {task!r} is unknown; sites are rendered for {', '.join(TARGETS)}")
    return [name for name, style in LAYOUTS.items() if set(TARGETS[task]) <= set(style.targets)]


SPLITS = ("train", "validation", "test")
PUBLISH = ("style", "text_vector", "model")  # a synthetic site is nobody's


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a rendered site depends on.

    Attributes:
        layout: One of `layouts_for(task)`.
        frames_per_video: With labels, if the task has any.
        videos: Number of videos per split, e.g. {"train": 3, "validation": 1, "test": 1}.
        task: One of `layouts.TARGETS`; a site of "reconstruction" has no label files.
        clip: Number of frames of a clip; the frames before each labelled frame are written, too.
        interval: Seconds between the frames of a clip.
        dense: Whether every frame of a clip has labels.
    """

    look: str
    seed: int
    layout: str = "endovis2017"
    height: int = 256
    width: int = 320
    frames_per_video: int
    videos: Mapping[str, int]
    task: str = "segmentation"
    clip: int = 1
    interval: float = 0.0
    dense: bool = False

    def plan(self) -> Schedule:
        """Which frames of its videos are rendered; ValueError where its clips cannot be."""
        return planned(self.layout, self.task, self.clip, self.interval, self.dense)


def planned(layout: str, task: str, clip: int, interval: float, dense: bool) -> Schedule:
    """Plan a site's videos; without labels every image is a sample, and so they are dense."""
    return schedule(layout, clip=clip, interval=interval, dense=dense or not TARGETS[task])


def video_seed(seed: int, number: int) -> int:
    """Return the seed of a site's video `number` (from 1)."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def video_grade(seed: int, number: int, grades: int) -> int:
    """Return the grade of a site's video `number` (from 1): every `grades` videos in a row have each of them once."""
    if not grades:
        return 0
    turn, place = divmod(number - 1, grades)
    return int(np.random.default_rng((seed, turn)).permutation(grades)[place])


def write_site(out: Path, **options: Any) -> Path:
    """Render a site into `out` and return the path of its site.yaml.

    The folder appears whole or not at all: it is written beside `out` and renamed. A folder that an earlier
    call made is replaced.

    Args:
        options: The fields of a `Recipe`.

    Raises:
        ValueError: on unknown looks, layouts, tasks or splits, clips that the layout cannot give, or a site
            without frames.
        FileExistsError: if `out` exists and was not made by this function.
    """
    out = Path(out)
    recipe = Recipe(**options)
    _check(recipe)
    _check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.parent / f".{out.name}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        names = _write_videos(part, recipe)
        _describe(part, recipe, names)
        facts = asdict(recipe) | {"videos": names}
        (part / RENDERED).write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
        _replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / "site.yaml"


def remove_sites(out: Path, *, keep: Collection[str]) -> tuple[list[Path], list[Path]]:
    """Remove the sites `site-N` that an earlier rendering left in `out`, each at once.

    Folders named in `keep` stay. Returns the folders that were removed, and those that are not ours (no
    `render.json`) and were left alone.
    """
    others = [path for path in sorted(out.iterdir()) if re.fullmatch(r"site-\d+", path.name)]
    others = [path for path in others if path.name not in keep and path.is_dir()]
    ours = [path for path in others if (path / RENDERED).is_file() and not path.is_symlink()]
    for path in ours:
        old = path.with_name(f".{path.name}.old-{os.getpid()}")
        path.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    return ours, [path for path in others if path not in ours]


def _check(recipe: Recipe) -> None:
    look_named(recipe.look)
    _refuse_unfit(recipe.layout, recipe.task)
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
    if out.is_dir() and ((out / RENDERED).is_file() or not any(out.iterdir())):
        return
    if out.exists() or out.is_symlink():
        raise FileExistsError(
            f"{out} exists and was not rendered by surgfl (it has no {RENDERED}); move it away or choose another folder"
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
            grade = video_grade(recipe.seed, number, len(_grades(recipe.layout)))
            scene = plan.render(recipe.look, video_seed(recipe.seed, number), frames=frames, grade=grade, **size)
            shots = plan.shots(scene, frames=frames, labels=bool(TARGETS[recipe.task]))
            rows = []
            for frame, stem in style.write(part / recipe.layout, video, shots):
                rows.append(_write_side(part / "side" / video, frame, stem, _phases(recipe.layout, recipe.look)))
                written += 1
                report_progress("rendering", written, frames * sum(recipe.videos.values()))
            _write_table(part / "side" / video / "frames.csv", rows)
            names.setdefault(split, []).append(video)
    return names


def _phases(layout: str, look: str = "") -> Sequence[str]:
    """Return the names of the phases of a site's videos, by its layout or else its look."""
    operation = LAYOUTS[layout].operation or (look_named(look).operation if look else "")
    return OPERATIONS[operation].phases if operation else PHASES


def _grades(layout: str) -> Sequence[str]:
    operation = LAYOUTS[layout].operation
    return OPERATIONS[operation].grades if operation else ()


def _write_side(folder: Path, frame: SceneFrame, stem: str, phases: Sequence[str]) -> dict[str, str | int]:
    """Write one frame's depth; return its row of frames.csv."""
    write_png(folder / "depth" / f"{stem}.png", depth_values(frame.depth))
    return {
        "frame": stem,
        "phase": frame.phase,
        "phase_name": phases[frame.phase],
        "tools": ";".join(frame.tools),
        "actions": ";".join("/".join(action) for action in frame.actions),
        "gesture": frame.gesture,
    }


def _write_table(path: Path, rows: list[dict[str, str | int]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def _describe(part: Path, recipe: Recipe, names: Mapping[str, list[str]]) -> None:
    style, numbers = LAYOUTS[recipe.layout], recipe.plan().numbers
    dataset = style.dataset or recipe.layout
    facts: dict[str, Any] = {"dataset": dataset, "root": recipe.layout, "split": dict(names)}
    if recipe.task != "segmentation":
        facts["task"] = recipe.task
    elif style.classes:
        facts["classes"] = style.classes
    if style.stills:
        facts["history"] = False
    elif dataset not in reader_names() or numbers != find_reader(dataset).RATE:
        facts["rate"] = numbers
    facts |= {"text": f"synthetic: {look_named(recipe.look).text}", "publish": list(PUBLISH)}
    (part / "site.yaml").write_text(yaml.safe_dump(facts, sort_keys=False), "utf-8")


def _replace(part: Path, out: Path) -> None:
    """Put `part` in the place of `out`."""
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    if out.exists():
        out.rename(old)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)


Array = np.ndarray

DEPTH_RANGE = (25.0, 100.0)
"""mm shown as the nearest and as the farthest; the scenes lie within."""


def tile(frame: SceneFrame, task: str, layout: str = "endovis2017") -> Array:
    """Return what stands beside a frame's image: what a site of this task may learn about it."""
    if task == "segmentation":
        return overlay(frame.image, LAYOUTS[layout].ids(frame))
    if task == "depth":
        return coloured(frame.depth, frame.depth > 0, DEPTH_RANGE, DEPTH)
    drawn = np.full_like(frame.image, 255)
    for number, text in enumerate(_labels(frame, task, layout)):
        write(drawn, text, 4, above=drawn.shape[0] - 16 * (number + 1), large=min(0.7, drawn.shape[1] / 320))
    return drawn


def _labels(frame: SceneFrame, task: str, layout: str) -> list[str]:
    """Return the labels of a frame or its video as lines."""
    if task == "triplets":
        return [NAMES[number].replace("/", " ").replace("_", " ") for number in frame.triplets]
    found = {"phases": (_phases(layout), frame.phase), "classification": (_grades(layout), frame.grade)}
    return [found[task][0][found[task][1]]] if task in found else []


Row = tuple[str, str, Sequence[SceneFrame]]
"""A site's task, its layout, and frames."""


def contact_sheet(sites: Mapping[str, Row]) -> Array:
    """Return one RGB picture: a row per site, each frame followed by its labels, depth, or nothing; then legends.

    ``sites`` maps a row's title to task, layout and frames, all of one size and equally many per site.
    """
    rows = [
        captioned(side_by_side([picture for f in frames for picture in (f.image, tile(f, task, layout))]), title)
        for title, (task, layout, frames) in sites.items()
    ]
    width, tasks = rows[0].shape[1], {task for task, _, _ in sites.values()}
    labelled = [layout for task, layout, _ in sites.values() if task == "segmentation"]
    rows += [legend(class_entries(classes), width=width) for classes in dict.fromkeys(map(_classes_of, labelled))]
    if "depth" in tasks:
        rows.append(scale_bar(DEPTH_RANGE, DEPTH, width))
    return np.vstack(rows)


def _classes_of(layout: str) -> tuple[str, ...]:
    """Return the names of a layout's classes, background first."""
    style = LAYOUTS[layout]
    reader = find_reader(style.dataset or layout)
    return CLASS_MAPS[style.classes or reader.USUAL or reader.CLASS_MAP]


def write_contact_sheet(path: Path, sites: Mapping[str, Row]) -> None:
    """Write the contact sheet of `sites` as a PNG."""
    write_png(Path(path), contact_sheet(sites))
