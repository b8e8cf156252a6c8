"""`surgfl methods`: print the table of methods, or write it into a document."""

import argparse
from pathlib import Path

from shared_components.common.atomic import between_marks, write_text
from shared_components.reporting.methods import MARKS, methods_markdown

HELP = "print the table of methods: partition, objective, aggregator, what leaves a site"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table between its marks in FILE")


def run(args: argparse.Namespace) -> int:
    """Print the table as Markdown, or write it; ValueError where FILE has no marks."""
    if args.write:
        document = args.write.read_text(encoding="utf-8")
        place = "where the table belongs"
        write_text(args.write, between_marks(document, MARKS, methods_markdown(), args.write, place))
    else:
        print(methods_markdown())
    return 0
