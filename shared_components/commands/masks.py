"""`surgfl masks ANNOTATIONS --images IMAGES --out MASKS`: convert the annotations of other programs to masks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from shared_components.commands import add_repeatable, named_values
from shared_components.common.counted import counted
from shared_components.common.progress_display import show_progress
from shared_components.common.sanitise import printable
from shared_components.data.annotations.archives import unpacked
from shared_components.data.annotations.formats import FORMATS, annotation_files, read_annotations

if TYPE_CHECKING:
    from shared_components.data.annotations.convert import Conversion

HELP = "convert annotations (COCO, labelme, CVAT, Label Studio, YOLO, 3D Slicer) to masks"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("annotations", type=Path, metavar="ANNOTATIONS", help="annotation file, zip file or folder")
    add("--images", type=Path, required=True, metavar="FOLDER", help="folder of images or videos")
    add("--out", type=Path, required=True, metavar="FOLDER", help="output folder")
    add("--format", choices=sorted(FORMATS), help="default: by content")
    add_repeatable(parser, "--rename", "OLD=NEW", "new class name, background or ignore")
    add("--force", action="store_true", help="replace masks that differ")


def run(args: argparse.Namespace) -> int:
    """Write the masks and print what was used and left out; a ValueError names the file to correct."""
    from shared_components.data.annotations.convert import TABLE, convert  # nibabel takes 0.1 s to import

    names = named_values("--rename", args.rename, "an old and a new class name, such as scissor=scissors", empty=False)
    with unpacked(args.annotations) as place, show_progress(title="masks"):
        kind, paths = annotation_files(place, args.format)
        files = [read_annotations(path, kind) for path in paths]
        result = convert(files, args.images, args.out, names=names, replace=args.force)
    print(f"{args.annotations}: {counted(len(paths), f'{FORMATS[kind][0].TITLE} file')}")
    lines = [*result.inventory.lines(), *_class_lines(result), *(f"note: {note}" for note in result.notes)]
    print(printable("\n".join(lines)))  # names of frames and classes come from the file
    print(f"{args.out}: {counted(result.written, 'mask')} written, {result.unchanged} unchanged, {TABLE}")
    # masks of video files are numbered by frame, from 0
    options = " --first-frame 0 --mask-numbers frames" if result.of_videos else ""
    root = Path(os.path.commonpath([args.images.resolve(), args.out.resolve()]))
    if root == Path(root.anchor):
        print("next: put the images and the masks below one folder, and describe it with surgfl site init")
    else:
        print(f"next: surgfl site init {quote(str(root))}{options}")
    return 0


def _class_lines(result: Conversion) -> Iterator[str]:
    total = max(1, sum(result.pixels.values()))
    width = max(map(len, result.pixels), default=0)
    yield f"  {'class':<{width}}{'masks':>9}{'pixels':>12}"
    for name, pixels in result.pixels.items():
        yield f"  {name:<{width}}{result.frames[name]:>9}{pixels:>12,}  {100 * pixels / total:.1f} %"
