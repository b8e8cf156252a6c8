"""The weights that a bundle ships: `models/model.safetensors`, and their card, `models/model.json`.

Both come from `surgfl ship`. The card's hash is compared whenever the weights are used, so that a file of another
release, or half of a copy, is never trained from. Where two bundles have the same weights, one holds them, and the
other's `model.json` says whose they are: `{"same_as": "pvt_fpn"}`. `models/model.pt`, which has the same numbers for
MONAI's tools, is in the copies that `surgfl bundles --zoo` and `surgfl publish` make.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.card import DASH, Metric
from shared_components.networks import bundle_config
from shared_components.networks.checkpoints import (
    CheckpointError,
    load_into,
    load_metadata,
    refuse_pointer,
    stored_weights,
)

MODEL, FACTS = "models/model.safetensors", "models/model.json"
EXPORTED = "models/model.pt"  # what MONAI's model zoo and exporters expect
SAME_AS = "same_as"
KEEPER = "models/.gitkeep"  # holds the folder where there are no weights


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shipped_facts(bundle: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the card of a bundle's weights; None where it ships none.

    ``folder`` of bundles is by default the one beside the package.

    Raises:
        CheckpointError: the file is no JSON with the hash of the weights, or with the bundle whose they are.
    """
    return _held(bundle, folder)[1]


def _held(bundle: str, folder: Path | None) -> tuple[Path, dict[str, Any] | None]:
    """Return the folder of the bundle that holds a bundle's weights, and their card."""
    root = (folder or bundle_config.bundles_folder()) / bundle
    facts = _card(root / FACTS)
    if facts is not None and isinstance(whose := facts.get(SAME_AS), str) and Path(whose).name == whose:
        root = root.with_name(whose)
        facts = _card(root / FACTS)
    if facts is not None and not isinstance(facts.get("sha256"), str):
        raise CheckpointError(f"{root / FACTS}: names no 'sha256' of the weights; run `surgfl ship` again")
    return root, facts


def _card(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}); run `surgfl ship` again") from error
    return facts if isinstance(facts, dict) else {}


def shipped_weights(bundle: str, folder: Path | None = None, *, instead: str = "use start: random") -> Path:
    """Return the file of the weights that a bundle ships; see `verified_weights`."""
    return verified_weights(bundle, folder, instead=instead)[0]


def verified_weights(
    bundle: str, folder: Path | None = None, *, instead: str = "use start: random"
) -> tuple[Path, str]:
    """Return the file of the weights that a bundle ships, and its hash, which is the one in `model.json`.

    ``folder`` is as in `shipped_facts`; ``instead``, the remedy that the error names.

    Raises:
        CheckpointError: the bundle ships none, or the file is not the card's.
    """
    root, facts = _held(bundle, folder)
    path = root / MODEL
    if facts is None or not path.is_file():
        shares = f"has the weights of {root.name!r}" if root.name != bundle else "ships no weights"
        raise CheckpointError(
            f"bundle {bundle!r} {shares} ({path if facts else root / FACTS} does not exist); "
            f"{instead}, or make some with `surgfl pretrain` and `surgfl ship`"
        )
    refuse_pointer(path)
    if (found := sha256_of(path)) != facts["sha256"]:
        raise CheckpointError(
            f"{path}: weights whose hash is not the card's ({found[:8]}, and {facts['sha256'][:8]} in model.json); "
            "take both files from one release"
        )
    return path, found


def exported_state(weights: Path, network: nn.Module) -> dict[str, Tensor]:
    """Return what `model.pt` holds: every tensor of the network, those of the weights as they are stored.

    MONAI's exporters and MONAI Label take no state dict that lacks a name. What no prediction needs and the weights
    lack (`training_only`) is the given network's (of the bundle's `network_def`, changed in place), in half precision
    where the weights are.

    Raises:
        CheckpointError: the weights are of another network.
    """
    stored = stored_weights(weights)
    load_into(network, weights)
    half = any(value.dtype == torch.float16 for value in stored.values())
    return {
        name: stored.get(name, value.half() if half and value.is_floating_point() else value)
        for name, value in network.state_dict().items()
    }


def is_export(exported: Path, weights: Path) -> bool:
    """Return whether a `model.pt` holds the same tensors, bit for bit, and the same header as the weights.

    Raises:
        CheckpointError: a file is damaged.
    """
    if not (exported.is_file() and weights.is_file()) or load_metadata(exported) != load_metadata(weights):
        return False
    found, expected = stored_weights(exported), stored_weights(weights)
    return all(
        name in found and found[name].dtype == value.dtype and torch.equal(found[name], value)
        for name, value in expected.items()
    )


def metric_of(facts: Mapping[str, Any]) -> Metric:
    """Return the metric that a card's scores are read by."""
    return Metric.from_json(facts["metric"])


