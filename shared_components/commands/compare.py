"""`surgfl compare`: methods beside each other on one set of sites."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from shared_components.comparison import plan, sites
from shared_components.comparison.output import as_markdown, write_all
from shared_components.comparison.results import Comparison, read_results
from shared_components.comparison.schedule import carry_out_all, side_by_side
from shared_components.comparison.tables import added_share, all_grids

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
    runs = planned(args, preset)
    for one in runs:
        one.check()
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
    print("", as_markdown(all_grids(comparison)[0]), "", *map(str, files), "", sep="\n")
    print(_time_taken(comparison, time.monotonic() - began))
    return 1 if reasons else 0


def _write(
    args: argparse.Namespace, preset: plan.Preset, runs: Sequence[plan.Run], reasons: Mapping[str, str]
) -> tuple[Comparison, list[Path]]:
    results = read_results(runs, args.out / "runs", reasons)
    comparison = Comparison(
        preset.title,
        preset.layout,
        preset.tick_names,
        tuple(runs[0].sites),
        results,
        plan.SCALES[args.scale].remark,
    )
    return comparison, write_all(comparison, args.out)


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
    """List the runs, seed by seed, so that an interrupted comparison has whole seeds first."""
    scale = plan.SCALES[args.scale]
    if args.sites:
        files, held_out = sites.own_sites(args.sites, args.held_out)
    elif args.held_out:
        raise ValueError("--held-out names one of the sites in --sites; the synthetic ones have their own")
    else:
        files, held_out = sites.synthetic_sites(args.out / "sites" / args.scale, scale)
    scale = replace(scale, rounds=args.rounds or scale.rounds, training={**scale.training, **_training(args)})
    return [
        plan.Run(
            variant,
            seed,
            scale.rounds,
            scale.training,
            {name: str(path.resolve()) for name, path in files.items()},
            str(held_out.resolve()) if held_out else "",
            args.threads,
        )
        for seed in seeds(args.seeds)
        for variant in preset.variants
    ]


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
        height, _, width = args.size.partition("x")
        if not (height.isdigit() and width.isdigit()):
            raise ValueError(f"--size is {args.size!r}; give height and width such as 512x640")
        given |= {"height": int(height), "width": int(width)}
    return {key: value for key, value in given.items() if value is not None}
