"""Plan and write synthetic sites: videos in a public layout, side files, their site.yaml; contact sheets.

OUT/site.yaml                     settings for the readers
OUT/<layout>/...                  the data set, with the public data set's files
OUT/side/<video>/frames.csv       frame, phase, tools, actions and gesture of each frame
OUT/side/<video>/depth/<stem>.png uint16, mm * 256, 0 = unknown (as scared_toolkit writes SCARED)
OUT/render.json                   settings of the rendering; marks the folder as ours
"""

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

from shared_components.common.drawing import pictures
from shared_components.common.drawing.palette import DEPTH, class_entries
from shared_components.common.progress import report_progress
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.files.triplets import NAMES
from shared_components.data.readers import find_reader, reader_names
from shared_components.data.site import RENDERED, SPLITS
from shared_components.scenes.layouts import LAYOUTS, TARGETS, Schedule, schedule
from shared_components.scenes.looks import SITE_LOOKS, look_named
from shared_components.scenes.motion import PHASES
from shared_components.scenes.operations import OPERATIONS, Operation
from shared_components.scenes.scene import SceneFrame
from shared_components.scenes.writers import depth_of, write_image

PUBLISH = ("style", "text_vector", "model")
"""Items that every synthetic site publishes."""
DEPTH_RANGE = (25.0, 100.0)
"""Ends of a contact sheet's depth scale in mm; all scenes lie between them."""


@dataclass(frozen=True)
class SitePlan:
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

    Without tasks, a site gets its layout's task, or segmentation. A layout `auto` cycles through the layouts of the
    site's task, without the layouts that are used only by name. ValueError if a look, task or layout is unknown, a
    layout does not fit its task, there is no site, or the seed is negative.
    """
    if sites < 1 or seed < 0:
        raise ValueError(f"{sites} sites must be at least 1 and seed {seed} not negative")
    names = [look_named(name.strip()).name for name in looks]
    seeds = np.random.SeedSequence(seed).generate_state(sites)
    plans = []
    for i in range(sites):
        layout = layouts[i % len(layouts)].strip()
        task = tasks[i % len(tasks)].strip() if tasks else task_of(layout)
        turns = [name for name in layouts_for(task) if not LAYOUTS[name].asked]
        layout = turns[i % len(turns)] if layout == "auto" and turns else layout
        _check_layout(layout, task)
        plans.append(SitePlan(out / f"site-{i + 1}", names[i % len(names)], int(seeds[i]), layout, task))
    return plans


def task_of(layout: str) -> str:
    """Return the default task of a layout's sites; `auto` and unknown layouts have the first task."""
    targets = (LAYOUTS[layout].target,) if layout in LAYOUTS else None
    return next((task for task in TARGETS if TARGETS[task] == targets), next(iter(TARGETS)))


def layouts_for(task: str) -> list[str]:
    """List the layouts for a task; ValueError if it is unknown."""
    if task not in TARGETS:
        raise ValueError(f"task {task!r} is unknown; sites are rendered for {', '.join(TARGETS)}")
    return [name for name, style in LAYOUTS.items() if set(TARGETS[task]) <= set(style.targets)]


