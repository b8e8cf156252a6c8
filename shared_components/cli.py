"""The command `surgfl`; every file of `shared_components/commands` is a sub-command."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from shared_components import __version__
from shared_components.common.sanitise import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; errors made for people end it with one sentence and exit code 2."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except (ValueError, OSError) as error:
        print(printable(f"surgfl {args.command}: {error}"), file=sys.stderr)
        return 2


def build_parser() -> argparse.ArgumentParser:
    """List the folder of commands; each has HELP, configure(parser) for its arguments, and run(args)."""
    import shared_components.commands as folder

    parser = argparse.ArgumentParser(prog="surgfl", description="Personalised federated learning for surgical video.")
    parser.add_argument("--version", action="version", version=f"surgfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in pkgutil.iter_modules(folder.__path__):
        command = importlib.import_module(f"{folder.__name__}.{module.name}")
        child = commands.add_parser(module.name.replace("_", "-"), help=command.HELP, description=command.HELP)
        command.configure(child)
        child.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
