"""Do the work of `surgfl compare`."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared_components.commands import named_values
from shared_components.common.arguments import between, height_and_width
from shared_components.common.counted import counted
from shared_components.common.extras import require_federation
from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.common.progress_display import show_progress
from shared_components.core.bundle import needs_square_frames
from shared_components.core.initial_weights import RENDERED, parse_start
from shared_components.core.method import method_names
from shared_components.core.training_settings import with_settings
from shared_components.data.site_file import folders_without_site
from shared_components.experiments.comparison import plan, presets, sites, starts
from shared_components.experiments.comparison.output import refuse_foreign, set_aside, write_all
from shared_components.experiments.comparison.results import Comparison, read_results
from shared_components.experiments.comparison.schedule import carry_out_all, side_by_side
from shared_components.experiments.comparison.tables import own_tables
from shared_components.flare.deployment.job_files import described_jobs
from shared_components.flare.deployment.job_folder import jobs_folder
from shared_components.networks.bundle_config import bundle_for
from shared_components.reporting.tables import as_markdown

_MOST_SEEDS = 1000


def run(args: argparse.Namespace) -> int:
    """Carry out the missing runs and write the tables; 1 if a run has no result. A ValueError starts nothing."""
    began = time.monotonic()
    try:
        comparison, files, reasons = compared(args)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on where it stopped (state in {args.out / 'runs'})")
        return 130
    print("", "\n\n".join(map(as_markdown, own_tables(comparison))), "", *map(str, files), "", sep="\n")
    print(f"this call took {time.monotonic() - began:.0f} s")
    return 1 if reasons else 0


def compared(args: argparse.Namespace) -> tuple[Comparison, list[Path], Mapping[str, str]]:
    """Carry out the missing runs, write the tables; return results, files, and the reason for each missing result."""
    require_federation()
    preset = chosen(args)
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs is {args.jobs}; give a whole number from 1 on")
    refuse_foreign(args.out)
    with show_progress():
        runs = planned(args, preset)
    _ = _comparison(args, preset, runs, {}).groups  # refuse runs of an older version before new runs
    root, jobs = args.out / "runs", args.jobs or (1 if preset.layout == "costs" else min(map(side_by_side, runs)))
    print(f"{preset.title}: {counted(len(runs), 'run')}, {jobs} side by side, logs in {root}/*/log.txt", flush=True)
    try:
        reasons = carry_out_all(runs, root, jobs=jobs)
    except KeyboardInterrupt:
        _write(args, preset, runs, {})
        raise
    return *_write(args, preset, runs, reasons), reasons


def chosen(args: argparse.Namespace) -> plan.Preset:
    """Return the table that the options describe; ValueError for an unknown name, argument or start."""
    if args.methods is None:
        preset = presets.preset_named(args.preset)
        if args.preset == "all" and args.sites and not args.server:
            preset = presets.without_server(preset)
    else:
        names = args.methods.split(",")
        preset = presets.of_methods(names, described_jobs(jobs_folder()) if set(names) - set(method_names()) else {})
    if args.start and all(variant.start for variant in preset.variants):
        raise ValueError("--start is given, and all rows have their own start; give --start-of, or leave it out")
    preset = presets.with_network(presets.with_bundle(preset, args.bundle), network_arguments(args.network))
    preset = starts.with_starts(preset, starts.given_starts(args.start_of), plan.scale_of(args.scale, preset))
    return presets.with_arguments(preset, arguments(args.argument))


def _write(
    args: argparse.Namespace, preset: plan.Preset, runs: Sequence[plan.Run], reasons: Mapping[str, str]
) -> tuple[Comparison, list[Path]]:
    comparison = _comparison(args, preset, runs, reasons)
    if aside := set_aside(args.out, comparison.title):
        print(f"{aside}: the tables of the earlier comparison, with other rows")
    return comparison, write_all(comparison, args.out)


def _comparison(
    args: argparse.Namespace, preset: plan.Preset, runs: Sequence[plan.Run], reasons: Mapping[str, str]
) -> Comparison:
    results = read_results(runs, args.out / "runs", reasons)
    remarks = (plan.scale_of(args.scale, preset).remark, preset.remark)
    sites, remark = tuple(runs[0].sites), "; ".join(text for text in remarks if text)
    return Comparison(preset.title, preset.layout, preset.tick_names, sites, results, remark, preset.versus)


def arguments(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read `qfedavg.q=2` as {"qfedavg": {"q": 2}}; ValueError for another form or a repeated argument."""
    by_method: dict[str, dict[str, Any]] = {}
    example = "a method's argument such as qfedavg.q=2"
    for name, value in named_values("--argument", texts, example).items():
        method, _, key = name.partition(".")
        if not (method and key):
            raise ValueError(f"--argument is {f'{name}={value}'!r}; give {example}")
        by_method.setdefault(method, {})[key] = _value(f"--argument {name}", value)
    return by_method