def _check_layout(layout: str, task: str) -> None:
    if layout not in LAYOUTS and layout != "auto":
        raise ValueError(f"layout {layout!r} is unknown; known layouts: {', '.join(LAYOUTS)}")
    if layout not in (fitting := layouts_for(task)):
        raise ValueError(f"layout {layout!r} has no labels for {task}; layouts that have: {', '.join(fitting)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    look: str
    seed: int
    layout: str = "endovis2017"  # one of `layouts_for(task)`
    height: int = 256
    width: int = 320
    frames_per_video: int  # frames with labels, if the task has labels
    videos: Mapping[str, int]  # number of videos per split: {"train": 3, "validation": 1, "test": 1}
    task: str = "segmentation"  # key of `layouts.TARGETS`; a site of "reconstruction" has no label files
    clip: int = 1  # frames per clip; the frames before each labelled frame are written, too
    interval: float = 0.0  # seconds between the frames of a clip
    dense: bool = False  # whether every frame of a clip has labels

    def plan(self) -> Schedule:
        """Choose the frames of the videos; ValueError if the layout cannot have the clips."""
        return planned(self.layout, self.task, self.clip, self.interval, self.dense)

    @property
    def operation(self) -> Operation | None:
        """Operation of the layout or else of the look, if any."""
        return OPERATIONS.get(LAYOUTS[self.layout].operation or look_named(self.look).operation)


def planned(layout: str, task: str, clip: int, interval: float, dense: bool) -> Schedule:
    """Plan a site's videos; without labels every image is a sample, so they are dense."""
    return schedule(layout, clip=clip, interval=interval, dense=dense or not TARGETS[task])


def video_seed(seed: int, number: int) -> int:
    """Return the seed of a site's video `number` (from 1)."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def video_grade(seed: int, number: int, grades: int) -> int:
    """Return the grade of a site's video `number` (from 1); each run of `grades` videos has every grade once."""
    if not grades:
        return 0
    turn, place = divmod(number - 1, grades)
    return int(np.random.default_rng((seed, turn)).permutation(grades)[place])


def write_site(out: Path, **options: Any) -> Path:
    """Render a site by the fields of a `Recipe` into the folder `out`, and return the path of its site.yaml.

    The site is written beside `out` and then renamed, so `out` is complete or absent. An earlier rendering is replaced;
    FileExistsError if `out` is something else. ValueError if a look, layout, task or split is unknown, the layout
    cannot have the clips, or the site has no frames.
    """
    out, recipe = Path(out), Recipe(**options)
    _check(recipe)
    if not (out.is_dir() and ((out / RENDERED).is_file() or not any(out.iterdir()))) and os.path.lexists(out):
        what = f"{out} exists and was not rendered by surgfl (it has no {RENDERED})"
        raise FileExistsError(f"{what}; move it away or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.parent / f".{out.name}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        names = _write_videos(part, recipe)
        _write_site_file(part, recipe, names)
        (part / RENDERED).write_text(json.dumps(asdict(recipe) | {"videos": names}, indent=2) + "\n", "utf-8")
        old = out.parent / f".{out.name}.old-{os.getpid()}"
        if out.exists():
            out.rename(old)
        part.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / "site.yaml"


def remove_sites(out: Path, *, keep: Collection[str]) -> tuple[list[Path], list[Path]]:
    """Remove the sites `site-N` of an earlier rendering in `out`, except the names in `keep`.

    Return the removed folders, and foreign folders (without `render.json`), which stay.
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
    _check_layout(recipe.layout, recipe.task)
    recipe.plan()
    for split, count in recipe.videos.items():
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; a site's splits are {', '.join(SPLITS)}")
        if count < 0:
            raise ValueError(f"split {split!r} cannot have {count} videos")
    videos, frames = sum(recipe.videos.values()), recipe.frames_per_video
    if videos < 1 or frames < 1:
        raise ValueError(f"a site of {videos} videos with {frames} frames each would be empty")


def _write_videos(part: Path, recipe: Recipe) -> dict[str, list[str]]:
    """Write every video, and return the names of the videos by split."""
    style, plan, operation, frames = LAYOUTS[recipe.layout], recipe.plan(), recipe.operation, recipe.frames_per_video
    phases, grades = (operation.phases, operation.grades) if operation else (PHASES, ())
    names: dict[str, list[str]] = {}
    size = {"height": recipe.height, "width": recipe.width}
    (part / recipe.layout).mkdir(parents=True)
    splits = [split for split in SPLITS for _ in range(recipe.videos.get(split, 0))]
    for number, split in enumerate(splits, start=1):
        video, rows = style.video.format(number), []
        grade = video_grade(recipe.seed, number, len(grades))
        scene = plan.render(recipe.look, video_seed(recipe.seed, number), frames=frames, grade=grade, **size)
        shots = plan.shots(scene, frames=frames, labels=bool(TARGETS[recipe.task]))
        for frame, stem in style.write(part / recipe.layout, video, shots):
            write_image(part / "side" / video / "depth" / f"{stem}.png", depth_of(frame))
            actions = ";".join("/".join(action) for action in frame.actions)
            rows.append((stem, frame.phase, phases[frame.phase], ";".join(frame.tools), actions, frame.gesture))
            report_progress("rendering", frames * (number - 1) + len(rows), frames * len(splits))
        with (part / "side" / video / "frames.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("frame", "phase", "phase_name", "tools", "actions", "gesture"), *rows])
        names.setdefault(split, []).append(video)
    return names


def _write_site_file(part: Path, recipe: Recipe, names: Mapping[str, list[str]]) -> None:
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


Array = np.ndarray
Row = tuple[str, str, Sequence[SceneFrame]]
"""Task, layout and frames of a site."""


def tile(frame: SceneFrame, task: str, layout: str = "endovis2017") -> Array:
    """Draw a frame's labels for a contact sheet, by the site's task."""
    if task == "segmentation":
        return pictures.overlay(frame.image, LAYOUTS[layout].ids(frame))
    if task == "depth":
        return pictures.coloured(frame.depth, frame.depth > 0, DEPTH_RANGE, DEPTH)
    drawn = np.full_like(frame.image, 255)
    lines = {
        "triplets": lambda: [NAMES[number].replace("/", " ").replace("_", " ") for number in frame.triplets],
        "phases": lambda: [OPERATIONS[LAYOUTS[layout].operation].phases[frame.phase]],
        "classification": lambda: [OPERATIONS[LAYOUTS[layout].operation].grades[frame.grade]],
    }.get(task, list)
    for number, text in enumerate(lines()):
        pictures.write(drawn, text, 4, above=drawn.shape[0] - 16 * (number + 1), large=min(0.7, drawn.shape[1] / 320))
    return drawn


def write_contact_sheet(path: Path, sites: Mapping[str, Row]) -> None:
    """Write a PNG with a row per site, each frame followed by its labels, depth or nothing, and legends below.

    `sites` maps a row's title to task, layout and frames. All frames have one size, and all sites as many frames.
    """
    rows = []
    for title, (task, layout, frames) in sites.items():
        shown = [picture for frame in frames for picture in (frame.image, tile(frame, task, layout))]
        rows.append(pictures.captioned(pictures.side_by_side(shown), title))
    width, tasks = rows[0].shape[1], {task for task, _, _ in sites.values()}
    classes = dict.fromkeys(_classes_of(layout) for task, layout, _ in sites.values() if task == "segmentation")
    rows += [pictures.legend(class_entries(names), width=width) for names in classes]
    if "depth" in tasks:
        rows.append(pictures.scale_bar(DEPTH_RANGE, DEPTH, width))
    write_image(Path(path), np.vstack(rows))


def _classes_of(layout: str) -> tuple[str, ...]:
    """Return the names of a layout's classes, background first."""
    style = LAYOUTS[layout]
    reader = find_reader(style.dataset or layout)
    return CLASS_MAPS[style.classes or reader.USUAL or reader.CLASS_MAP]
