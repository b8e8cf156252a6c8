"""`surgfl segment INPUT`: segment videos, frames or a live stream, or estimate depth, and write the results."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from shared_components import __version__
from shared_components.commands import add_device, add_model, open_model
from shared_components.common.arguments import height_and_width
from shared_components.common.counted import counted
from shared_components.common.machine import device
from shared_components.common.progress import duration
from shared_components.common.progress_display import show_progress
from shared_components.common.sanitise import printable
from shared_components.core.trained_model import Trained
from shared_components.core.training_settings import PRECISIONS
from shared_components.inference import InferenceError
from shared_components.inference.backends import BACKENDS, on_backend
from shared_components.inference.doubtful import DoubtWatch, warnings
from shared_components.inference.frames import FrameStream, InputFolder, videos_in
from shared_components.inference.live import is_live
from shared_components.inference.objects import objects_in, recorded, task_of
from shared_components.inference.out_of_distribution import Watch
from shared_components.inference.predict import FrameCount, Predictor, missed, predict_all, shown_frames
from shared_components.inference.results import KEEP, PredictionFolder, refuse_inside
from shared_components.inference.visible import summary
from shared_components.networks.fused_fpn import fuse

HELP = "segment videos, images or a live stream, or estimate depth: overlay video, masks, table of visible objects"
_KINDS = ("segmentation", "depth")


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
    add("--masks", choices=KEEP, default="png", help="format of masks or depth maps; default: %(default)s")
    add("--pictures", action=argparse.BooleanOptionalAction, help="write overlays as PNG; default: only for images")
    add("--nifti", action="store_true", help="also write NIfTI volumes for corrections in ITK-SNAP or 3D Slicer")
    add("--precision", choices=PRECISIONS, default="float32", help="precision; default: %(default)s")
    add("--backend", choices=BACKENDS, default="auto", help="inference engine; auto: the fastest installed")
    add_device(parser)
    add("--threads", type=int, metavar="N", help="CPU threads; default: all cores")


def run(args: argparse.Namespace) -> int:
    """Write the results, and print when objects are visible; after a ValueError the input has no results.

    Each video of a folder has its own output folder; failed videos are listed at the end. 1: a video failed, or a live
    stream broke off, whose results until then are complete; 130: interrupted.
    """
    if args.threads is not None:
        if args.threads < 1:
            raise InferenceError(f"--threads is {args.threads}; give a whole number from 1 on")
        torch.set_num_threads(args.threads)
    where = device(args.device)
    path, model = open_model(args)
    if (kind := model.task.card.kind) not in _KINDS:
        remedy = "use it with `python -m monai.bundle run` and its bundle's inference.yaml"
        raise InferenceError(f"checkpoint {path} has learnt {kind}; give one of {' or '.join(_KINDS)}, or {remedy}")
    fuse(model.network)  # in place, once for all videos
    source = args.input if is_live(args.input) else Path(args.input)
    data = InputFolder(source) if isinstance(source, Path) and source.is_dir() else None
    videos = {} if data is None else videos_in(data.folder, data)
    if data is not None and videos:
        print(*data.inventory("video files").lines(), sep="\n")
    try:
        if not videos:
            return _segment(args, source, args.out, path, model, where)
        return _segment_each(args, videos, path, model, where)
    except KeyboardInterrupt:
        print("interrupted; no results were saved for the current input")
        return 130


def _segment_each(
    args: argparse.Namespace, videos: Mapping[str, Path], path: Path, model: Trained, where: torch.device
) -> int:
    if args.box or args.first_mask:
        raise InferenceError(f"boxes and a first mask need one video, and {args.input} has {len(videos)}; name one")
    out = args.out or Path(f"{Path(args.input).resolve().name}-segmented")
    refuse_inside(out, Path(args.input))
    failed = []
    for name, video in videos.items():
        try:
            _segment(args, video, out / name, path, model, where)
        except (ValueError, OSError) as error:
            failed.append(f"{video}: {error}")
        print()
    print(f"{len(videos) - len(failed)} of {counted(len(videos), 'video')} done, in {out}")
    for line in failed:
        print(printable(f"failed: {line}"), file=sys.stderr)
    return 1 if failed else 0


def _segment(
    args: argparse.Namespace, source: str | Path, out: Path | None, path: Path, model: Trained, where: torch.device
) -> int:
    height, width = height_and_width("--size", args.size) if args.size else model.size
    stream = FrameStream(source, height=height, width=width, every=args.every, video_rate=args.video_rate)
    objects = objects_in(model.network, model.task, stream, boxes=args.box, first_mask=args.first_mask)
    task = task_of(objects, model.task)
    out = out or Path(f"{stream.stem}-segmented")
    facts = {"surgfl": __version__, "model": str(path), "height": height, "width": width, "precision": args.precision}
    facts |= recorded(objects)
    watch = Watch(model, stream.rate, early=stream.live is not None)
    doubt = None if objects else DoubtWatch(model, (height, width), stream.rate)
    folder = PredictionFolder(
        out, stream, task, masks=args.masks, pictures=args.pictures, volumes=args.nifti, alone=True, facts=facts,
        watch=watch, doubt=doubt,
    )  # fmt: skip
    network = shown_frames(model.network, task, stream, objects).eval()
    fast, backend = on_backend(network, stream, backend=args.backend, precision=args.precision, where=where)
    folder.facts["backend"] = backend
    if stream.inventory is not None:
        folder.facts["left_out"] = [str(parts) for parts in stream.inventory.left_out]
        print(*stream.inventory.lines(), sep="\n")
    predictor = Predictor(fast, task, precision=args.precision)
    print(f"{stream.source} by {path}, at {height}x{width} on {where} by {backend}", flush=True)
    if stream.live:
        print("Ctrl-C ends it and completes the results", flush=True)
    with show_progress():
        done = predict_all(predictor, stream, folder)
    print(*_report(folder, out, done, missed(network)), sep="\n")
    return 1 if stream.live and stream.live.problem else 0


def _report(folder: PredictionFolder, out: Path, done: FrameCount, missed: Iterable[str]) -> Iterator[str]:
    yield f"{counted(done.count, 'frame')} in {duration(done.seconds)}, {done.count / done.seconds:.1f} a second"
    if folder.likeness is not None and folder.likeness.warning:
        yield folder.likeness.warning
    yield from warnings(folder.doubtful)
    tables = folder.tables
    yield from summary(tables.parts, tables.stretches.all(), tables.frames)
    yield from missed
    for name in sorted(path.name for path in out.iterdir() if not path.name.startswith(".")):
        yield f"{out / name}"
