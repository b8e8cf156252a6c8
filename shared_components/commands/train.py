"""`surgfl train FOLDER`: train a model on a few labelled frames within minutes, and score it before and after."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from shared_components.commands import add_device, parsed
from shared_components.commands._describe import FILE, add_description, describe, description_options
from shared_components.common.arguments import height_and_width
from shared_components.common.counted import counted
from shared_components.common.progress_display import show_progress
from shared_components.data.samples import SampleSpec
from shared_components.data.site import Site, SiteError
from shared_components.data.site_file import load_site, write_site
from shared_components.weights.fine_tuning.plan import Settings

if TYPE_CHECKING:
    from shared_components.core.task import Scores
    from shared_components.weights.fine_tuning.train import Outcome

HELP = "train a model on a folder of labelled frames within minutes"


def configure(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help=f"folder of labelled frames, or its {FILE}")
    add("--out", type=Path, metavar="DIR", help="output folder; default: <site's name>-model")
    add("--minutes", type=float, default=Settings.minutes, help="maximum duration in minutes; default: %(default)g")
    add("--size", metavar="HxW", help="input size of the network; default: the largest that the time allows")
    add("--batch-size", type=int, metavar="N", help="batch size; default: 4, or 8 on an accelerator")
    add("--steps", type=int, metavar="N", help="maximum steps, instead of --minutes")
    add("--bundle", default=Settings.bundle, metavar="NAME", help="bundle of the network; default: %(default)s")
    start = "initial weights: a checkpoint, rendered (shipped) or random; default: %(default)s"
    add("--start", default=Settings.start, metavar="FILE", help=start)
    add("--seed", type=int, default=Settings.seed, help="random seed; default: %(default)s")
    add_device(parser)
    group = parser.add_argument_group("describing a folder", f"for a folder without {FILE}, as in `surgfl site init`")
    add_description(group)


def run(args: Namespace) -> int:
    """Train and print scores and files; 130: interrupted. After a ValueError no new model was written."""
    from shared_components.weights.fine_tuning.train import fine_tune

    path = args.folder / FILE
    # a file from answers stays; a file that follows from options is written again by the corrected command
    from_options = args.folder.is_dir() and not path.exists() and bool(description_options(args))
    size = height_and_width("--size", args.size) if args.size else None
    settings = Settings(
        minutes=args.minutes, bundle=args.bundle, start=args.start, size=size, batch_size=args.batch_size,
        steps=args.steps, seed=args.seed, device=args.device,
    )  # fmt: skip
    try:
        site = described(args)
        with show_progress() as board:
            outcome = fine_tune(site, args.out or Path(f"{site.name}-model"), settings, say=board.say)
    except SiteError:  # it names what to correct in site.yaml
        raise
    except BaseException as error:
        if from_options:
            path.unlink(missing_ok=True)
        if not isinstance(error, KeyboardInterrupt):
            raise
        print("\ninterrupted; no model was written; an earlier model is unchanged")
        return 130
    print(*summary_lines(outcome), sep="\n")
    return 0


def described(args: Namespace) -> Site:
    """Return the site of a site.yaml, or of a folder; write the site.yaml of a folder without one.

    A folder of two videos gets a test: the second video is cut by time. SiteError if the folder cannot be described, or
    has a site.yaml and the options describe it again.
    """
    from shared_components.weights.fine_tuning.frames import with_test

    path = args.folder / FILE if args.folder.is_dir() else args.folder
    if path.is_file() or not args.folder.is_dir():
        if given := description_options(args):
            remedy = f"leave it out, or describe it anew with `surgfl site init {quote(str(path.parent))} --force`"
            raise SiteError(f"{path}: describes the folder already, and {given[0]} would change nothing; {remedy}")
        return load_site(path)
    for name, value in {"text": "", "publish": "style", "frame_interval": 1}.items():  # without a question
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    config = describe(args, path)
    site = load_site(path)
    if split := with_test(site, SampleSpec(site.source.reader.TARGETS)):
        write_site(path, config | {"split": split})
        site = load_site(path)
    return site


def described_quietly(path: Path, options: Sequence[str]) -> Site:
    """Return the site of a folder or site.yaml, see `described`, by options of the command, without questions."""
    args = parsed(configure, [str(path), "--yes", *options])
    with redirect_stdout(StringIO()):
        return described(args)


def summary_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the scores before and after training, and the paths of the results."""
    metric, frames = outcome.metric, outcome.after["frames"]
    before, after = outcome.before[metric.name], outcome.after[metric.name]
    texts = {key: f"{_text(outcome, before, key)} before, {_text(outcome, after, key)} after" for key in after}
    yield f"test {metric.label} {texts.pop('mean')} ({counted(outcome.steps, 'step')}; {counted(frames, 'frame')})"
    for key, text in texts.items():
        yield f"  {key} {text}"
    if not outcome.chosen:
        yield (
            "no step made it better on the validation frames: the weights are the initial ones; label more frames, or "
            "give it more --minutes"
        )
    yield f"{outcome.picture}"
    yield f"{outcome.model}"
    yield f"next: surgfl segment VIDEO --model {quote(str(outcome.model))}"


def _text(outcome: Outcome, scores: Scores, key: str) -> str:
    value = scores.get(key)
    return outcome.metric.with_unit(float("nan") if value is None else value)
