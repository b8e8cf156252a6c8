"""`surgfl bundles`: write the files of all bundles from what they share and from their descriptions."""

import argparse

from shared_components.commands import report_generated
from shared_components.experiments.shipping.bundle_files.make import (
    check_weights,
    described_bundles,
    outdated_files,
    write_bundle,
)

HELP = "write bundles/<name>/ from bundles/<name>.yaml and what all bundles share"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file would change")


def run(args: argparse.Namespace) -> int:
    """Write the files that change and list them.

    A ValueError names a faulty description, weights that are not their card's, or with --check a file to write.
    """
    for name in described_bundles():
        check_weights(name)
        changed = outdated_files(name) if args.check else write_bundle(name)
        report_generated(args, changed, of=f"{name}.yaml")
    return 0
