"""Choose the initial weights of FL-EndoViT's downstream rows: random, shipped, or from a file."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shared_components.core import initial_weights
from shared_components.core.bundle import Bundle, load_bundle
from shared_components.core.card import Card
from shared_components.core.initial_weights import FILE, RANDOM, RENDERED, load_initial_weights, source_of
from shared_components.experiments.comparison.names import GIVEN, NAMES
from shared_components.experiments.comparison.plan import Preset, Run, Scale, Variant, at_scale
from shared_components.networks.bundle_config import weightless
from shared_components.networks.checkpoints import CheckpointError

SHIPPED = "federated"  # start of the shipped weights, which needs no file

Files = Mapping[str, Path]
"""Weight files by start, a name of `GIVEN`."""


def given_starts(texts: Sequence[str]) -> dict[str, Path]:
    """Parse ``imagenet=mae.pth`` as {"imagenet": Path("mae.pth")}; raise ValueError for other forms or duplicates."""
    files: dict[str, Path] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if name not in GIVEN or not file:
            raise ValueError(f"--start-of is {text!r}; give {', '.join(GIVEN)} and a file, such as {GIVEN[0]}=mae.pth")
        if name in files:
            raise ValueError(f"--start-of gives {name} twice; give it once")
        files[name] = Path(file).expanduser()
    return files


def start_of(row: Variant, files: Files) -> tuple[str, Path | None] | None:
    """Return kind and file of a row's start; None if the row names no start or its file is missing."""
    if row.start in files:
        return FILE, files[row.start]
    return {RANDOM: (RANDOM, None), SHIPPED: (RENDERED, None)}.get(row.start)


def with_starts(preset: Preset, files: Files, scale: Scale) -> Preset:
    """Remove the rows without weights, and name them in the remark.

    Raise ValueError for a file that no row uses, and CheckpointError for a file that does not fit a row's network.
    """
    rows = [row for row in at_scale(preset, scale).variants if row.start]
    if unused := sorted(set(files) - {row.start for row in rows}):
        raise ValueError(f"--start-of gives {unused[0]}, but no row of {preset.title!r} starts from it; leave it out")
    missing = dict.fromkeys(row.start for row in rows if start_of(row, files) is None)
    first_runs = {(row.start, row.bundle): row for row in map(_first, rows) if row.start not in missing}
    unfit = dict.fromkeys(row.start for row in first_runs.values() if not _fits(row, files))
    kept = tuple(row for row in preset.variants if row.start not in missing | unfit)
    labels = {row.label for row in kept}
    pairs = [replace(v, rows={n: pair for n, pair in v.rows.items() if set(pair) <= labels}) for v in preset.versus]
    left_out = (
        _left_out(missing, "no weights are given"),
        _left_out(unfit, "the shipped weights do not fit the network"),
    )
    remark = ". ".join(filter(None, (preset.remark, _describe_files(files), *left_out)))
    return replace(preset, variants=kept, remark=remark, versus=tuple(v for v in pairs if v.rows))


def _describe_files(files: Files) -> str:
    """Return names and files of the starts with the first digits of their hashes: ``RN50 is a.pth (1f0c22ab)``."""
    sources = {name: source for name, file in files.items() if (source := source_of(FILE, "", file))}
    texts = {
        n: initial_weights.describe_start({"start": path.name, "sha256": sha256})
        for n, (path, sha256) in sources.items()
    }
    return ", ".join(f"{NAMES[name]} is {text}" for name, text in texts.items())


def _left_out(names: Mapping[str, None], why: str) -> str:
    if not names:
        return ""
    labels = " and ".join(NAMES[name] for name in names)
    return f"Without rows of {labels}, since {why}: {' '.join(f'--start-of {name}=FILE' for name in names)}"


def _first(row: Variant) -> Variant:
    """Return the row whose run loads the initial weights: the first of consecutive rows."""
    return _first(row.after) if row.after else row


def _fits(row: Variant, files: Files) -> bool:
    """Return whether shipped weights fit a row's network; raise CheckpointError for other unsuitable weights."""
    kind, file = start_of(row, files) or (RANDOM, None)
    _ = source_of(kind, row.bundle, file)
    try:
        _try_weights(load_bundle(row.bundle, tasks=row.tasks, network=row.network), kind, file)
    except CheckpointError:
        if kind == FILE:
            raise
        return False
    return True


def _try_weights(bundle: Bundle, kind: str, file: Path | None) -> None:
    """Raise CheckpointError if weights do not fit a bundle's network, which is built without memory."""
    with warnings.catch_warnings(action="ignore"):  # PyTorch warns that nothing is copied
        load_initial_weights(
            weightless(bundle.network), kind, card=Card(next(iter(bundle.tasks))), bundle=bundle.name, file=file
        )


def check_published(rows: Iterable[Run]) -> None:
    """Raise CheckpointError if the rows' initial weights do not fit one of their networks."""
    by_network = {json.dumps([row.bundle, row.variant.network], sort_keys=True): row for row in rows}
    for row in by_network.values():
        _try_weights(row.open_bundle(), row.start, row.start_weights)
