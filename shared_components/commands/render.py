"""`surgfl render`: write synthetic sites to train on."""

import argparse
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from shared_components.commands import parsed
from shared_components.common.counted import counted
from shared_components.common.progress import under
from shared_components.common.progress_display import Board, show_progress
from shared_components.scenes import site as rendering
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.layouts import LAYOUTS, TARGETS, Schedule
from shared_components.scenes.looks import LOOKS, SITE_LOOKS
from shared_components.scenes.site_sets import SETS, site_set, write_set_site

HELP = "render synthetic surgical sites in the layouts of public data sets"

_PREVIEW_FRAMES = 3
_NOT_FOR_SETS = ("sites", "looks", "tasks", "clip", "interval", "videos", "dense", "layout", "preview")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="output folder for site-1, site-2, ...")
    add("--sites", type=int, default=3, help="number of sites; default: 3")
    looks = f"looks to cycle through: {', '.join([*LOOKS, *(f'{family}-<number>' for family in FAMILIES)])}"
    add("--looks", default=",".join(SITE_LOOKS), help=looks)
    add("--tasks", help=f"tasks to cycle through: {', '.join(TARGETS)}; default: the layout's task")
    add("--clip", type=int, default=1, help="frames per clip; earlier frames are written, too")
    add("--interval", type=float, default=0.0, help="seconds between frames of a clip")
    add("--frames", type=int, default=20, help="frames per video; default: 20")
    add("--videos", default="4,1,1", help="number of train,validation,test videos; default: 4,1,1")
    add("--height", type=int, default=256, help="frame height; default: %(default)s")
    add("--width", type=int, default=320, help="frame width; default: %(default)s")
    add("--seed", type=int, default=0, help="random seed; default: %(default)s")
    add("--dense", action="store_true", help="label every frame of a clip")
    add("--layout", default="auto", help=f"layouts to cycle through: {', '.join(LAYOUTS)}; default: the task's (auto)")
    sets = (
        f"named set of sites: {', '.join(SETS)}; --frames then means frames of the smallest site of endo700k, or of a "
        "video of fedsurg"
    )
    add("--set", default="", help=sets)
    add("--preview", type=Path, help="write a contact sheet of all sites to this PNG file")


def run(args: argparse.Namespace) -> int:
    """Write the sites; ValueError or OSError if an argument or the folder is wrong."""
    if args.set:
        return _write_set(args)
    videos = _videos(args.videos)
    sites = rendering.plan_sites(
        args.out, sites=args.sites, seed=args.seed, looks=args.looks.split(","), layouts=args.layout.split(","),
        tasks=args.tasks.split(",") if args.tasks else (),
    )  # fmt: skip
    for site in sites:  # refuse before minutes of rendering
        _schedule(args, site)
    if args.preview and args.preview.suffix.lower() != ".png":
        raise ValueError(f"--preview {args.preview}: is written as PNG; give a name that ends in .png")
    with show_progress() as board:
        for site in sites:
            _write(args, site, videos, board)
        removed, foreign = rendering.remove_sites(args.out, keep=[site.folder.name for site in sites])
        for path in removed:  # they would take part as sites
            board.say(f"{path}: removed, an earlier rendering's")
        for path in foreign:
            board.say(f"{path}: left in place, it was not rendered by surgfl")
        if args.preview:
            rendering.write_contact_sheet(args.preview, _preview(args, sites))
            board.say(f"{args.preview}: contact sheet")
    return 0


def _write_set(args: argparse.Namespace) -> int:
    defaults = parsed(configure, ["--out", str(args.out)])
    if given := [name for name in _NOT_FOR_SETS if getattr(args, name) != getattr(defaults, name)]:
        raise ValueError(f"--{given[0]} does not apply to --set, whose sites have their own; leave one out")
    with show_progress() as board:
        for place, site in enumerate(site_set(args.set, frames=args.frames)):
            if (path := args.out / site.name / "site.yaml").is_file():
                board.say(f"{path}: is there already, and stays as it is")
                continue
            size = {"frames": args.frames, "seed": args.seed, "height": args.height, "width": args.width}
            with under(site.name):
                write_set_site(args.out, args.set, place, **size)
            board.say(f"{path}: look {site.look}, {site.task}, {_size(site.videos, site.frames_per_video)}")
    return 0


def _size(videos: Mapping[str, int], frames: int) -> str:
    return f"{counted(sum(videos.values()), 'video')} of {counted(frames, 'frame')}"


def _write(args: argparse.Namespace, site: rendering.SitePlan, videos: Mapping[str, int], board: Board) -> None:
    with under(site.folder.name):
        path = rendering.write_site(
            site.folder, look=site.look, seed=site.seed, videos=videos, frames_per_video=args.frames,
            height=args.height, width=args.width, layout=site.layout, task=site.task, clip=args.clip,
            interval=args.interval, dense=args.dense,
        )  # fmt: skip
    board.say(f"{path}: look {site.look}, layout {site.layout}, {site.task}, {_size(videos, args.frames)}")


def _schedule(args: argparse.Namespace, site: rendering.SitePlan) -> Schedule:
    return rendering.planned(site.layout, site.task, args.clip, args.interval, args.dense)


def _videos(text: str) -> dict[str, int]:
    try:
        return dict(zip(rendering.SPLITS, map(int, text.split(",")), strict=True))
    except ValueError:
        raise ValueError(f"--videos {text!r} must be three numbers train,validation,test, e.g. 4,1,1") from None


def _preview(args: argparse.Namespace, sites: list[rendering.SitePlan]) -> dict[str, rendering.Row]:
    """Render some frames of each site's first video again."""
    count = min(_PREVIEW_FRAMES, args.frames)
    chosen = {(2 * i + 1) * args.frames // (2 * count) for i in range(count)}
    rows: dict[str, rendering.Row] = {}
    for site in sites:
        plan = _schedule(args, site)
        seed = rendering.video_seed(site.seed, 1)
        video = plan.render(site.look, seed, frames=args.frames, height=args.height, width=args.width)
        labelled = islice(video, 0, None, plan.every)
        title = f"{site.folder.name}: {site.look}, {site.layout}, {site.task}"
        rows[title] = site.task, site.layout, [frame for i, frame in enumerate(labelled) if i in chosen]
    return rows
