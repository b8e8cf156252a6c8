"""`surgfl compare`: methods beside each other on one set of sites."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from shared_components.arguments import height_and_width
from shared_components.comparison import plan, sites
from shared_components.comparison.output import as_markdown, write_all
from shared_components.comparison.results import Comparison, read_results
from shared_components.comparison.schedule import carry_out_all, side_by_side
from shared_components.comparison.tables import added_share, own_grids
from shared_components.start import chosen_start

HELP = "train several methods on the same sites and write the papers' tables"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group()
    presets = ", ".join([*plan.PRESETS, "all"])
    what.add_argument("--preset", default="pfedsis-table1", help=f"{presets}; default: %(default)s")
    what.add_argument("--methods", metavar="A,B,...", help="methods by name instead of a preset")
    parser.add_argument("--scale", default="small", choices=plan.SCALES, help="default: %(default)s")
    parser.add_argument("--seeds", default="3", metavar="N or A,B,...", help="how many, or which; default: 3")
    parser.add_argument(
        "--sites", type=Path, metavar="DIR", help="folder with <site>/site.yaml; default: synthetic sites"
    )
    parser.add_argument(
        "--held-out", default="", metavar="SITE", help="the one of --sites that never trains, or a site.yaml"
    )
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="default: %(default)s")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side; default: what fits")
    parser.add_argument("--threads", type=int, default=1, help="of each run; default: %(default)s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--iterations", type=int, help="local steps of a round")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--size", metavar="HxW", help="of the network's input, multiples of 32")
    parser.add_argument(
        "--start",
        default="rendered",
        metavar="random|rendered|PATH",
        help="what networks begin from: the seed, the weights that bundles ship, or a file; default: %(default)s",
    )
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="METHOD.KEY=VALUE",
        help="of a method; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out what is not done yet and write the tables; 1 if a run has no result.

    Raises:
        ValueError: an argument cannot be used; nothing was started.
    """
    began = time.monotonic()
    preset = plan.of_methods(args.methods.split(",")) if args.methods else plan.preset_named(args.preset)
    preset = plan.with_arguments(preset, arguments(args.argument))
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}; give a whole number from 1 on")
    runs = planned(args, preset)
    _ = _comparison(args, preset, runs, {}).groups  # refuses runs of an older version before others are added
    alone = preset.layout == "costs"  # times are what it is about
    root, jobs = args.out / "runs", args.jobs or (1 if alone else side_by_side(runs[0]))
    print(f"{preset.title}: {len(runs)} runs, {jobs} side by side, logs in {root}/*/log.txt", flush=True)
    try:
        reasons = carry_out_all(runs, root, jobs=jobs, say=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        _write(args, preset, runs, {})
        print(f"interrupted; the same command goes on where it stopped (state in {root})")
        return 130
    comparison, files = _write(args, preset, runs, reasons)
    print("", "\n\n".join(map(as_markdown, own_grids(comparison))), "", *map(str, files), "", sep="\n")
    print(_time_taken(comparison, time.monotonic() - began))
    return 1 if reasons else 0


def _write(
    args: argparse.Namespace, preset: plan.Preset, runs: Sequence[plan.Run], reasons: Mapping[str, str]
) -> tuple[Comparison, list[Path]]:
    comparison = _comparison(args, preset, runs, reasons)
    return comparison, write_all(comparison, args.out)


def _comparison(
    args: argparse.Namespace, preset: plan.Preset, runs: Sequence[plan.Run], reasons: Mapping[str, str]
) -> Comparison:
    results = read_results(runs, args.out / "runs", reasons)
    sites, remark = tuple(runs[0].sites), plan.SCALES[args.scale].remark
    return Comparison(preset.title, preset.layout, preset.tick_names, sites, results, remark)


def _time_taken(comparison: Comparison, wall: float) -> str:
    text = f"{wall:.0f} s now"
    share = added_share(comparison)
    return text if share is None else f"{text}; scoring added {100 * share:.0f}% to a run's training"


def arguments(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read ``qfedavg.q=2`` as {"qfedavg": {"q": 2}}.

    Raises:
        ValueError: It has another form.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        method, dot, key = left.partition(".")
        if not (equals and dot and method and key):
            raise ValueError(f"--argument is {text!r}; give a method's argument such as qfedavg.q=2")
        found.setdefault(method, {})[key] = yaml.safe_load(value)
    return found


def planned(args: argparse.Namespace, preset: plan.Preset) -> list[plan.Run]:
    """List the runs, seed by seed, so that an interrupted comparison has whole seeds first.

    Synthetic sites are rendered last, when everything else is known to be possible: at the paper's sizes
    that takes minutes.

    Raises:
        ValueError: An argument, a size or a row's settings are impossible; nothing was rendered.
    """
    scale = plan.SCALES[args.scale]
    rounds = scale.rounds if args.rounds is None else args.rounds
    training = {**scale.training, **_training(args)}
    start, file = chosen_start(args.start)
    begins = {"start": start, "start_file": str(file.resolve()) if file else ""}
    rows = [
        plan.Run(variant, seed, rounds, training, {}, threads=args.threads, **begins)
        for seed in seeds(args.seeds)
        for variant in preset.variants
    ]
    for row in rows[: len(preset.variants)]:  # the others differ in their seed only
        row.check()
    files, held_out = _sites(args, scale)
    paths = {name: str(path.resolve()) for name, path in files.items()}
    return [replace(row, sites=paths, held_out=str(held_out.resolve()) if held_out else "") for row in rows]


def _sites(args: argparse.Namespace, scale: plan.Scale) -> tuple[dict[str, Path], Path | None]:
    """Return the sites that train, by name, and the one that does not."""
    if args.sites:
        return sites.own_sites(args.sites, args.held_out)
    if args.held_out:
        raise ValueError("--held-out names one of the sites in --sites; the synthetic ones have their own")
    return sites.synthetic_sites(args.out / "sites" / args.scale, scale)


def seeds(text: str) -> Sequence[int]:
    """Read ``3`` as seeds 1, 2, 3, and ``7,`` or ``7,9`` as just these.

    Raises:
        ValueError: It is neither.
    """
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or ("," not in text and numbers[0] < 1):
        raise ValueError(f"--seeds is {text!r}; give a count such as 3, or seeds such as 1,2,3")
    return numbers if "," in text else range(1, numbers[0] + 1)


def _training(args: argparse.Namespace) -> dict[str, Any]:
    """Return the overrides of the scale that the command line gives."""
    given = {key: getattr(args, key) for key in ("iterations", "batch_size", "learning_rate")}
    if args.size:
        height, width = height_and_width("--size", args.size)
        given |= {"height": height, "width": width}
    return {key: value for key, value in given.items() if value is not None}
