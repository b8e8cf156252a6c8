"""`surgfl render`: write synthetic sites to train on."""

import argparse
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from shared_components.commands import parsed
from shared_components.common.counted import counted
from shared_components.common.progress import under
from shared_components.common.progress_display import Board, show_progress
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.layouts import LAYOUTS, TARGETS, Schedule
from shared_components.scenes.looks import LOOKS, SITE_LOOKS
from shared_components.scenes.site import (
    SPLITS,
    Row,
    SitePlan,
    plan_sites,
    planned,
    remove_sites,
    video_seed,
    write_contact_sheet,
    write_site,
)
from shared_components.scenes.site_sets import SETS, site_set, write_set_site

HELP = "render synthetic surgical sites in the layouts of public data sets"

_PREVIEW_FRAMES = 3
DRAWN = ", ".join(f"{family}-<number>" for family in FAMILIES)
OF_NO_SET = ("sites", "looks", "tasks", "clip", "interval", "videos", "dense", "layout", "preview")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="output folder for site-1, site-2, ...")
    parser.add_argument("--sites", type=int, default=3, help="number of sites; default: 3")
    parser.add_argument(
        "--looks", default=",".join(SITE_LOOKS), help=f"looks to cycle through: {', '.join(LOOKS)}, {DRAWN}"
    )
    parser.add_argument("--tasks", help=f"tasks to cycle through: {', '.join(TARGETS)}; default: the layout's task")
    parser.add_argument("--clip", type=int, default=1, help="frames per clip; earlier frames are written, too")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between frames of a clip")
    parser.add_argument("--frames", type=int, default=20, help="frames per video; default: 20")
    parser.add_argument("--videos", default="4,1,1", help="number of train,validation,test videos; default: 4,1,1")
    parser.add_argument("--height", type=int, default=256, help="frame height; default: %(default)s")
    parser.add_argument("--width", type=int, default=320, help="frame width; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="random seed; default: %(default)s")
    parser.add_argument("--dense", action="store_true", help="label every frame of a clip")
    parser.add_argument(
        "--layout",
        default="auto",
        help=f"layouts to cycle through: {', '.join(LAYOUTS)}; default: auto, the task's layouts",
    )
    parser.add_argument(
        "--set",
        default="",
        help=f"named set of sites: {', '.join(SETS)}; --frames then means "
        "frames of the smallest site of endo700k, or of a video of fedsurg",
    )
    parser.add_argument("--preview", type=Path, help="write a contact sheet of all sites to this PNG file")


def run(args: argparse.Namespace) -> int:
    """Write the sites; ValueError and OSError say what is wrong with the arguments or the folder."""
    if args.set:
        return _write_set(args)
    videos = _videos(args.videos)
    sites = plan_sites(
        args.out,
        sites=args.sites,
        seed=args.seed,
        looks=args.looks.split(","),
        layouts=args.layout.split(","),
        tasks=args.tasks.split(",") if args.tasks else (),
    )
    for site in sites:  # refuse before minutes of rendering
        _schedule(args, site)
    if args.preview and args.preview.suffix.lower() != ".png":
        raise ValueError(f"--preview {args.preview}: is written as PNG; give a name that ends in .png")
    with show_progress() as board:
        for site in sites:
            _write(args, site, videos, board)
        _remove_others(args.out, sites, board)
        if args.preview:
            write_contact_sheet(args.preview, _preview(args, sites))
            board.say(f"{args.preview}: contact sheet")
    return 0


def _write_set(args: argparse.Namespace) -> int:
    """Render a set of sites; those that an earlier call rendered stay."""
    usual = parsed(configure, ["--out", str(args.out)])
    if given := [name for name in OF_NO_SET if getattr(args, name) != getattr(usual, name)]:
        raise ValueError(f"--{given[0]} says nothing beside --set, whose sites have their own; leave one out")
    size = {"seed": args.seed, "height": args.height, "width": args.width}
    with show_progress() as board:
        for place, site in enumerate(site_set(args.set, frames=args.frames)):
            if (path := args.out / site.name / "site.yaml").is_file():
                board.say(f"{path}: is there already, and stays as it is")
                continue
            with under(site.name):
                write_set_site(args.out, args.set, place, frames=args.frames, **size)
            count = sum(site.videos.values())
            board.say(
                f"{path}: look {site.look}, {site.task}, {counted(count, 'video')} of "
                f"{counted(site.frames_per_video, 'frame')}"
            )
    return 0


def _write(args: argparse.Namespace, site: SitePlan, videos: Mapping[str, int], board: Board) -> None:
    """Render one site."""
    with under(site.folder.name):
        path = write_site(
            site.folder,
            look=site.look,
            seed=site.seed,
            videos=videos,
            frames_per_video=args.frames,
            height=args.height,
            width=args.width,
            layout=site.layout,
            task=site.task,
            clip=args.clip,
            interval=args.interval,
            dense=args.dense,
        )
    facts = f"{counted(sum(videos.values()), 'video')} of {counted(args.frames, 'frame')}"
    board.say(f"{path}: look {site.look}, layout {site.layout}, {site.task}, {facts}")


def _schedule(args: argparse.Namespace, site: SitePlan) -> Schedule:
    return planned(site.layout, site.task, args.clip, args.interval, args.dense)


def _videos(text: str) -> dict[str, int]:
    """Read "4,1,1" as videos per split."""
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if len(counts) != len(SPLITS):
        raise ValueError(f"--videos {text!r} must be three numbers train,validation,test, e.g. 4,1,1")
    return dict(zip(SPLITS, counts, strict=True))


def _remove_others(out: Path, sites: list[SitePlan], board: Board) -> None:
    """Take away what an earlier, larger rendering left, which would take part as a site of its own."""
    removed, foreign = remove_sites(out, keep=[site.folder.name for site in sites])
    for path in removed:
        board.say(f"{path}: removed, an earlier rendering's")
    for path in foreign:
        board.say(f"{path}: left in place, it was not rendered by surgfl")


def _preview(args: argparse.Namespace, sites: list[SitePlan]) -> dict[str, Row]:
    """Render a few frames of each site's first video once more."""
    count = min(_PREVIEW_FRAMES, args.frames)
    chosen = {(2 * i + 1) * args.frames // (2 * count) for i in range(count)}
    size = {"frames": args.frames, "height": args.height, "width": args.width}
    rows: dict[str, Row] = {}
    for site in sites:
        plan = _schedule(args, site)
        video = plan.render(site.look, video_seed(site.seed, 1), **size)
        listed = islice(video, 0, None, plan.every)
        title = f"{site.folder.name}: {site.look}, {site.layout}, {site.task}"
        rows[title] = site.task, site.layout, [frame for i, frame in enumerate(listed) if i in chosen]
    return rows
