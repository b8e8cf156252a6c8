"""`surgfl unpack-sar-rarp50`: extract the labelled frames and clips of SAR-RARP50's videos to rgb/."""

import argparse
from pathlib import Path

from shared_components.commands import add_clip
from shared_components.common.counted import counted
from shared_components.data.readers.sar_rarp50 import unpack, video_paths

HELP = "extract the labelled frames of SAR-RARP50's videos as images"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, help="folder of the data set, with train1/, train2/ or test/")
    add_clip(parser, "frames per clip; earlier frames are written, too")


def run(args: argparse.Namespace) -> int:
    """Unpack every video under the root; ValueError if a video is unreadable or there is no video."""
    if not (folders := video_paths(args.root)):
        raise ValueError(f"{args.root}: contains no video_* folders with segmentation/; correct the path")
    for folder in folders:
        print(f"{folder.name}: {counted(unpack(folder, frames=args.frames, interval=args.interval), 'frame')} written")
    return 0
