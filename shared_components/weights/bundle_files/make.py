"""Generate a bundle's files from the shared templates and `bundles/<name>.yaml`."""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from shared_components.common.atomic import between_marks, differing, write_text
from shared_components.common.counted import counted
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.core.calibration import ALLOWED, FILE, Facts, calibration_of, error_rows, read_calibration
from shared_components.core.initial_weights import RANDOM
from shared_components.core.shipped_weights import (
    EXPORTED,
    FACTS,
    KEEPER,
    MODEL,
    SAME_AS,
    chosen_by,
    control_head,
    control_rows,
    mean_of_real,
    mean_scores,
    metric_of,
    score_head,
    score_rows,
    shipped_facts,
    shipped_weights,
    steps_text,
    track_rows,
)
from shared_components.core.training_settings import Training, training_from
from shared_components.data.samples import WHOLE
from shared_components.networks.bundle_config import bundles_folder
from shared_components.networks.checkpoints import CheckpointError
from shared_components.weights.pretraining.tracks import INTERVAL

CONFIGS = ("train", "evaluate", "inference", "multi_gpu_train", "wandb")
APPS = ("monai-label", "monai-deploy")  # which read `preprocessing` and `postprocessing`: of any version
CARD, DATA_LICENCE = "docs/README.md", "docs/data_license.txt"
MADE_PARTS = {"weights": "## Weights", "use": "## Use"}  # of a card, and the headings that they stand under


@dataclass(frozen=True)
class Description:
    """The content of `bundles/<name>.yaml`: what this bundle has of its own."""

    name: str
    zoo_name: str  # of its copies, as MONAI's model zoo names bundles; the bundle's own name where it says none
    title: str  # heads train.yaml
    network_def: str  # YAML text, so that the comments beside its arguments reach the configs
    tasks: str  # the same: kinds of task and their numbers, the default first
    method: str = "fedavg"
    method_is: str = "its loss; at one site FedAvg is plain training"
    weights_of: str = ""  # the bundle whose shipped weights it begins from; empty: its own
    same_weights_as: str = ""  # the bundle whose shipped weights are its own as well: the file is there alone
    published_weights: str = (  # that `start` reads besides, in Markdown
        "ImageNet weights of the encoder (`pvt_v2_b0.pth` from github.com/whai362/PVT)"
    )
    training: Mapping[str, Any] = field(default_factory=dict)  # where it differs from `Training`
    alone: Mapping[str, Any] = field(default_factory=dict)  # where one hospital's own training differs from that
    paper_network: Mapping[str, Any] = field(default_factory=dict)  # arguments of `network_def` in paper.yaml
    paper_start: str = ""  # name of the published weights that the user gives paper.yaml; empty: the seed's
    metadata: Mapping[str, Any] = field(default_factory=dict)  # merged into the common metadata.json

    @property
    def all_training(self) -> Training:
        """The whole training section: the defaults with the bundle's own values."""
        return training_from({**asdict(Training()), **self.training})

    @property
    def training_alone(self) -> Training:
        """The training section of `train.yaml`: what one hospital does that says nothing else."""
        return training_from({**asdict(self.all_training), **self.alone})


def marks(part: str) -> tuple[str, str]:
    """Return the lines between which a part of a card is made."""
    return f"<!-- begin of {part}, written by `surgfl bundles` -->", f"<!-- end of {part} -->"


def described_bundles(folder: Path | None = None) -> list[str]:
    """Return the names of all `<name>.yaml` in the folder of bundles."""
    return sorted(path.stem for path in (folder or bundles_folder()).glob("*.yaml"))


def read_description(name: str, folder: Path | None = None) -> Description:
    """Read `<name>.yaml` of the folder of bundles.

    Raises:
        ValueError: a key is missing or unknown.
    """
    path = (folder or bundles_folder()) / f"{name}.yaml"
    content = read_own_yaml(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Description)} - {"name"}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    if missing := sorted({"title", "network_def", "tasks"} - set(content)):
        raise ValueError(f"{path}: key {missing[0]!r} is missing")
    description = Description(name, **{"zoo_name": name} | content)
    if not re.fullmatch("[a-z0-9]+(_[a-z0-9]+)*", str(description.zoo_name)):
        raise ValueError(f"{path}: zoo_name is {description.zoo_name!r}; give lower-case words joined by underscores")
    if (other := description.same_weights_as) and other not in set(described_bundles(folder)) - {name}:
        others = ", ".join(described_bundles(folder))
        raise ValueError(f"{path}: same_weights_as is {other!r}; name another of the bundles {others}")
    return description


