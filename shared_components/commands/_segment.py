"""Carry out `surgfl segment`."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from shared_components import __version__
from shared_components.commands import open_model
from shared_components.common.arguments import height_and_width
from shared_components.common.counted import counted
from shared_components.common.machine import device
from shared_components.common.progress import duration
from shared_components.common.progress_display import show_progress
from shared_components.common.sanitise import printable
from shared_components.core.trained_model import Trained
from shared_components.inference import InferenceError
from shared_components.inference.backends import on_backend
from shared_components.inference.doubtful import DoubtWatch, warnings
from shared_components.inference.frames import FrameStream, InputFolder, videos_in
from shared_components.inference.live import is_live
from shared_components.inference.objects import objects_in, recorded, task_of
from shared_components.inference.out_of_distribution import Watch
from shared_components.inference.predict import FrameCount, Predictor, missed, predict_all, shown_frames
from shared_components.inference.results import PredictionFolder, refuse_inside
from shared_components.inference.visible import summary
from shared_components.networks.fused_fpn import fuse

_KINDS = ("segmentation", "depth")


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
        out, stream, task, masks=args.masks, pictures=args.pictures, exports=args.export or (), alone=True, facts=facts,
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
