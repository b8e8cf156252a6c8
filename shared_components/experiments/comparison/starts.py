"""Initial weights of the rows of FL-EndoViT's downstream tables: random, shipped, or from a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shared_components.core.bundle import Bundle, load_bundle
from shared_components.core.card import Card
from shared_components.core.initial_weights import FILE, RANDOM, RENDERED, load_initial_weights, source_of
from shared_components.core.initial_weights import describe_start as said
from shared_components.experiments.comparison.plan import Preset, Run, Scale, Variant, Versus, at_scale
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import CheckpointError

STARTS = {RANDOM: "Random", "imagenet": "ImageNet", "centralised": "CEN-EndoViT", "federated": "FL-EndoViT"}
"""What a row begins from, and what its label calls it."""
RESNET = "resnet"
NAMES = STARTS | {RESNET: "RN50"}
"""The same, with the start of the baseline that has another encoder."""
GIVEN = tuple(name for name in NAMES if name != RANDOM)
SHIPPED = "federated"  # what bundles ship, and so the one that no file is needed for

Files = Mapping[str, Path]
"""Files of weights by what they are: `GIVEN`."""


def given_starts(texts: Sequence[str]) -> dict[str, Path]:
    """Read ``imagenet=mae.pth`` as {"imagenet": Path("mae.pth")}; ValueError for another form, or a start twice."""
    found: dict[str, Path] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if name not in GIVEN or not file:
            raise ValueError(f"--start-of is {text!r}; give {', '.join(GIVEN)} and a file, such as {GIVEN[0]}=mae.pth")
        if name in found:
            raise ValueError(f"--start-of gives {name} twice; keep one of them")
        found[name] = Path(file).expanduser()
    return found


def start_of(row: Variant, files: Files) -> tuple[str, Path | None] | None:
    """Return what a row that names its start begins from, kind and file; None where a file is missing."""
    if row.start in files:
        return FILE, files[row.start]
    return {RANDOM: (RANDOM, None), SHIPPED: (RENDERED, None)}.get(row.start)


def with_starts(preset: Preset, files: Files, scale: Scale) -> Preset:
    """Return the table without the rows whose weights are not there, and say so below it.

    Raises:
        ValueError: A file is given that no row begins from.
        CheckpointError: It does not exist, is damaged, or does not fit a row's network.
    """
    rows = [row for row in at_scale(preset, scale).variants if row.start]
    if unused := sorted(set(files) - {row.start for row in rows}):
        raise ValueError(f"--start-of gives {unused[0]}, and no row of {preset.title!r} begins from it; leave it out")
    missing = dict.fromkeys(row.start for row in rows if start_of(row, files) is None)
    first = {(row.start, row.bundle): row for row in map(_first, rows) if row.start not in missing}
    unfit = dict.fromkeys(row.start for row in first.values() if not _fits(row, files))
    out = missing | unfit
    kept = tuple(row for row in preset.variants if row.start not in out)
    remarks = (
        preset.remark,
        _of_files(files),
        _missing_weights(missing, "not given"),
        _missing_weights(unfit, "of another network as shipped"),
    )
    pairs = [_between(one, {row.label for row in kept}) for one in preset.versus]
    return replace(
        preset,
        variants=kept,
        remark="; ".join(text for text in remarks if text),
        versus=tuple(one for one in pairs if one.rows),
    )


def _of_files(files: Files) -> str:
    """Return which file is what, such as ``CEN-EndoViT is mae.pth (1f0c22ab)``, with the first digits of its hash."""
    sources = {name: source_of(FILE, "", file) for name, file in files.items()}
    named = [f"{NAMES[name]} is {said({'start': of[0].name, 'sha256': of[1]})}" for name, of in sources.items() if of]
    return ", ".join(named)


def _missing_weights(names: Mapping[str, None], why: str) -> str:
    if not names:
        return ""
    labels = " and ".join(NAMES[name] for name in names)
    files = " ".join(f"--start-of {name}=FILE" for name in names)
    return f"without rows of {labels}, whose weights are {why}: {files}"


def _between(one: Versus, labels: set[str]) -> Versus:
    return replace(one, rows={name: pair for name, pair in one.rows.items() if set(pair) <= labels})


def _first(row: Variant) -> Variant:
    """Return the row whose run reads the start: of rows that begin after one another the first."""
    return _first(row.after) if row.after else row


def _fits(row: Variant, files: Files) -> bool:
    """Return whether shipped weights fit a row's network.

    Raises:
        CheckpointError: They are not those of their card, or a file that was given does not fit.
    """
    kind, file = start_of(row, files) or (RANDOM, None)
    _ = source_of(kind, row.bundle, file)
    try:
        _try(load_bundle(row.bundle, tasks=row.tasks, network=row.network), kind, file)
    except CheckpointError:
        if kind == FILE:
            raise
        return False
    return True


def _try(bundle: Bundle, kind: str, file: Path | None) -> None:
    """Load weights into a bundle's network without memory; CheckpointError where they do not fit."""
    with warnings.catch_warnings(action="ignore"):  # nothing is copied into a network without memory
        load_initial_weights(
            weightless(bundle.network), kind, card=Card(next(iter(bundle.tasks))), bundle=bundle.name, file=file
        )


def check_published(rows: Iterable[Run]) -> None:
    """Try the weights that rows begin from on each of their networks; CheckpointError where they do not fit."""
    bundles = {json.dumps([row.bundle, row.variant.network], sort_keys=True): row for row in rows}
    for row in bundles.values():
        _try(row.open_bundle(), row.start, row.start_weights)
