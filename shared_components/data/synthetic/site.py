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
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from shared_components.data.synthetic.layouts import LAYOUTS, write_png
from shared_components.data.synthetic.looks import look_named
from shared_components.data.synthetic.motion import PHASES
from shared_components.data.synthetic.scene import SceneFrame, render_video

MARK = "render.json"
SPLITS = ("train", "validation", "test")
DEPTH_SCALE = 256.0


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
) -> Path:
    """Render a site into `out` and return the path of its site.yaml.

    The folder appears whole or not at all: it is written beside `out` and renamed. A folder that an earlier
    call made is replaced.

    Args:
        videos: number of videos per split, e.g. {"train": 3, "validation": 1, "test": 1}.
        layout: one of `layouts.LAYOUTS`.

    Raises:
        ValueError: on unknown looks, layouts or splits, or a site without frames.
        FileExistsError: if `out` exists and was not made by this function.
    """
    out = Path(out)
    _check(look, videos, frames_per_video, layout)
    _check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.parent / f".{out.name}.part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        names = _write_videos(part, look, seed, videos, frames_per_video, height, width, layout)
        _describe(part, look, layout, names)
        facts = {"look": look, "seed": seed, "layout": layout, "height": height, "width": width}
        facts |= {"frames_per_video": frames_per_video, "videos": names}
        (part / MARK).write_text(json.dumps(facts, indent=2) + "\n")
        _replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out / "site.yaml"


def _check(look: str, videos: Mapping[str, int], frames: int, layout: str) -> None:
    look_named(look)
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is unknown; known layouts: {', '.join(LAYOUTS)}")
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
            f"{out} exists and was not rendered by surgfl (it has no {MARK}); "
            "move it away or choose another folder"
        )


def _write_videos(
    part: Path,
    look: str,
    seed: int,
    videos: Mapping[str, int],
    frames: int,
    height: int,
    width: int,
    layout: str,
) -> dict[str, list[str]]:
    """Write every video; return the names of the videos per split."""
    style, number = LAYOUTS[layout], 0
    names: dict[str, list[str]] = {}
    (part / layout).mkdir(parents=True)
    for split in SPLITS:
        for _ in range(videos.get(split, 0)):
            number += 1
            video = style.video.format(number)
            scene = render_video(
                look, video_seed(seed, number), frames=frames, height=height, width=width, rate=style.rate
            )
            rows = [
                _write_side(part / "side" / video, frame, stem)
                for frame, stem in style.write(part / layout, video, scene)
            ]
            _write_table(part / "side" / video / "frames.csv", rows)
            names.setdefault(split, []).append(video)
    return names


def _write_side(folder: Path, frame: SceneFrame, stem: str) -> dict[str, str | int]:
    """Write one frame's depth; return its row of frames.csv."""
    depth = np.round(np.clip(frame.depth * DEPTH_SCALE, 0, 65535)).astype(np.uint16)
    write_png(folder / "depth" / f"{stem}.png", depth)
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


def _describe(part: Path, look: str, layout: str, names: Mapping[str, list[str]]) -> None:
    facts = {
        "dataset": layout,
        "root": layout,
        "split": dict(names),
        "text": f"synthetic: {look_named(look).text}",
    }
    (part / "site.yaml").write_text(yaml.safe_dump(facts, sort_keys=False))


def _replace(part: Path, out: Path) -> None:
    """Put `part` in the place of `out`."""
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    if out.exists():
        out.rename(old)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)
