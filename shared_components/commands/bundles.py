"""`surgfl bundles`: write the files of all bundles from their descriptions and shared files."""

import argparse
from pathlib import Path

from shared_components.commands import report_generated

HELP = "generate bundles/<name>/ from bundles/<name>.yaml and shared files"


def configure(parser: argparse.ArgumentParser) -> None:
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    only.add_argument("--zoo", type=Path, metavar="DIR", help="write complete copies with model.pt to a new folder")


def run(args: argparse.Namespace) -> int:
    """Write the files that change and list them.

    ValueError if a description is invalid, weights differ from their card, --check finds a change, or the folder of
    --zoo exists.
    """
    from shared_components.weights.bundle_files.copies import write_zoo
    from shared_components.weights.bundle_files.make import (
        check_weights,
        described_bundles,
        outdated_files,
        write_bundle,
    )

    if args.zoo:
        print(*write_zoo(args.zoo), sep="\n")
        return 0
    for name in described_bundles():
        check_weights(name)
        report_generated(args, outdated_files(name) if args.check else write_bundle(name), of=f"{name}.yaml")
    return 0
