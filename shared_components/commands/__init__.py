"""One file per `surgfl` sub-command, and what several of them share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.trained_model import Trained, load_trained
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import load_bundle


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parsed(configure: Callable[[ArgumentParser], None], options: Sequence[str]) -> Namespace:
    """Parse a command's options for a caller in Python; ValueError where the command would refuse them."""
    parser = _Parser()
    configure(parser)
    return parser.parse_args(list(options))


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


def open_model(args: Namespace) -> tuple[Path, Trained]:
    """Return the path and the model of :func:`add_model`'s arguments; ValueError where it cannot be used."""
    load_bundle(args.bundle)  # refuses an unknown name
    path = args.model or shipped_weights(args.bundle, instead="name a checkpoint with --model")
    site = load_site(args.site) if args.site else None
    return path, load_trained(path, bundle=args.bundle, site=site)


def report_generated(args: Namespace, changed: Sequence[Path], *, of: str) -> None:
    """List the generated files that were written or removed; ValueError with `--check`, where a file would change."""
    if changed and args.check:
        raise ValueError(f"{changed[0]} is not what {of} gives; run `surgfl {args.command}`")
    for path in changed:
        print(f"{path}: {'written' if path.exists() else 'removed'}")
