"""`surgfl segment INPUT`: segment videos, frames or a live stream, or estimate depth, and write the results."""

import argparse
import re
from pathlib import Path

from shared_components.commands import add_device, add_model
from shared_components.core.training_settings import PRECISIONS
from shared_components.inference import BACKENDS, EXPORTS, MASK_FORMATS

HELP = "segment videos, images or a live stream, or estimate depth: overlay video, masks, table of visible objects"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="INPUT", help="video, image, folder of images or videos, camera number such as 0, or URL")
    add_model(parser)
    parser._negative_number_matcher = re.compile(r"-[\d.]")  # else argparse takes the box -5,0,9,9 for an option
    add("--box", action="append", metavar="[CLASS=]X,Y,W,H", help="object to follow in the first frame; repeatable")
    add("--first-mask", type=Path, metavar="FILE", help="mask of the first frame instead of boxes")
    add("--out", type=Path, metavar="DIR", help="output folder; default: <INPUT's name>-segmented")
    add("--size", metavar="HxW", help="input size of the network; default: from the checkpoint")
    add("--every", type=int, default=1, metavar="N", help="use every n-th frame; default: 1")
    add("--video-rate", metavar="R", help="images per second; also write an overlay video of a folder")
    add("--masks", choices=MASK_FORMATS, default="png", help="format of masks or depth maps; default: %(default)s")
    add("--pictures", action=argparse.BooleanOptionalAction, help="write overlays as PNG; default: only for images")
    add("--export", action="append", choices=EXPORTS, help="also write labels for an annotation tool; repeatable")
    add("--nifti", action="append_const", dest="export", const="nifti", help="the same as --export nifti")
    add("--precision", choices=PRECISIONS, default="float32", help="precision; default: %(default)s")
    add("--backend", choices=BACKENDS, default="auto", help="inference engine; auto: the fastest installed")
    add_device(parser)
    add("--threads", type=int, metavar="N", help="CPU threads; default: all cores")


def run(args: argparse.Namespace) -> int:
    """Segment the input, see `_segment.run`."""
    from shared_components.commands import _segment  # late: `--help` needs no PyTorch, which takes seconds to import

    return _segment.run(args)
