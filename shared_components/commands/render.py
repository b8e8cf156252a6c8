"""`surgfl render`: write synthetic sites to train on."""

import argparse
from pathlib import Path

import numpy as np

from shared_components.data.synthetic.layouts import LAYOUTS
from shared_components.data.synthetic.looks import LOOKS, SITE_LOOKS, look_named
from shared_components.data.synthetic.preview import write_contact_sheet
from shared_components.data.synthetic.scene import SceneFrame, render_video
from shared_components.data.synthetic.site import SPLITS, video_seed, write_site

HELP = "render synthetic surgical sites in the layouts of public data sets"

_PREVIEW_FRAMES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, required=True, help="folder that gets site-1, site-2, ...")
    parser.add_argument("--sites", type=int, default=3, help="number of sites (default 3)")
    parser.add_argument(
        "--looks", default=",".join(SITE_LOOKS), help=f"looks to cycle through, of {', '.join(LOOKS)}"
    )
    parser.add_argument("--frames", type=int, default=20, help="frames per video (default 20)")
    parser.add_argument("--videos", default="4,1,1", help="videos for train,validation,test (default 4,1,1)")
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--layout", choices=("auto", *LAYOUTS), default="auto", help="auto cycles through all of them"
    )
    parser.add_argument(
        "--preview", type=Path, help="also write a contact sheet of all sites to this PNG file"
    )


def run(args: argparse.Namespace) -> int:
    """Write the sites; ValueError and OSError say what is wrong with the arguments or the folder."""
    videos = _videos(args.videos)
    sites = _plan(args)
    for folder, look, seed, layout in sites:
        path = write_site(
            folder,
            look=look,
            seed=seed,
            videos=videos,
            frames_per_video=args.frames,
            height=args.height,
            width=args.width,
            layout=layout,
        )
        print(f"{path}: look {look}, layout {layout}, {sum(videos.values())} videos of {args.frames} frames")
    if args.preview:
        write_contact_sheet(args.preview, _preview(args, sites))
        print(f"{args.preview}: contact sheet")
    return 0


def _videos(text: str) -> dict[str, int]:
    """Read "4,1,1" as videos per split."""
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if len(counts) != len(SPLITS):
        raise ValueError(f"--videos {text!r} must be three numbers train,validation,test, e.g. 4,1,1")
    return dict(zip(SPLITS, counts, strict=True))


def _plan(args: argparse.Namespace) -> list[tuple[Path, str, int, str]]:
    """Return (folder, look, seed, layout) of each site."""
    if args.sites < 1 or args.seed < 0:
        raise ValueError(f"--sites {args.sites} must be at least 1 and --seed {args.seed} not negative")
    looks = [look_named(name.strip()).name for name in args.looks.split(",")]
    layouts = list(LAYOUTS) if args.layout == "auto" else [args.layout]
    seeds = np.random.SeedSequence(args.seed).generate_state(args.sites)
    return [
        (args.out / f"site-{i + 1}", looks[i % len(looks)], int(seeds[i]), layouts[i % len(layouts)])
        for i in range(args.sites)
    ]


def _preview(
    args: argparse.Namespace, sites: list[tuple[Path, str, int, str]]
) -> dict[str, list[SceneFrame]]:
    """Render a few frames of each site's first video once more."""
    count = min(_PREVIEW_FRAMES, args.frames)
    chosen = {(2 * i + 1) * args.frames // (2 * count) for i in range(count)}
    rows = {}
    for folder, look, seed, layout in sites:
        video = render_video(
            look,
            video_seed(seed, 1),
            frames=args.frames,
            height=args.height,
            width=args.width,
            rate=LAYOUTS[layout].rate,
        )
        rows[f"{folder.name}: {look}, {layout}"] = [f for i, f in enumerate(video) if i in chosen]
    return rows