def bundle_files(name: str, folder: Path | None = None, *, whole: bool = False) -> dict[str, str]:
    """Return every file of a bundle that is not written by hand, by its path in the bundle's folder.

    In the card the parts between marks are made, the rest is kept. ``whole`` ones are of a copy elsewhere, which holds
    its weights itself, and `model.pt` with them; its card names other documents of SurgFL without a link.

    Raises:
        ValueError: the description lacks something, the card has no marks, or what `model.json` says is damaged.
    """
    folder = folder or bundles_folder()
    description = read_description(name, folder)
    training, alone = description.all_training, description.training_alone
    other = description.same_weights_as
    facts = shipped_facts(other or name, folder)
    model = f"../{other}/{MODEL}" if other and not whole else MODEL
    size = _input_size(alone, facts)
    metadata = _metadata(description, size, facts)
    if facts is not None:
        metadata |= _of_weights(facts, model, whole=whole)
    values = {
        **asdict(description),
        "network_def": description.network_def.strip(),
        "tasks": description.tasks.strip(),
        "number": lambda *args, **kwargs: _number(alone, *args, **kwargs),
        "of_paper": lambda *args, **kwargs: _number(training, *args, **kwargs),
        "metadata": metadata,
        "size": size,
        "frames": int(_default_task(description).get("frames", 1)),
        "whole": _default_task(description).get("targets_of") in WHOLE,
        "follows_boxes": follows_boxes(description),
        "marks": marks,
        "facts": facts,
        "model": model,
        "whole_copy": whole,
        "place": description.zoo_name if whole else f"bundles/{name}",
        "begun": _begun(facts or {}),
        "ships": facts is not None or (description.weights_of and shipped_facts(description.weights_of, folder)),
        "seconds_apart": INTERVAL,
        "counted": counted,
        "steps_text": steps_text,
        "chosen_by": chosen_by,
        "score_head": score_head,
        "score_rows": score_rows,
        "control_head": control_head,
        "control_rows": control_rows,
        "track_rows": track_rows,
        "certainty": _certainty(folder / (other or name), facts),
        "error_rows": error_rows,
        "allowed": ALLOWED,
    }
    templates = _templates()
    configs = CONFIGS + (("paper",) if description.alone else ())
    files = {f"configs/{c}.yaml": templates.get_template(f"{c}.yaml.j2").render(values) for c in configs}
    card = folder / name / CARD
    text = card.read_text("utf-8") if card.is_file() else templates.get_template("card.md.j2").render(values)
    for part in MADE_PARTS:
        made = templates.get_template(f"{part}.md.j2").render(values)
        text = between_marks(text, marks(part), made.strip(), card, f"under '{MADE_PARTS[part]}'")
    text = _without_links(text, f"bundles/{name}/{CARD}") if whole else text
    if other and not whole:
        files[FACTS] = json.dumps({SAME_AS: other}) + "\n"
    elif whole and facts is not None:
        files[FACTS] = shipped_weights(name, folder).with_name(Path(FACTS).name).read_text("utf-8")
    licence = folder.parent / "LICENSE"
    licence = licence if licence.is_file() else folder / name / "LICENSE"  # installed, there is none beside the folder
    return files | {
        "configs/train.json": _as_json(files["configs/train.yaml"]),
        "configs/logging.conf": _shared("logging.conf"),
        "configs/metadata.json": json.dumps(metadata, indent=2, ensure_ascii=False) + "\n",
        CARD: text,
        DATA_LICENCE: templates.get_template("data_license.txt.j2").render(values),
        "LICENSE": licence.read_text("utf-8"),
        **({} if facts or other else {KEEPER: ""}),
    }


@functools.cache
def _templates() -> Environment:
    """Return the templates of this folder, each compiled once for all bundles."""
    return Environment(  # nosec B701 # it writes YAML and Markdown of our own, never HTML
        loader=PackageLoader(__package__, ""), undefined=StrictUndefined, keep_trailing_newline=True
    )


def outdated_files(name: str, folder: Path | None = None) -> list[Path]:
    """Return the files of a bundle that are missing, left over, or differ from what its description gives."""
    root = (folder or bundles_folder()) / name
    return _outdated(root, bundle_files(name, folder))


def _outdated(root: Path, made: Mapping[str, str]) -> list[Path]:
    left_over = [root / KEEPER] if KEEPER not in made and (root / KEEPER).is_file() else []
    return [*differing({root / path: text for path, text in made.items()}), *left_over]


def write_bundle(name: str, folder: Path | None = None) -> list[Path]:
    """Write the files of a bundle and return those that changed."""
    root = (folder or bundles_folder()) / name
    made = bundle_files(name, folder)
    changed = _outdated(root, made)
    for path in changed:
        text = made.get(path.relative_to(root).as_posix())
        if text is not None:
            write_text(path, text)
        else:
            path.unlink()
    return changed


def write_with_sharing(bundles: Sequence[str], folder: Path | None = None) -> list[Path]:
    """Do `write_bundle` for bundles and for those that share their weights; the files that changed are returned."""
    return [path for name in _with_sharing(bundles, folder) for path in write_bundle(name, folder)]


def check_with_sharing(bundles: Sequence[str], folder: Path | None = None) -> None:
    """Raise what `write_with_sharing` would, and write nothing."""
    for name in _with_sharing(bundles, folder):
        outdated_files(name, folder)


def _with_sharing(bundles: Sequence[str], folder: Path | None) -> list[str]:
    sharing = [one for one in described_bundles(folder) if read_description(one, folder).same_weights_as in bundles]
    return list(dict.fromkeys([*bundles, *sharing]))


