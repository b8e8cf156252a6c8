"""Read the weights that a bundle ships: `models/model.safetensors`, and their card, `models/model.json`.

`surgfl ship` writes both files. The hash in the card is checked whenever the weights are used. If two bundles share
weights, one bundle contains them, and the other bundle's `model.json` names it: `{"same_as": "pvt_fpn"}`. `surgfl
bundles --zoo` and `surgfl publish` add `models/model.pt`, which contains the same numbers for MONAI's tools.
"""

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.core.card import DASH, Metric
from shared_components.networks import bundle_config, checkpoints
from shared_components.networks.checkpoints import CheckpointError

MODEL, FACTS = "models/model.safetensors", "models/model.json"
EXPORTED = "models/model.pt"  # file for MONAI's model zoo and exporters
SAME_AS = "same_as"
KEEPER = "models/.gitkeep"  # keeps the folder without weights in git


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shipped_facts(bundle: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the card of a bundle's weights in ``folder``, or None without weights; CheckpointError if damaged."""
    return _folder_and_card(bundle, folder)[1]


def _folder_and_card(bundle: str, folder: Path | None) -> tuple[Path, dict[str, Any] | None]:
    root = (folder or bundle_config.bundles_folder()) / bundle
    facts = _card(root / FACTS)
    if facts is not None and isinstance(owner := facts.get(SAME_AS), str) and Path(owner).name == owner:
        root = root.with_name(owner)
        facts = _card(root / FACTS)
    if facts is not None and not isinstance(facts.get("sha256"), str):
        raise CheckpointError(f"{root / FACTS}: has no 'sha256' of the weights; run `surgfl ship` again")
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
    """Return the file of a bundle's shipped weights; see `verified_weights`."""
    return verified_weights(bundle, folder, instead=instead)[0]


def verified_weights(
    bundle: str, folder: Path | None = None, *, instead: str = "use start: random"
) -> tuple[Path, str]:
    """Return file and hash of a bundle's weights; CheckpointError, with the remedy ``instead``, if they are wrong."""
    root, facts = _folder_and_card(bundle, folder)
    path = root / MODEL
    if facts is None or not path.is_file():
        shares = f"uses the weights of {root.name!r}" if root.name != bundle else "ships no weights"
        raise CheckpointError(
            f"bundle {bundle!r} {shares} ({path if facts else root / FACTS} does not exist); "
            f"{instead}, or make some with `surgfl pretrain` and `surgfl ship`"
        )
    checkpoints.refuse_pointer(path)
    if (sha256 := sha256_of(path)) != facts["sha256"]:
        raise CheckpointError(
            f"{path}: weights with the hash {sha256[:8]}, but model.json has {facts['sha256'][:8]}; take both files "
            "from the same release"
        )
    return path, sha256


def exported_state(weights: Path, network: nn.Module) -> dict[str, Tensor]:
    """Return the content of `model.pt`: every tensor of the network, with the stored weights unchanged.

    MONAI's exporters and MONAI Label need complete state dicts. Tensors that only training needs (`training_only`) and
    that the weights lack come from the given network, in half precision if the weights have half precision. The network
    (the bundle's `network_def`) is changed in place. Raises CheckpointError if the weights are for another network.
    """
    stored = checkpoints.stored_weights(weights)
    checkpoints.load_into(network, weights)
    half = any(value.dtype == torch.float16 for value in stored.values())
    return {
        name: stored.get(name, value.half() if half and value.is_floating_point() else value)
        for name, value in network.state_dict().items()
    }


def is_export(exported: Path, weights: Path) -> bool:
    """Return whether a `model.pt` has the weights' tensors, bit for bit, and header; CheckpointError if damaged."""
    if not (exported.is_file() and weights.is_file()):
        return False
    if checkpoints.load_metadata(exported) != checkpoints.load_metadata(weights):
        return False
    state, expected = checkpoints.stored_weights(exported), checkpoints.stored_weights(weights)
    alike = (n in state and state[n].dtype == v.dtype and torch.equal(state[n], v) for n, v in expected.items())
    return all(alike)


def metric_of(facts: Mapping[str, Any]) -> Metric:
    """Return the metric of a card's scores."""
    return Metric.from_json(facts["metric"])


def mean_scores(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the mean of a card's scores by kind of rendered look: "named look" and "unseen look"."""
    groups = _grouped((record["where"], record) for record in facts["scores"] if record["where"] != "real")
    return {where: _mean(records, where, metric_of(facts).name) for where, records in groups.items()}


def _grouped(pairs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, record in pairs:
        groups.setdefault(name, []).append(record)
    return groups


def mean_of_real(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the mean scores over all real sites, by set of classes, named with the sites used for model selection."""
    means, chosen = [], chosen_by(facts)
    real = ((record["classes"] or DASH, record) for record in facts["scores"] if record["where"] == "real")
    for classes, records in _grouped(real).items():
        mean, count = _mean(records, "real site", metric_of(facts).name), sum(r["name"] in chosen for r in records)
        text = f" of which {count} chose the weights," if count else ""
        means.append(mean | {"name": f"{mean['name']},{text} {classes}"})
    return means


def steps_text(facts: Mapping[str, Any]) -> str:
    """Return the number of training steps, and the planned number if training stopped early."""
    planned = sum(int(size.rpartition(":")[2]) for size in facts["sizes"])
    of_more = f" of {planned:,}" if facts["steps"] < planned else ""
    return f"{facts['steps']:,}{of_more} steps" + (", stopped early" if of_more else "")


def chosen_by(facts: Mapping[str, Any]) -> frozenset[str]:
    """Return the real sites in a card's scores that were used for model selection."""
    real = {record["name"] for record in facts["scores"] if record["where"] == "real"}
    scores = facts.get("choice", {}).get("scores", {})
    return frozenset(real.intersection(*scores.values())) if scores else frozenset()


def score_head(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the head of the table of `score_rows`."""
    metric = metric_of(facts)
    return "Test frames of", "Classes", "Frames", "By class", metric.heading


def shown_scores(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a card's scores for display: named looks, means by kind of look, and real sites."""
    named, real = ([r for r in facts["scores"] if r["where"] == where] for where in ("named look", "real"))
    return [*named, *mean_scores(facts).values(), *real]


def score_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return `shown_scores` as table rows; a star marks sites of `chosen_by`."""
    chosen = chosen_by(facts)
    rows = [_row(record, metric_of(facts)) for record in shown_scores(facts)]
    return [(name + r" \*" * (name in chosen), *rest) for name, *rest in rows]


def track_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return table rows of tracking from a box, if any: looks, network, mean IoU by frame, and number of objects."""
    return [
        (looks, who, *(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values))
        for looks, checks in facts.get("checks", {}).items()
        for who, values in (checks.items() if "objects" in checks else ())
    ]


def control_head(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the head of the table of `control_rows`."""
    return "Test frames of", "Network", *(Metric.from_json(metric).heading for metric in facts["metrics"])


def control_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return table rows of the network and its baselines (`patches.controls`), by kind of look or real site."""
    groups = _grouped(
        (record["name"] if record["where"] == "real" else f"{record['where']}s", record)
        for record in (facts["scores"] if "metrics" in facts else ())
        if "controls" in record
    )
    rows = []
    for name, records in groups.items():
        for who in ("trained", *records[0]["controls"]):
            scores = [record if who == "trained" else record["controls"][who] for record in records]
            rows.append((name, who, *(_mean_text(scores, Metric.from_json(metric)) for metric in facts["metrics"])))
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
