"""Make a bundle's plain files from what all bundles share and from `bundles/<name>.yaml`, which is its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from shared_components.bundle_config import Training, bundles_folder, training_from

CONFIGS = ("train", "evaluate", "inference", "multi_gpu_train")
CARD = "docs/README.md"
BEGIN, END = "<!-- begin of use, written by `surgfl bundles` -->", "<!-- end of use -->"


@dataclass(frozen=True)
class Description:
    """What `bundles/<name>.yaml` says: what this bundle has of its own."""

    name: str
    title: str  # heads train.yaml
    network_def: str  # YAML text, so that the comments beside its arguments reach the configs
    tasks: str  # the same: kinds of task and their numbers, the default first
    method: str = "fedavg"
    method_is: str = "its loss; with one site alone, FedAvg's is plain training"
    training: Mapping[str, Any] = field(default_factory=dict)  # where it differs from `Training`
    metadata: Mapping[str, Any] = field(default_factory=dict)  # merged into the common metadata.json


def described_bundles(folder: Path | None = None) -> list[str]:
    """Return the names of all `<name>.yaml` in the folder of bundles."""
    return sorted(path.stem for path in (folder or bundles_folder()).glob("*.yaml"))


def read_description(name: str, folder: Path | None = None) -> Description:
    """Read `<name>.yaml` of the folder of bundles.

    Raises:
        ValueError: a key is missing or unknown.
    """
    path = (folder or bundles_folder()) / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Description)} - {"name"}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    if missing := sorted({"title", "network_def", "tasks"} - set(content)):
        raise ValueError(f"{path}: key {missing[0]!r} is missing")
    return Description(name, **content)


def bundle_files(name: str, folder: Path | None = None) -> dict[str, str]:
    """Return every file of a bundle that is not written by hand, by its path in the bundle's folder.

    In the card the part between its marks is made, the rest is kept.

    Raises:
        ValueError: the description lacks something, or the card has no marks.
    """
    folder = folder or bundles_folder()
    description = read_description(name, folder)
    training = training_from({**asdict(Training()), **description.training})
    metadata = _metadata(description, training)
    values = {
        **asdict(description),
        "network_def": description.network_def.strip(),
        "tasks": description.tasks.strip(),
        "number": lambda *args, **kwargs: _number(training, *args, **kwargs),
        "metadata": metadata,
        "begin": BEGIN,
        "end": END,
    }
    templates = Environment(
        loader=PackageLoader(__package__, ""), undefined=StrictUndefined, keep_trailing_newline=True
    )
    files = {f"configs/{c}.yaml": templates.get_template(f"{c}.yaml.j2").render(values) for c in CONFIGS}
    card = folder / name / CARD
    text = card.read_text("utf-8") if card.is_file() else templates.get_template("card.md.j2").render(values)
    return files | {
        "configs/logging.conf": _shared("logging.conf"),
        "configs/metadata.json": json.dumps(metadata, indent=2, ensure_ascii=False) + "\n",
        CARD: _between_marks(text, templates.get_template("use.md.j2").render(values), card),
        "LICENSE": (folder.parent / "LICENSE").read_text("utf-8"),
        "models/.gitkeep": "",
    }


def outdated_files(name: str, folder: Path | None = None) -> list[Path]:
    """Return the files of a bundle that are missing or differ from what its description gives."""
    root = (folder or bundles_folder()) / name
    made = bundle_files(name, folder)
    return [root / p for p, text in made.items() if not _holds(root / p, text)]


def write_bundle(name: str, folder: Path | None = None) -> list[Path]:
    """Write the files of a bundle and return those that changed."""
    root = (folder or bundles_folder()) / name
    changed = outdated_files(name, folder)
    made = bundle_files(name, folder)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path.relative_to(root).as_posix()], encoding="utf-8")
    return changed


def _metadata(description: Description, training: Training) -> dict[str, Any]:
    """Merge the bundle's metadata into the common ones, whose nulls each bundle must say."""
    metadata = _merged(json.loads(_shared("metadata.json")), description.metadata)
    if missing := [key for key, value in metadata.items() if value is None]:
        raise ValueError(f"{description.name}.yaml: metadata: {missing[0]!r} is missing")
    for tensors in metadata["network_data_format"].values():
        for tensor in tensors.values():
            tensor["spatial_shape"] = tensor["spatial_shape"] or [training.height, training.width]
    return metadata


def _merged(base: Any, own: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    return {**base, **{key: _merged(base.get(key), value) for key, value in own.items()}}


def _number(training: Training, key: str, why: str = "", *, indent: int = 2) -> str:
    """Return the line of a training setting; reasons stand in one column."""
    value = yaml.safe_dump(getattr(training, key)).splitlines()[0]  # 5e-05 would be read as text
    text = f"{key}: {value}"
    return f"{text:<{28 - indent}} # {why}" if why else text


def _between_marks(card: str, use: str, path: Path) -> str:
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path}: has no lines '{BEGIN}' and '{END}'; put them under '## Use'")
    return f"{before}{begin}\n\n{use.strip()}\n\n{end}{after}"


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _shared(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
