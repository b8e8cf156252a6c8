"""The command `surgfl`; every file of `shared_components/commands` is a sub-command."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared_components import __version__
from shared_components.common.extras import remedy
from shared_components.common.sanitise import printable

COMMANDS = Path(__file__).with_name("commands")
GROUPS: Mapping[str, Sequence[str]] = {
    "Use a model": ("segment", "train", "onnx"),
    "Data": ("site", "check-data", "render", "text-vectors", "unpack-sar-rarp50", "unpack-stereomis"),
    "Federations": ("methods", "job", "watch", "runs", "report", "compare"),
    "Deployment": ("provision", "secure-kit", "preflight"),
    "Bundles and jobs of this project": ("bundles", "jobs", "pretrain", "weights", "ship", "calibrate", "publish"),
    "Your shell": ("completion",),
}
"""How `surgfl --help` lists the commands; one that stands nowhere comes last."""
_HELP = re.compile(r"^HELP = (.*\n(?:[ )].*\n)*)", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; errors made for people end it with one sentence and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = next(iter(words), "")
    said: object
    try:
        parser = build_parser(command)
        refuse_unknown(parser, words)
        args = parser.parse_args(words)
        return args.run(args)
    except ModuleNotFoundError as error:
        if (said := remedy(error.name)) is None:
            raise
    except (ValueError, OSError) as error:
        said = error
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(printable(f"surgfl {command}: {said}"), file=sys.stderr)
    return 2


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """List the folder of commands; each has HELP, configure(parser) for its arguments, and run(args).

    With `only` no other command is imported, since most import torch, which takes seconds: they have their help alone.
    """
    parser = argparse.ArgumentParser(
        prog="surgfl",
        description="Personalised federated learning for surgical video.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"surgfl {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help="see below; `surgfl COMMAND -h` explains one"
    )
    found = {path.stem.replace("_", "-"): path for path in sorted(COMMANDS.glob("[!_]*.py"))}
    texts = {name: _help(path) for name, path in found.items()}
    for name, path in found.items():
        child = commands.add_parser(name, description=texts[name])
        if only in (None, name):
            command = importlib.import_module(f"shared_components.commands.{path.stem}")
            command.configure(child)
            child.set_defaults(run=command.run)
    parser.set_defaults(commands=tuple(found), build_parser=build_parser)
    parser.epilog = listed(texts)
    return parser


def _help(path: Path) -> str:
    """Return the literal HELP of a command's file, which is neither imported nor parsed as a whole."""
    found = _HELP.search(path.read_text(encoding="utf-8"))
    assert found, f"{path} has no HELP"
    return ast.literal_eval(found[1].strip())


def listed(commands: Mapping[str, str]) -> str:
    """Return a help text's list of commands, by group; ``commands`` says of each what it does."""
    grouped = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "Others": [name for name in commands if name not in grouped]}
    width, lines = shutil.get_terminal_size().columns - 2, []
    for title, names in groups.items():
        here = [name for name in names if name in commands]
        lines += [f"{title}:"] * bool(here)
        lines += [
            textwrap.fill(commands[n], width, initial_indent=f"  {n:<18} ", subsequent_indent=" " * 21) for n in here
        ]
    return "\n".join(lines)


def refuse_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End the program where the first word is no command, with the command that it is nearest to."""
    known: Sequence[str] = parser.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in known:
        close = difflib.get_close_matches(words[0], known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        parser.error(f"there is no command {words[0]!r:.80}; {hint}`surgfl --help` lists them")


if __name__ == "__main__":
    sys.exit(main())
