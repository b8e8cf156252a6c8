"""Copy bundles so that they run on their own: for MONAI's model zoo and tools, and for the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from shared_components.common.arguments import one_of
from shared_components.common.atomic import write_bytes, write_text
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.core.calibration import FILE
from shared_components.core.shipped_weights import (
    EXPORTED,
    FACTS,
    MODEL,
    chosen_by,
    exported_state,
    metric_of,
    shipped_facts,
    shipped_weights,
    shown_scores,
)
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import CheckpointError, load_metadata, save_pt
from shared_components.weights.bundle_files.make import (
    CARD,
    Description,
    bundle_files,
    described_bundles,
    follows_boxes,
    read_description,
)

PIPELINES = {  # what the hub calls the use of a model that has learnt a kind of task
    "classification": "video-classification",
    "depth": "depth-estimation",
    "phases": "video-classification",
    "reconstruction": "image-feature-extraction",
    "segmentation": "image-segmentation",
    "triplets": "image-classification",
}
LOAD = """
Install SurgFL and MONAI, and replace `USER` with the publisher's name:

    import monai
    network = monai.bundle.load(
        "{name}", source="huggingface_hub", version="main",
        repo="USER/{name}",
    )

"""


def write_zoo(out: Path, folder: Path | None = None) -> list[Path]:
    """Write a copy of every bundle with `model.pt`, by its `zoo_name`, as MONAI's model zoo and tools look for it.

    Args:
        out: a new folder, which appears when all is written. Its folders, one a bundle, are returned.
        folder: as of `bundle_files`.

    Raises:
        ValueError: it is there already, two bundles have one `zoo_name`, or as of `bundle_files`.
    """
    with _appearing(out) as beside:
        for name in described_bundles(folder):
            root = beside / read_description(name, folder).zoo_name
            if root.exists():
                raise ValueError(f"{name}.yaml: zoo_name {root.name!r} is another bundle's as well; give each its own")
            _write_copy(name, root, folder)
    return sorted(out.iterdir())


def publish(name: str, out: Path, folder: Path | None = None) -> str:
    """Write the zoo's copy of a bundle that ships weights, with a model card of the Hugging Face hub as README.md.

    Args:
        name: of the bundle.
        out: a new folder, or an empty one, which is filled when all is written.
        folder: as of `bundle_files`.

    Returns:
        the bundle's `zoo_name`, which the hub's repository should have.

    Raises:
        ValueError: there is something, the bundle is unknown or has no weights, or as of `bundle_files`.
    """
    one_of("publish", "bundle", name, described_bundles(folder))
    description, facts = read_description(name, folder), shipped_facts(name, folder)
    if facts is None:
        begins = f", and begins from those of {other!r}" if (other := description.weights_of) else ""
        instead = f"publish {other!r}" if other else "make some with `surgfl pretrain` and `surgfl ship`"
        raise CheckpointError(f"bundle {name!r} ships no weights{begins}; {instead}")
    with _appearing(out) as beside:
        _write_copy(name, beside, folder)
        front = yaml.safe_dump(hub_metadata(description, facts), sort_keys=False, allow_unicode=True)
        title, rest = (beside / CARD).read_text("utf-8").split("\n", 1)
        load = LOAD.format(name=description.zoo_name)
        write_text(beside / "README.md", f"---\n{front}---\n\n{title}\n{load}{rest.lstrip()}")
    return description.zoo_name


def hub_metadata(description: Description, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what heads a model card of the hub: licence, tags, and the mean scores of the weights by domain."""
    metric, kind = metric_of(facts), facts["header"]["task"]
    pipeline = "mask-generation" if follows_boxes(description) else PIPELINES[kind]
    results, chosen = [], chosen_by(facts)
    for record in shown_scores(facts):
        if (mean := record[metric.name].get("mean")) is not None:
            frames = "real-frames" if record["where"] == "real" else "rendered-scenes"
            name = ", ".join(filter(None, (record["name"], record["classes"])))
            dataset: dict[str, Any] = {"type": frames, "config": name, "name": name}  # the hub merges equal configs
            if record["name"] in chosen:
                dataset["args"] = {"chose_the_weights": True}
            results.append({
                "task": {"type": pipeline, "name": description.metadata["task"]},
                "dataset": dataset,
                "metrics": [{"type": metric.name, "name": metric.label, "value": round(mean, 4)}],
            })  # fmt: skip
    return {
        "license": "apache-2.0",  # the copy's LICENSE; docs/data_license.txt says which data the weights have seen
        "library_name": "monai",
        "pipeline_tag": pipeline,
        "tags": ["monai", "medical", "surgery", "endoscopy", "federated-learning", kind],
        "metrics": [metric.name],
        "model-index": [{"name": description.zoo_name, "results": results}],
    }


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Yield a folder beside a new or empty one, which takes its place when the block ends well."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} exists already; name a new folder")
    beside = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}")
    try:
        yield beside
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write_copy(name: str, root: Path, folder: Path | None) -> None:
    files = bundle_files(name, folder, whole=True)
    for path, text in files.items():
        write_text(root / path, text)
    if FACTS in files:
        weights = shipped_weights(name, folder)
        write_bytes(root / MODEL, weights.read_bytes())
        if (calibration := weights.with_name(FILE)).is_file():
            write_bytes((root / MODEL).with_name(FILE), calibration.read_bytes())
        save_pt(root / EXPORTED, _export(read_description(name, folder), weights), load_metadata(weights))


def _export(description: Description, weights: Path) -> dict[str, Tensor]:
    """Return the content of `model.pt`: the shipped weights, and initial ones of the training's seed for the rest."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(description.all_training.seed)
        network = build_network(read_own_yaml(description.network_def))
    return exported_state(weights, network)
