"""Copy bundles as stand-alone folders for MONAI's model zoo and tools, and for the Hugging Face hub."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from shared_components.common.arguments import one_of
from shared_components.common.atomic import write_bytes, write_text
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.core import shipped_weights
from shared_components.core.calibration import FILE
from shared_components.core.shipped_weights import EXPORTED, FACTS, MODEL
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import CheckpointError, load_metadata, save_pt
from shared_components.weights.bundle_files import make

PIPELINES = {  # the hub's name for each kind of task
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
    """Write a stand-alone copy of each bundle to ``out/<zoo_name>`` for MONAI's model zoo; return the folders.

    Raise ValueError if `out` exists, if two bundles have the same `zoo_name`, or as `bundle_files`.
    """
    with _appearing(out) as beside:
        for name in make.described_bundles(folder):
            root = beside / make.read_description(name, folder).zoo_name
            if root.exists():
                raise ValueError(f"{name}.yaml: zoo_name {root.name!r} is another bundle's as well; give each its own")
            _write_copy(name, root, folder)
    return sorted(out.iterdir())


def publish(name: str, out: Path, folder: Path | None = None) -> str:
    """Write a stand-alone copy of a bundle with a model card for the Hugging Face hub to a new folder.

    Return `zoo_name`, the recommended name of the hub's repository. Raise ValueError if the folder is not empty, if the
    bundle is unknown or has no weights, or as `bundle_files`.
    """
    one_of("publish", "bundle", name, make.described_bundles(folder))
    description, facts = make.read_description(name, folder), shipped_weights.shipped_facts(name, folder)
    if facts is None:
        start = f" and starts from the weights of {other!r}" if (other := description.weights_of) else ""
        instead = f"publish {other!r}" if other else "make some with `surgfl pretrain` and `surgfl ship`"
        raise CheckpointError(f"bundle {name!r} ships no weights{start}; {instead}")
    with _appearing(out) as beside:
        _write_copy(name, beside, folder)
        front = yaml.safe_dump(hub_metadata(description, facts), sort_keys=False, allow_unicode=True)
        title, rest = (beside / make.CARD).read_text("utf-8").split("\n", 1)
        load = LOAD.format(name=description.zoo_name)
        write_text(beside / "README.md", f"---\n{front}---\n\n{title}\n{load}{rest.lstrip()}")
    return description.zoo_name


def hub_metadata(description: make.Description, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of the hub's model card: licence, tags, and mean scores of the weights by domain."""
    metric, kind = shipped_weights.metric_of(facts), facts["header"]["task"]
    pipeline = "mask-generation" if make.follows_boxes(description) else PIPELINES[kind]
    results, chosen = [], shipped_weights.chosen_by(facts)
    for record in shipped_weights.shown_scores(facts):
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
        "license": "apache-2.0",  # the copy's LICENSE; docs/data_license.txt lists the training data
        "library_name": "monai",
        "pipeline_tag": pipeline,
        "tags": ["monai", "medical", "surgery", "endoscopy", "federated-learning", kind],
        "metrics": [metric.name],
        "model-index": [{"name": description.zoo_name, "results": results}],
    }


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces a new or empty folder if the block succeeds."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} exists already; name a new folder")
    beside = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}")
    try:
        yield beside
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write_copy(name: str, root: Path, folder: Path | None) -> None:
    files = make.bundle_files(name, folder, whole=True)
    for path, text in files.items():
        write_text(root / path, text)
    if FACTS not in files:
        return
    weights = shipped_weights.shipped_weights(name, folder)
    write_bytes(root / MODEL, weights.read_bytes())
    if (calibration := weights.with_name(FILE)).is_file():
        write_bytes((root / MODEL).with_name(FILE), calibration.read_bytes())
    description = make.read_description(name, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(description.all_training.seed)  # initialises the layers that the shipped weights lack
        network = build_network(read_own_yaml(description.network_def))
    save_pt(root / EXPORTED, shipped_weights.exported_state(weights, network), load_metadata(weights))
