"""surgfl unpack-sar-rarp50: write the labelled frames of SAR-RARP50's videos to their rgb/ folders."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shared_components.data.files import DataError
from shared_components.data.readers.sar_rarp50 import unpack, video_paths

HELP = "write the labelled frames of SAR-RARP50's videos as images, once"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `surgfl unpack-sar-rarp50`."""
    parser.add_argument("root", type=Path, help="folder of the dataset, of train1/, train2/ or test/")


def run(args: argparse.Namespace) -> int:
    """Unpack every video under the root; return 1 if one cannot be read or there is none."""
    try:
        folders = video_paths(args.root)
        for folder in folders:
            print(f"{folder.name}: {unpack(folder)} frames written")
    except (DataError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if not folders:
        print(f"{args.root}: holds no video_* folders with segmentation/; correct the path", file=sys.stderr)
    return int(not folders)
