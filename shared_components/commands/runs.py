"""`surgfl runs`: list, check or remove the runs of a workspace, a deployment or a comparison."""

import argparse

from shared_components.commands import add_place

HELP = "list, check and remove runs"


def configure(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--remove", nargs="+", metavar="RUN", help="runs to remove, such as pfedsis/20261122-123509")
    which.add_argument("--keep", type=int, metavar="N", help="keep the newest N runs of each job and remove the others")
    which.add_argument("--check", action="store_true", help="check whether runs, or a backup of them, can be resumed")
    parser.add_argument("--models", action="store_true", help="remove only models and states, not numbers and pictures")
    parser.add_argument("--yes", action="store_true", help="remove without asking")


def run(args: argparse.Namespace) -> int:
    """List, check or remove runs; 1 if a check fails or the user answers no. After a ValueError nothing was removed."""
    from shared_components.commands import _runs

    return _runs.run(args)
