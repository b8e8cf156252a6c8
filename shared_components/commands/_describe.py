"""Describe a folder by a site.yaml: its options, its questions, and the inventory of the folder."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from shared_components.commands._own_data import OwnFolder, Prompt, own_layout, read_as, yes_or_no
from shared_components.data.custom.description import describe as read_description
from shared_components.data.custom.guess_layout import known_layout
from shared_components.data.custom.ids import IGNORE
from shared_components.data.custom.list_files import scan
from shared_components.data.custom.propose_split import Split, propose_split
from shared_components.data.files.inventory import OPTION, Inventory
from shared_components.data.site import PUBLISHABLE, SPLITS, SiteError, Source, source_names
from shared_components.data.site_file import write_site
from shared_components.data.site_inventory import labelled_frames, own_stock, public_stock
from shared_components.inference import NIFTI

FILE = "site.yaml"
_LISTED = 3  # kinds of left-out files that an error message lists
_OWN_OPTIONS = ("id", "rate", "first_frame", "partly_labelled", "axes", "threshold", "mask_numbers")
_OPTIONS = ("dataset", "images", "masks", "name", *SPLITS, "frame_interval", "text", "publish", *_OWN_OPTIONS)


def add_description(parser: argparse._ActionsContainer) -> None:
    add = parser.add_argument
    add("--yes", action="store_true", help="accept all proposals without asking")
    add("--dataset", choices=source_names(), metavar="NAME", help="data layout; default: detected")
    add("--images", metavar="PATH", help="path of images or videos, such as '{video}/frames'")
    add("--masks", metavar="PATH", help="path of masks, such as '{video}/labels'")
    add("--id", action="append", default=[], metavar="VALUE=NAME", help="class name of a mask value; repeatable")
    add("--name", help=f"site name; default: the folder's name, or its parent's for a folder {NIFTI}")
    for split in SPLITS:
        add(f"--{split}", metavar="VIDEOS", help=f"{split} videos, separated by commas")
    add("--frame-interval", type=int, metavar="N", help="use every n-th labelled frame; default: 1")
    add("--rate", type=float, metavar="R", help="frames per second; default: from the video file")
    add("--first-frame", type=int, choices=(0, 1), help="number of the first frame in mask names")
    add("--partly-labelled", action=argparse.BooleanOptionalAction, help="allow images or volumes without labels")
    add("--axes", choices=("header", "stored"), help="axes of NIfTI volumes; default: header")
    add("--threshold", type=float, metavar="SHARE", help="smallest share of a class in a pixel of a smoothed edge")
    add("--mask-numbers", metavar="WHAT", help="mask numbers count: frames, fps=1 or every=25")
    add(OPTION, action="store_true", help="accept left-out files without asking")
    add("--text", help="text that describes the site; not sent unless published")
    add("--publish", metavar="ITEMS", help=f"items to send: {', '.join(PUBLISHABLE)}, or none; default: style")


def description_options(args: argparse.Namespace) -> list[str]:
    """Return the given options of `add_description` that describe the folder."""
    return _given(args, _OPTIONS)


def _given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, [])]


def describe(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Write the site.yaml of `args.folder` by the options of `add_description`; return its content.

    After a SiteError nothing was written.
    """
    existing = next(path for path in (out.parent, *out.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK):  # refuse before questions
        init = f"surgfl site init {quote(str(args.folder))} --out FILE"
        what = f"cannot be written (a read-only disk, or no right to), so {out.name} cannot be made there"
        raise SiteError(f"{existing}: {what}; describe it elsewhere with `{init}`, and then `surgfl train FILE`")
    config = _config(args, out, Prompt(ask=sys.stdin.isatty() and not args.yes))
    write_site(out, config)
    return config


def _config(args: argparse.Namespace, out: Path, prompt: Prompt) -> dict[str, Any]:
    folder = args.folder.resolve()
    public = None if args.images or args.masks else known_layout(folder, args.dataset)
    # `surgfl segment --export nifti` writes this folder below its results
    named = folder.parent if folder.name == NIFTI and folder.parent.name else folder
    config: dict[str, Any] = {"name": args.name or named.name}
    root = "." if out.resolve().parent == folder else str(folder)
    given = any(getattr(args, split) for split in SPLITS)
    if public is not None:
        print(f"{args.folder}: recognised as {public}")
        if options := _given(args, _OWN_OPTIONS):
            remedy = "leave it out, or add --dataset frames"
            raise SiteError(f"{options[0]} is for data of one's own, and this is {public}; {remedy}")
        source = Source(public)
        reader = source.reader
        config |= {"dataset": public, "root": root}
        config["split"] = _split(args, prompt, public, reader.videos(folder), lambda v: len(reader.frames(folder, v)))
        inventory = public_stock(folder, source, config["split"], given=given)
    else:
        files = scan(folder)
        data = OwnFolder(args, folder, prompt, own_layout(args, folder, files))
        kind, described = data.layout.kind, data.describe()
        own, _ = read_description(kind, described)
        config |= {"dataset": described.pop("dataset"), "root": root, **described}
        config["split"] = _split(args, prompt, kind, data.videos, lambda v: labelled_frames(folder, own, v))
        agreed = ["unlabelled"] * (prompt.ask or args.partly_labelled is not None) + ["split"] * given
        agreed += {"frames": ["label volumes"], "nifti": ["masks"]}.get(args.dataset or "", [])
        ignored = [str(value) for value, name in config["ids"].items() if name == IGNORE]
        inventory = own_stock(folder, own, config["split"], ignored=ignored, scanned=files, agreed=agreed)
    _agree(args, prompt, inventory)
    return config | _rest(args, prompt)


def _agree(args: argparse.Namespace, prompt: Prompt, inventory: Inventory) -> None:
    """Print the inventory of a folder; raise SiteError if much is left out and nobody agrees."""
    print(*inventory.lines(), sep="\n")
    left_out = inventory.needs_consent
    if not left_out or args.allow_left_out:
        return
    remedy = "put them where the others lie, or name the paths of all of them with --images and --masks"
    if any("in no split" in parts.why for parts in left_out):
        remedy = f"name their videos with {', '.join(f'--{split}' for split in SPLITS)}"
    if prompt.ask:
        if not prompt.get(OPTION, None, "write site.yaml without what is left out", None, yes_or_no):
            raise SiteError(f"{args.folder}: nothing was written; {remedy}")
        return
    more = f"; and {len(left_out) - _LISTED} more" if len(left_out) > _LISTED else ""
    listed = "; ".join(map(str, left_out[:_LISTED])) + more
    raise SiteError(f"{args.folder}: would leave out {listed}; add {OPTION} if that is right, or {remedy}")


def _split(
    args: argparse.Namespace, prompt: Prompt, dataset: str, videos: Sequence[str], frames: Callable[[str], int]
) -> Split:
    given = {split: getattr(args, split) for split in SPLITS}
    if any(given.values()):
        return {split: _videos_in(text, videos) for split, text in given.items() if text}
    if dataset == "sisvse":
        raise SiteError("sisvse's sets share images, so none is proposed; give --train, --validation and --test")
    proposed = propose_split(videos, frames)
    if not prompt.ask:
        return proposed
    print("proposed: " + "; ".join(f"{split} {_parts_text(parts)}" for split, parts in proposed.items()))
    if prompt.get("--train", None, "take this split", "yes", yes_or_no):
        return proposed
    answers = {
        split: prompt.get(
            f"--{split}", None, f"videos of {split}, with commas between", "", lambda t: _videos_in(t, videos)
        )
        for split in SPLITS
    }
    return {split: names for split, names in answers.items() if names}


def _videos_in(text: str, videos: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in videos]:
        raise SiteError(f"there is no video {unknown[0]!r}; there are {', '.join(videos)}")
    return names


def _parts_text(parts: Sequence[Any]) -> str:
    return ", ".join(
        part if isinstance(part, str) else " ".join(f"{v}[{a}:{b}]" for v, (a, b) in part.items()) for part in parts
    )


def _rest(args: argparse.Namespace, prompt: Prompt) -> dict[str, Any]:
    question = "take every n-th labelled frame, n"
    interval = prompt.get("--frame-interval", args.frame_interval, question, "1", read_as("frame_interval"))
    text = prompt.get("--text", args.text, "a line that describes the site (stays here unless published)", "")
    question = f"what may leave the site beside weights ({', '.join(PUBLISHABLE)}, or none)"
    publish = prompt.get("--publish", args.publish, question, "style", _items)
    keys: dict[str, Any] = {} if interval == 1 else {"frame_interval": interval}
    return keys | ({"text": text} if text else {}) | {"publish": publish}


def _items(answer: str) -> list[str]:
    names = [] if answer.strip() == "none" else [name.strip() for name in answer.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PUBLISHABLE]:
        raise SiteError(f"--publish names {unknown[0]!r}; there are {', '.join(PUBLISHABLE)}, or none")
    return names
