"""`surgfl publish`: write a bundle as a folder for the Hugging Face Hub."""

import argparse
from pathlib import Path

HELP = "write a bundle with weights and model card as a folder for the Hugging Face Hub"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="bundle with shipped weights, such as pvt_fpn")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="new or empty output folder")


def run(args: argparse.Namespace) -> int:
    """Write the folder and print the upload command; after a ValueError there is no folder."""
    from shared_components.weights.bundle_files.copies import publish

    name = publish(args.bundle, args.to)
    print(f"{args.to}: written; `hf auth login` and `hf upload USER/{name} {args.to}` push it, with your name for USER")
    return 0
