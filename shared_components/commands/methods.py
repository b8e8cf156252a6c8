"""`surgfl methods`: print the table of methods, or write it into a document."""

import argparse
from pathlib import Path

from shared_components.reporting.methods import methods_markdown, write_between_marks

HELP = "print the table of methods: partition, objective, aggregator, what leaves a site"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table between its marks in FILE")


def run(args: argparse.Namespace) -> int:
    """Print the table as Markdown, or write it; ValueError where FILE has no marks."""
    if args.write:
        write_between_marks(args.write, methods_markdown())
    else:
        print(methods_markdown())
    return 0
