"""`surgfl methods`: print the table of methods, write it into a document, or list the methods that fit a network."""

import argparse
from pathlib import Path

import yaml

from shared_components.common.atomic import between_marks, write_text

HELP = "print the table of methods: partition, objective, aggregator, data sent"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the marked table in FILE")
    network = "list the methods that fit a bundle's network, or a network_def '{...}'"
    parser.add_argument("--network", metavar="BUNDLE", help=network)


def run(args: argparse.Namespace) -> int:
    """Print the table as Markdown, write it, or list methods that fit; ValueError if FILE has no marks."""
    from shared_components.core.bundle import load_bundle
    from shared_components.core.method import load_method, method_names
    from shared_components.core.training import reason_for_misfit
    from shared_components.networks.bundle_config import weightless
    from shared_components.reporting.methods import MARKS, methods_markdown

    if args.network:
        is_definition = args.network.lstrip().startswith("{")
        network = weightless(yaml.safe_load(args.network) if is_definition else load_bundle(args.network).network)
        for name in method_names():  # with default arguments
            print(f"{name:<14} {reason_for_misfit(load_method(name), network) or 'fits'}")
    elif args.write:
        document = args.write.read_text(encoding="utf-8")
        write_text(args.write, between_marks(document, MARKS, methods_markdown(), args.write, "around the table"))
    else:
        print(methods_markdown())
    return 0
