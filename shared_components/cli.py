"""Command line `surgfl`; every file of `shared_components/commands` is a sub-command."""

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
    "Data": ("masks", "site", "check-data", "render", "text-vectors", "unpack-sar-rarp50", "unpack-stereomis"),
    "Federations": ("methods", "job", "watch", "runs", "report", "compare"),
    "Deployment": ("provision", "secure-kit", "preflight"),
    "Bundles and jobs of this project": ("bundles", "jobs", "pretrain", "weights", "ship", "calibrate", "publish"),
    "Your shell": ("completion",),
}
"""Groups of commands in `surgfl --help`; commands without a group come last."""
_HELP = re.compile(r"^HELP = (.*\n(?:[ )].*\n)*)", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; print an expected error in one sentence and return 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = next(iter(words), "")
    message: object
    try:
        parser = build_parser(command)
        _refuse_unknown(parser, words)
        args = parser.parse_args(words)
        return args.run(args)
    except ModuleNotFoundError as error:
        if (message := remedy(error.name)) is None:
            raise
    except (ValueError, OSError) as error:
        message = error
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(printable(f"surgfl {command}: {message}"), file=sys.stderr)
    return 2


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser from the folder of commands: each file has HELP, configure(parser) and run(args).

    With `only`, no other command is imported and the others have only their help: most import torch, which takes
    seconds.
    """
    parser = argparse.ArgumentParser(
        prog="surgfl",
        description="Personalised federated learning for surgical video.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"surgfl {__version__}")
    text = "see below; `surgfl COMMAND -h` explains one"
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=text)
    paths = {path.stem.replace("_", "-"): path for path in sorted(COMMANDS.glob("[!_]*.py"))}
    texts = {name: _help(path) for name, path in paths.items()}
    for name, path in paths.items():
        child = commands.add_parser(name, description=texts[name])
        if only in (None, name):
            command = importlib.import_module(f"shared_components.commands.{path.stem}")
            command.configure(child)
            child.set_defaults(run=command.run)
    parser.set_defaults(commands=tuple(paths), build_parser=build_parser)
    parser.epilog = listed(texts)
    return parser


def _help(path: Path) -> str:
    """Return the literal HELP of a command's file without importing it."""
    match = _HELP.search(path.read_text(encoding="utf-8"))
    assert match, f"{path} has no HELP"
    return ast.literal_eval(match[1].strip())


def listed(commands: Mapping[str, str]) -> str:
    """Return the list of commands by group, given the help text of each command."""
    grouped = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "Others": [name for name in commands if name not in grouped]}
    width, lines = shutil.get_terminal_size().columns - 2, []
    for title, names in groups.items():
        members = [name for name in names if name in commands]
        lines += [f"{title}:"] * bool(members)
        for name in members:
            head = f"  {name:<18} "
            lines.append(textwrap.fill(commands[name], width, initial_indent=head, subsequent_indent=" " * 21))
    return "\n".join(lines)


def _refuse_unknown(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End the program if the first word is no command, and name the most similar command."""
    known: Sequence[str] = parser.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in known:
        close = difflib.get_close_matches(words[0], known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        parser.error(f"there is no command {words[0]!r:.80}; {hint}`surgfl --help` lists them")


if __name__ == "__main__":
    sys.exit(main())