def mean_scores(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the mean of a card's scores over each kind of rendered look: "named look" and "unseen look"."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in facts["scores"]:
        if record["where"] != "real":
            found.setdefault(record["where"], []).append(record)
    return {where: _mean(records, where, metric_of(facts).name) for where, records in found.items()}


def mean_of_real(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the means of a card's scores over all real sites, one for each choice of classes.

    Each name has the number of sites that chose the weights.
    """
    chosen = chosen_by(facts)
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in facts["scores"]:
        if record["where"] == "real":
            found.setdefault(record["classes"] or DASH, []).append(record)
    means = {classes: _mean(records, "real site", metric_of(facts).name) for classes, records in found.items()}
    many = {classes: sum(record["name"] in chosen for record in records) for classes, records in found.items()}
    said = {classes: f" of which {count} chose the weights," * bool(count) for classes, count in many.items()}
    return [mean | {"name": f"{mean['name']},{said[classes]} {classes}"} for classes, mean in means.items()]


def steps_text(facts: Mapping[str, Any]) -> str:
    """Return the steps of a training, and how many its command asks for if it was stopped before its end."""
    planned = sum(int(size.rpartition(":")[2]) for size in facts["sizes"])
    of_more = f" of {planned:,}" if facts["steps"] < planned else ""
    return f"{facts['steps']:,}{of_more} steps" + (", stopped early" if of_more else "")


def chosen_by(facts: Mapping[str, Any]) -> frozenset[str]:
    """Return the real sites in a card's scores that chose the weights among the candidates."""
    real = {record["name"] for record in facts["scores"] if record["where"] == "real"}
    scores = facts.get("choice", {}).get("scores", {})
    return frozenset(real.intersection(*scores.values())) if scores else frozenset()


def score_head(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Head the table of `score_rows`."""
    metric = metric_of(facts)
    return "Test frames of", "Classes", "Frames", "By class", metric.heading


def shown_scores(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a card's scores as they are shown: named looks, the means of each kind of look, and real sites."""
    named, real = ([r for r in facts["scores"] if r["where"] == where] for where in ("named look", "real"))
    return [*named, *mean_scores(facts).values(), *real]


def score_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return `shown_scores` as rows of text; a star marks sites of `chosen_by`."""
    chosen = chosen_by(facts)
    rows = [_row(record, metric_of(facts)) for record in shown_scores(facts)]
    return [(name + r" \*" * (name in chosen), *rest) for name, *rest in rows]


def track_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return how well objects were followed from a box, as rows: looks, who follows, and the mean IoU by frame.

    Of a network that does not, there are none. The last row of each kind of looks counts the objects.
    """
    rows = []
    for looks, found in facts.get("checks", {}).items():
        for who, values in found.items() if "objects" in found else ():
            said = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in values]
            rows.append((looks, who, *said))
    return rows


def control_head(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Head the table of `control_rows`."""
    return "Test frames of", "Network", *(Metric.from_json(metric).heading for metric in facts["metrics"])


def control_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the trained network beside its controls (`patches.controls`) by every metric, as rows of text.

    Of rendered looks they are means over each kind, of real sites one by one. Weights without controls have no rows.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in facts["scores"] if "metrics" in facts else ():
        if "controls" in record:
            name = record["name"] if record["where"] == "real" else f"{record['where']}s"
            groups.setdefault(name, []).append(record)
    rows = []
    for name, records in groups.items():
        for who in ("trained", *records[0]["controls"]):
            found = [record if who == "trained" else record["controls"][who] for record in records]
            rows.append((name, who, *(_mean_text(found, Metric.from_json(metric)) for metric in facts["metrics"])))
    return rows


def _mean_text(records: Sequence[Mapping[str, Any]], metric: Metric) -> str:
    values = [value for record in records if (value := record[metric.name].get("mean")) is not None]
    return metric.text(statistics.mean(values)) if values else DASH


def _mean(records: Sequence[Mapping[str, Any]], where: str, metric: str) -> dict[str, Any]:
    names = dict.fromkeys(name for record in records for name in record[metric])
    known = {n: [r[metric][n] for r in records if r[metric].get(n) is not None] for n in names}
    means = {name: statistics.mean(values) if values else None for name, values in known.items()}
    title = f"mean of {len(records)} {where}{'s' if len(records) > 1 else ''}"
    frames = sum(record["frames"] for record in records)
    of_all = {"where": records[0]["where"], "classes": records[0]["classes"], "frames": frames}
    return {"name": title, **of_all, metric: means}


def _row(record: Mapping[str, Any], metric: Metric) -> tuple[str, ...]:
    values = {name: DASH if v is None else metric.text(v) for name, v in record[metric.name].items()}
    mean = values.pop("mean", DASH)
    by_class = ", ".join(f"{name} {value}" for name, value in values.items())
    return record["name"], record["classes"] or DASH, str(record["frames"]), by_class or DASH, mean
