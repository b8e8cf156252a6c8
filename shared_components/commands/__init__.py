"""One file per `surgfl` sub-command, and the functions that several of them share.

`run` imports what needs PyTorch, so that `--help` takes no seconds. Long commands do their work in `_<command>.py`.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from shared_components.core.trained_model import Trained


class Parser(ArgumentParser):
    """Parser that raises ValueError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parsed(configure: Callable[[ArgumentParser], None], options: Sequence[str]) -> Namespace:
    """Parse a command's options for a caller in Python; ValueError if they are invalid."""
    parser = Parser()
    configure(parser)
    return parser.parse_args(list(options))


def named_values(option: str, texts: Sequence[str], example: str, *, empty: bool = True) -> dict[str, str]:
    """Read a repeatable option of the form NAME=VALUE; ValueError for another form or a repeated name."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and (value or empty)):
            raise ValueError(f"{option} is {text!r}; give {example}")
        if name in values:
            raise ValueError(f"{option} gives {name} twice; keep one of them")
        values[name] = value
    return values


def named_sites(texts: Sequence[str]) -> dict[str, Path]:
    """Read the sites of `--real`, by name; ValueError for a site without a name or a repeated name."""
    given = named_values("--real", texts, "a name and a site, such as 'EndoVis 2015=/data/site.yaml'", empty=False)
    return {name: Path(path).expanduser() for name, path in given.items()}


def add_repeatable(parser: ArgumentParser, option: str, metavar: str, text: str, kind: type = str) -> None:
    """Declare an option that may be given several times."""
    parser.add_argument(option, type=kind, action="append", default=[], metavar=metavar, help=f"{text}; repeatable")


def add_clip(parser: ArgumentParser, frames: str) -> None:
    parser.add_argument("--frames", type=int, default=1, help=frames)
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between frames of a clip")


def add_model(parser: ArgumentParser) -> None:
    """Declare `--bundle`, `--model` and `--site` of a trained model."""
    add = parser.add_argument
    add("--bundle", default="pvt_fpn", metavar="NAME", help="bundle; default: %(default)s")
    add("--model", type=Path, metavar="FILE", help="checkpoint; default: the shipped weights")
    add("--site", type=Path, metavar="FILE", help="site.yaml of the hospital, for a model that stores no site")


def add_device(parser: ArgumentParser) -> None:
    text = "such as cpu, cuda:1 or mps; default: a GPU if there is one"
    parser.add_argument("--device", default="auto", metavar="NAME", help=text)


def add_place(parser: ArgumentParser, use: str = "") -> None:
    """Declare `place`, the folder of runs; `use` is appended to the help text."""
    text = f"simulator workspace, state folder, comparison or startup kit{use}; default: %(default)s"
    parser.add_argument("place", nargs="?", type=Path, default=Path("ws"), metavar="WORKSPACE", help=text)


def open_model(args: Namespace) -> tuple[Path, "Trained"]:
    """Return the path and the model of `add_model`'s arguments; ValueError if it cannot be used."""
    from shared_components.core.trained_model import open_trained  # late: `--help` needs no PyTorch

    return open_trained(args.model, bundle=args.bundle, site=args.site, instead="name a checkpoint with --model")


def report_generated(args: Namespace, changed: Sequence[Path], *, of: str) -> None:
    """List the written and removed files; with `--check`, raise ValueError if a file would change."""
    if changed and args.check:
        raise ValueError(f"{changed[0]} does not match {of}; run `surgfl {args.command}`")
    for path in changed:
        print(f"{path}: {'written' if path.exists() else 'removed'}")
