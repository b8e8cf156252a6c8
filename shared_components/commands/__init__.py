"""One file per `surgfl` sub-command, and what several of them share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def add_clip(parser: ArgumentParser, frames: str) -> None:
    """Declare `--frames` and `--interval` of a clip."""
    parser.add_argument("--frames", type=int, default=1, help=frames)
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between the frames of a clip")


def add_model(parser: ArgumentParser) -> None:
    """Declare `--bundle`, `--model` and `--site` of a trained model."""
    parser.add_argument("--bundle", default="pvt_fpn", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a checkpoint; default: the bundle's own")
    parser.add_argument(
        "--site", type=Path, metavar="FILE", help="site.yaml of the site where it is used, for a model that knows none"
    )


def report_generated(args: Namespace, changed: Sequence[Path], *, of: str) -> None:
    """List the generated files that were written or removed; ValueError with `--check`, where a file would change."""
    if changed and args.check:
        raise ValueError(f"{changed[0]} is not what {of} gives; run `surgfl {args.command}`")
    for path in changed:
        print(f"{path}: {'written' if path.exists() else 'removed'}")
