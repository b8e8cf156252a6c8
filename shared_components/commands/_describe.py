"""Describe a folder by a site.yaml: its options, its questions, and the inventory of the folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from shared_components.commands._own_data import describe_own, own_layout
from shared_components.commands._talk import Talk, whole_from_1, yes_or_no
from shared_components.data.custom.description import describe as read_description
from shared_components.data.custom.guess_layout import known_layout
from shared_components.data.custom.ids import IGNORE
from shared_components.data.custom.propose_split import Split, propose_split
from shared_components.data.custom.scan import scan
from shared_components.data.custom.stock import labelled_frames, own_stock, public_stock
from shared_components.data.custom.survey import own_videos
from shared_components.data.inventory import OPTION, Inventory
from shared_components.data.site import PUBLISHABLE, SPLITS, SiteError, Source, source_names
from shared_components.data.site_file import write_site
from shared_components.inference.volumes import FOLDER as VOLUMES

FILE = "site.yaml"
_LISTED = 3  # sorts of files left out that an error lists
DESCRIPTION = (
    "dataset", "images", "masks", "id", "name", *SPLITS, "frame_interval", "rate", "first_frame", "partly_labelled",
    "axes", "threshold", "mask_numbers", "text", "publish",
)  # fmt: skip
"""Names of the options of `add_description` that describe the folder."""


def add_description(parser: argparse._ActionsContainer) -> None:
    """Declare the options that describe a folder."""
    parser.add_argument("--yes", action="store_true", help="accept all proposals without asking")
    parser.add_argument("--dataset", choices=source_names(), metavar="NAME", help="data layout; default: detected")
    parser.add_argument("--images", metavar="PATH", help="path of images or videos, such as '{video}/frames'")
    parser.add_argument("--masks", metavar="PATH", help="path of masks, such as '{video}/labels'")
    parser.add_argument(
        "--id", action="append", default=[], metavar="VALUE=NAME", help="class name of a mask value; repeatable"
    )
    parser.add_argument("--name", help=f"site name; default: the folder's name, or its parent's for a folder {VOLUMES}")
    for split in SPLITS:
        parser.add_argument(f"--{split}", metavar="VIDEOS", help=f"{split} videos, separated by commas")
    parser.add_argument("--frame-interval", type=int, metavar="N", help="use every n-th labelled frame; default: 1")
    parser.add_argument("--rate", type=float, metavar="R", help="frames per second; default: from the video file")
    parser.add_argument("--first-frame", type=int, choices=(0, 1), help="number of the first frame in mask names")
    parser.add_argument(
        "--partly-labelled",
        action=argparse.BooleanOptionalAction,
        help="allow images without masks or volumes without labels",
    )
    parser.add_argument("--axes", choices=("header", "stored"), help="axes of NIfTI volumes; default: header")
    parser.add_argument(
        "--threshold", type=float, metavar="SHARE", help="smallest share of a class in a pixel of a smoothed mask edge"
    )
    parser.add_argument("--mask-numbers", metavar="WHAT", help="mask numbers count: frames, fps=1 or every=25")
    parser.add_argument(OPTION, action="store_true", help="accept left-out files without asking")
    parser.add_argument("--text", help="text that describes the site; not sent unless published")
    parser.add_argument(
        "--publish",
        metavar="ITEMS",
        help=f"items to send to other parties: {', '.join(PUBLISHABLE)}, or none; default: style",
    )


def describe(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Write the site.yaml of the folder ``args.folder`` by the options of `add_description`; return its content.

    Raises:
        SiteError: An option is missing, or the file cannot be written. Nothing was written.
    """
    _refuse_read_only(out, args)
    config = _config(args, out, Talk(ask=sys.stdin.isatty() and not args.yes))
    write_site(out, config)
    return config


def _refuse_read_only(out: Path, args: argparse.Namespace) -> None:
    """Refuse a place where site.yaml cannot be written before anything is asked; a new folder is made later."""
    there = next(path for path in (out.parent, *out.absolute().parents) if path.exists())
    if os.access(there, os.W_OK):
        return
    init = f"surgfl site init {quote(str(args.folder))} --out FILE"
    remedy = f"describe it elsewhere with `{init}`, and then `surgfl train FILE`"
    raise SiteError(
        f"{there}: cannot be written (a read-only disk, or no right to), and {out.name} is to lie there; {remedy}"
    )