def check_weights(name: str, folder: Path | None = None) -> None:
    """Refuse weights in a bundle's folder that are not those of its `model.json`, and a calibration of others.

    Raises:
        CheckpointError: one of both files is missing, a hash is another, or the weights are those of another bundle.
    """
    model = (folder or bundles_folder()) / name / MODEL
    if model.is_file() and (other := read_description(name, folder).same_weights_as):
        raise CheckpointError(
            f"{model}: {name}.yaml says same_weights_as: {other}; remove the file, or the key and model.json beside it"
        )
    if model.is_file() or shipped_facts(name, folder) is not None:
        weights = shipped_weights(name, folder)
        if calibration_of(weights) is None and weights.with_name(FILE).is_file():
            raise CheckpointError(
                f"{weights.with_name(FILE)}: is of other weights than those beside it; run `surgfl calibrate {name}`"
            )


def _metadata(description: Description, size: tuple[int, int], facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the bundle's metadata into the common ones, whose nulls each bundle must say."""
    metadata = _merged(json.loads(_shared("metadata.json")), description.metadata)
    if missing := [key for key, value in metadata.items() if value is None]:
        raise ValueError(f"{description.name}.yaml: metadata: {missing[0]!r} is missing")
    for tensors in metadata["network_data_format"].values():
        for tensor in tensors.values():
            tensor["spatial_shape"] = tensor["spatial_shape"] or list(size)
            tensor["channel_def"] = dict(list(tensor["channel_def"].items())[: tensor["num_channels"]])
    if facts is not None and "segmentation" in read_own_yaml(description.tasks) and not follows_boxes(description):
        metadata["supported_apps"] = dict.fromkeys(APPS, "")
    metadata["image_classes"] = metadata["image_classes"].format(height=size[0], width=size[1])
    return metadata


def _of_weights(facts: Mapping[str, Any], model: str, *, whole: bool) -> dict[str, Any]:
    """Return the metadata of a bundle's weights: their hash, and mean scores where they have not trained."""
    metric = metric_of(facts).name
    found = [*mean_scores(facts).values(), *mean_of_real(facts)]
    means = {f"{metric}, {m['name']}": m[metric].get("mean") for m in found}
    data = facts.get("data", "rendered scenes")
    about = f"{model}: float16, trained on {data}, SHA-256 {facts['sha256']}"
    about += f"; {EXPORTED} holds the same" if whole else ""
    return {"weights": about, "eval_metrics": {k: round(v, 4) for k, v in means.items() if v is not None}}


def _begun(facts: Mapping[str, Any]) -> str:
    """Return what the first of a card's pre-trainings began from: `random`, or the name of other weights."""
    start = [facts, *facts.get("before", [])][-1].get("start", {"start": RANDOM})
    return RANDOM if start["start"] == RANDOM else f"{start['from']} {start['sha256'][:16]}"


def _certainty(root: Path, facts: Mapping[str, Any] | None) -> Facts | None:
    """Return what the calibration in a bundle's folder says; None where there is none, or it is of other weights."""
    path = (root / MODEL).with_name(FILE)
    if facts is None or not path.is_file():
        return None
    found = read_calibration(path).facts
    return found if found.weights == facts["sha256"] else None


def _default_task(description: Description) -> Mapping[str, Any]:
    """Return the numbers of the default task."""
    return next(iter(read_own_yaml(description.tasks).values())) or {}


def follows_boxes(description: Description) -> bool:
    return bool(_default_task(description).get("prompts", "none") != "none")


def _without_links(text: str, path: str) -> str:
    """Return Markdown of a path of the repository for elsewhere: a link to another file becomes its text and path."""

    def named(link: re.Match[str]) -> str:
        return f"{link[1]} [`{posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))}`]"

    return re.sub(r"\[([^][]+)\]\((\.\./[^)#]+)[^)]*\)", named, text)


def _as_json(config: str) -> str:
    """Return a config of YAML as JSON, a section a line; `monai.bundle.load` finds a network in no other form."""
    sections = read_own_yaml(config).items()
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sections) + "\n}\n"


def _input_size(training: Training, facts: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the (height, width) of the input: what the shipped weights have learnt at, else that of the training."""
    header = (facts or {}).get("header", {})
    return int(header.get("height", training.height)), int(header.get("width", training.width))


def _merged(base: Any, own: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    whole = ("channel_def",)  # names of a bundle's own channels, not some of them
    return {**base, **{key: value if key in whole else _merged(base.get(key), value) for key, value in own.items()}}


def _number(training: Training, key: str, why: str = "", *, indent: int = 2) -> str:
    """Return the line of a training setting; reasons stand in one column."""
    setting = getattr(training, key)
    plain = list(setting) if isinstance(setting, tuple) else setting
    value = yaml.safe_dump(plain, default_flow_style=True).splitlines()[0]  # 5e-05 would be read as text
    text = f"{key}: {value}"
    return f"{text:<{28 - indent}} # {why}" if why else text


def _shared(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
