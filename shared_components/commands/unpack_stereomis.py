"""`surgfl unpack-stereomis`: write rectified left images of StereoMIS and the depth of its stereo pairs."""

import argparse
from pathlib import Path

from shared_components.common.arguments import between, height_and_width
from shared_components.common.counted import counted
from shared_components.data.stereo import sequences, unpack

HELP = "write rectified images and depth maps of StereoMIS"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=Path, help="folder of the data set, with P1/, P2_0/, ...")
    parser.add_argument("--every", type=int, default=25, help="write every n-th frame; default: 25")
    parser.add_argument("--size", help="resize images first, such as 512x640; default: no resizing")


def run(args: argparse.Namespace) -> int:
    """Unpack every sequence under the root; ValueError if a sequence is unreadable or there is no sequence."""
    between("unpack-stereomis", "--every", args.every, 1, whole=True)
    size = height_and_width("--size", args.size) if args.size else None
    if not (folders := sequences(args.root)):
        raise ValueError(f"{args.root}: contains no sequences with StereoCalibration.ini; correct the path")
    for folder in folders:
        written, rate = unpack(folder, every=args.every, size=size)
        print(f"{folder.name}: {counted(written, 'frame')} written, of a video of {rate:g} a second (rate: {rate:g})")
    return 0