def network_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Read `size=512` as {"size": 512}; ValueError for another form or a repeated argument."""
    given = named_values("--network", texts, "an argument of the network such as architecture=small")
    return {key: _value(f"--network {key}", value) for key, value in given.items()}


def _value(option: str, text: str) -> Any:
    try:
        return read_yaml(text)
    except YamlError as error:
        raise ValueError(f"{option}: {text!r} {error}") from error


def planned(args: argparse.Namespace, preset: plan.Preset) -> list[plan.Run]:
    """List the runs, seed by seed, so that an interrupted comparison has complete seeds.

    Synthetic sites are rendered after all other checks, since at the paper's sizes that takes minutes. After a
    ValueError, for an impossible argument, size or setting of a row, nothing was rendered.
    """
    scale = plan.scale_of(args.scale, preset)
    preset = plan.at_scale(preset, scale)
    rounds = scale.rounds if args.rounds is None else args.rounds
    squares = any(needs_square_frames(row.bundle or bundle_for(row.method)) for row in preset.variants)
    square = {"width": scale.training["height"]} if squares and "height" in scale.training else {}
    training = with_settings({**scale.training, **square}, _training(args))
    if scale.weights and not args.start:
        raise ValueError(f"{preset.title}: --scale {args.scale} begins from {scale.weights}; name the file by --start")
    common = parse_start(args.start or preset.start or RENDERED)
    given = starts.given_starts(args.start_of)
    numbers = seeds(args.seeds)
    rows = {}
    for variant in preset.variants:
        start, file = starts.start_of(variant, given) or common
        begins = {"start": start, "start_file": str(file.resolve()) if file else ""}
        row = plan.Run(variant, numbers[0], rounds, training, {}, threads=args.threads, **begins)
        row.check()
        row = plan.resolved(row)
        row.check()
        rows[row.variant.method, row.variant.label] = row
    if scale.weights:
        starts.check_published(rows.values())
    data = _sites(args, preset, scale, list(rows.values()))
    return [
        replace(row, seed=seed, **(data if row.variant.needs_server else {**data, "server": ""}))
        for seed in numbers
        for row in rows.values()
    ]


def _sites(
    args: argparse.Namespace, preset: plan.Preset, scale: plan.Scale, rows: Sequence[plan.Run]
) -> dict[str, Any]:
    """Return fields of a run: the site.yaml of each training site by name, of the held-out site, and of the server."""
    needs = [row.variant.label for row in rows if row.variant.needs_server]
    server = sites.server_file(args.server) if args.server else None
    if args.sites:
        if needs and server is None:
            what = f"{needs[0]} uses frames of the server's own, and --sites has none"
            raise ValueError(f"{what}; name their site.yaml by --server")
        files, held_out = sites.own_sites(args.sites, args.held_out)
        if left_out := folders_without_site(args.sites):
            print(f"left out: {', '.join(left_out)} in {args.sites}, without a site.yaml")
    elif args.held_out:
        raise ValueError("--held-out names one of the sites in --sites; the synthetic ones have their own")
    elif preset.hospitals:
        folder = args.out / "sites" / f"{args.scale}-{preset.hospitals.name}"
        files, held_out = sites.hospital_sites(folder, scale, preset.hospitals), None
    elif preset.site_set:
        folder = args.out / "sites" / f"{args.scale}-{preset.site_set}"
        files, held_out = sites.set_sites(folder, scale, preset.site_set)
    else:
        clip = max(row.clip for row in rows)
        folder = args.out / "sites" / (args.scale if clip[0] == 1 else f"{args.scale}-clips")
        files, held_out = sites.synthetic_sites(folder, scale, clip=clip, held_out_layout=preset.held_out_layout)
        server = server or (sites.server_site(folder, scale) if needs else None)
    return {
        "sites": {name: str(path.resolve()) for name, path in files.items()},
        "held_out": str(held_out.resolve()) if held_out else "",
        "server": str(server.resolve()) if server else "",
    }


def seeds(text: str) -> Sequence[int]:
    """Read `3` as seeds 1, 2, 3, and `7,` or `7,9` as a list of seeds; ValueError for another form."""
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError:
        numbers = []
    listed = "," in text
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers) or (not listed and numbers[0] < 1):
        raise ValueError(f"--seeds is {text!r}; give a count such as 3, or seeds such as 1,2,3, each once")
    if not listed:
        between("compare", "the count of --seeds", numbers[0], 1, _MOST_SEEDS, whole=True)
    for number in numbers:
        between("compare", "a seed of --seeds", number, 0, 2**63 - 1, whole=True)
    return numbers if listed else range(1, numbers[0] + 1)


def _training(args: argparse.Namespace) -> dict[str, Any]:
    if args.learning_rate == 0:
        raise ValueError("--learning-rate is 0, which trains nothing; give a number above 0")
    given = {key: getattr(args, key) for key in ("iterations", "batch_size", "learning_rate", "optimizer")}
    if args.size:
        height, width = height_and_width("--size", args.size)
        given |= {"height": height, "width": width}
    return {key: value for key, value in given.items() if value is not None}