def _config(args: argparse.Namespace, out: Path, talk: Talk) -> dict[str, Any]:
    folder = args.folder.resolve()
    public = None if args.images or args.masks else known_layout(folder, args.dataset)
    config: dict[str, Any] = {"name": args.name or _name_of(folder)}
    root = "." if out.resolve().parent == folder else str(folder)
    given = any(getattr(args, split) for split in SPLITS)
    if public is not None:
        print(f"{args.folder}: {public}, a layout that is known")
        _refuse_own(args, public)
        source = Source(public)
        reader = source.reader
        config |= {"dataset": public, "root": root}
        config["split"] = _split(args, talk, public, reader.videos(folder), lambda v: len(reader.frames(folder, v)))
        inventory = public_stock(folder, source, config["split"], given=given)
    else:
        files = scan(folder)
        layout = own_layout(args, folder, files)
        described = describe_own(args, folder, talk, layout)
        own, _ = read_description(layout.kind, described)
        config |= {"dataset": described.pop("dataset"), "root": root, **described}
        videos = list(layout.videos) or own_videos(folder, layout)
        config["split"] = _split(args, talk, layout.kind, videos, lambda v: labelled_frames(folder, own, v))
        agreed = ["unlabelled"] * (talk.ask or args.partly_labelled is not None) + ["split"] * given
        agreed += {"frames": ["label volumes"], "nifti": ["masks"]}.get(args.dataset or "", [])
        ignored = [str(value) for value, name in config["ids"].items() if name == IGNORE]
        inventory = own_stock(folder, own, config["split"], ignored=ignored, scanned=files, agreed=agreed)
    _agree(args, talk, inventory)
    return config | _rest(args, talk)


def _agree(args: argparse.Namespace, talk: Talk, inventory: Inventory) -> None:
    """Show the inventory of a folder, and ask about the files that are left out; refuse them if nobody can be asked.

    Raises:
        SiteError: Much is left out, and nobody agrees.
    """
    print(*inventory.lines(), sep="\n")
    open_ = inventory.needs_consent
    if not open_ or args.allow_left_out:
        return
    remedy = "put them where the others lie, or say with --images and --masks where all of them lie"
    if any("in no split" in one.why for one in open_):
        remedy = f"name their videos with {', '.join(f'--{split}' for split in SPLITS)}"
    if talk.ask:
        if not talk.get(OPTION, None, "write site.yaml without what is left out", None, yes_or_no):
            raise SiteError(f"{args.folder}: nothing was written; {remedy}")
        return
    listed = "; ".join(map(str, open_[:_LISTED])) + (f"; and {len(open_) - _LISTED} more" if open_[_LISTED:] else "")
    raise SiteError(f"{args.folder}: would leave out {listed}; add {OPTION} if that is right, or {remedy}")


def _name_of(folder: Path) -> str:
    """Return a folder's name; a folder that `surgfl segment --nifti` wrote has the name of the results around it."""
    above = folder.parent.name
    return above if folder.name == VOLUMES and above else folder.name


def _split(
    args: argparse.Namespace, talk: Talk, dataset: str, videos: Sequence[str], frames: Callable[[str], int]
) -> Split:
    given = {split: getattr(args, split) for split in SPLITS}
    if any(given.values()):
        return {split: _listed(text, videos) for split, text in given.items() if text}
    if dataset == "sisvse":
        raise SiteError("sisvse's sets share images, so none is proposed; give --train, --validation and --test")
    proposed = propose_split(videos, frames)
    if not talk.ask:
        return proposed
    print("proposed: " + "; ".join(f"{split} {_split_text(listed)}" for split, listed in proposed.items()))
    if talk.get("--train", None, "take this split", "yes", yes_or_no):
        return proposed
    asked = {
        split: talk.get(f"--{split}", None, f"videos of {split}, with commas between", "", lambda t: _listed(t, videos))
        for split in SPLITS
    }
    return {split: listed for split, listed in asked.items() if listed}


def _listed(text: str, videos: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if odd := [name for name in names if name not in videos]:
        raise SiteError(f"there is no video {odd[0]!r}; there are {', '.join(videos)}")
    return names


def _split_text(listed: Sequence[Any]) -> str:
    return ", ".join(
        one if isinstance(one, str) else " ".join(f"{v}[{a}:{b}]" for v, (a, b) in one.items()) for one in listed
    )


def _rest(args: argparse.Namespace, talk: Talk) -> dict[str, Any]:
    interval = talk.get("--frame-interval", args.frame_interval, "take every n-th labelled frame, n", "1", whole_from_1)
    text = talk.get("--text", args.text, "a line that describes the site (stays here unless published)", "")
    publish = talk.get(
        "--publish", args.publish, f"what may leave the site beside weights ({', '.join(PUBLISHABLE)}, or none)",
        "style", _items,
    )  # fmt: skip
    return {
        **({"frame_interval": interval} if interval != 1 else {}),
        **({"text": text} if text else {}),
        "publish": publish,
    }


def _items(answer: str) -> list[str]:
    names = [] if answer.strip() == "none" else [name.strip() for name in answer.split(",") if name.strip()]
    if odd := [name for name in names if name not in PUBLISHABLE]:
        raise SiteError(f"--publish names {odd[0]!r}; there are {', '.join(PUBLISHABLE)}, or none")
    return names


def _refuse_own(args: argparse.Namespace, public: str) -> None:
    for option in ("id", "rate", "first_frame", "partly_labelled", "axes", "threshold", "mask_numbers"):
        if getattr(args, option) not in (None, []):
            raise SiteError(
                f"--{option.replace('_', '-')} is for data of one's own, and this is {public}; leave it out, or add "
                "--dataset frames"
            )
