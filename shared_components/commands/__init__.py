"""One file per `surgfl` sub-command, and what several of them share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from shared_components.core.trained_model import Trained, open_trained


class Parser(ArgumentParser):
    """Raise ValueError where `ArgumentParser` ends the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parsed(configure: Callable[[ArgumentParser], None], options: Sequence[str]) -> Namespace:
    """Parse a command's options for a caller in Python; ValueError where the command would refuse them."""
    parser = Parser()
    configure(parser)
    return parser.parse_args(list(options))


def named_values(option: str, texts: Sequence[str], example: str, *, empty: bool = True) -> dict[str, str]:
    """Read an option that is given several times as NAME=VALUE; ValueError for another form, or a name given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and (value or empty)):
            raise ValueError(f"{option} is {text!r}; give {example}")
        if name in found:
            raise ValueError(f"{option} gives {name} twice; keep one of them")
        found[name] = value
    return found


def add_clip(parser: ArgumentParser, frames: str) -> None:
    """Declare `--frames` and `--interval` of a clip."""
    parser.add_argument("--frames", type=int, default=1, help=frames)
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between frames of a clip")


def add_model(parser: ArgumentParser) -> None:
    """Declare `--bundle`, `--model` and `--site` of a trained model."""
    parser.add_argument("--bundle", default="pvt_fpn", metavar="NAME", help="bundle; default: %(default)s")
    parser.add_argument("--model", type=Path, metavar="FILE", help="checkpoint; default: the shipped weights")
    parser.add_argument(
        "--site", type=Path, metavar="FILE", help="site.yaml of the hospital, for a model that stores no site"
    )


def add_device(parser: ArgumentParser) -> None:
    """Declare `--device`."""
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="such as cpu, cuda:1 or mps; default: a GPU if there is one"
    )


def add_place(parser: ArgumentParser, which: str = "") -> None:
    """Declare `place`, where runs are kept; ``which`` says what is done with them."""
    kinds = "simulator workspace, state folder, comparison or startup kit"
    parser.add_argument(
        "place", nargs="?", type=Path, default=Path("ws"), metavar="WORKSPACE",
        help=f"{kinds}{which}; default: %(default)s",
    )  # fmt: skip


def open_model(args: Namespace) -> tuple[Path, Trained]:
    """Return the path and the model of :func:`add_model`'s arguments; ValueError where it cannot be used."""
    return open_trained(args.model, bundle=args.bundle, site=args.site, instead="name a checkpoint with --model")


def report_generated(args: Namespace, changed: Sequence[Path], *, of: str) -> None:
    """List the generated files that were written or removed; ValueError with `--check`, where a file would change."""
    if changed and args.check:
        raise ValueError(f"{changed[0]} is not what {of} gives; run `surgfl {args.command}`")
    for path in changed:
        print(f"{path}: {'written' if path.exists() else 'removed'}")
