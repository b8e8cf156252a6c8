"""Generate a bundle's files from the shared templates and `bundles/<name>.yaml`."""

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
from shared_components.core import calibration, shipped_weights
from shared_components.core.initial_weights import RANDOM
from shared_components.core.shipped_weights import EXPORTED, FACTS, KEEPER, MODEL, SAME_AS, shipped_facts
from shared_components.core.training_settings import Training, training_from
from shared_components.data.samples import WHOLE
from shared_components.networks.bundle_config import bundles_folder
from shared_components.networks.checkpoints import CheckpointError
from shared_components.weights.pretraining.tracks import INTERVAL

CONFIGS = ("train", "evaluate", "inference", "multi_gpu_train", "wandb")
APPS = ("monai-label", "monai-deploy")  # they read `preprocessing` and `postprocessing`, in any version
CARD, DATA_LICENCE = "docs/README.md", "docs/data_license.txt"
GENERATED_PARTS = {"weights": "## Weights", "use": "## Use"}  # of a card, and their headings
_TEMPLATE_FUNCTIONS = (
    counted, shipped_weights.steps_text, shipped_weights.chosen_by, shipped_weights.score_head,
    shipped_weights.score_rows, shipped_weights.control_head, shipped_weights.control_rows, shipped_weights.track_rows,
    calibration.certainty_head, calibration.certainty_rows, calibration.error_rows,
)  # fmt: skip


@dataclass(frozen=True)
class Description:
    """Content of `bundles/<name>.yaml`."""

    name: str
    zoo_name: str  # name in MONAI's model zoo; by default the bundle's name
    title: str  # heading of train.yaml
    network_def: str  # YAML text, to keep comments in the configs
    tasks: str  # YAML text: kinds of task and their settings, the default first
    method: str = "fedavg"
    method_is: str = "its loss; at one site FedAvg is plain training"
    weights_of: str = ""  # bundle whose shipped weights are the start; empty: this bundle
    same_weights_as: str = ""  # bundle that ships the same weights and contains the only copy of the file
    published_weights: str = (  # other weights that `start` can load, in Markdown
        "ImageNet weights of the encoder (`pvt_v2_b0.pth` from github.com/whai362/PVT)"
    )
    training: Mapping[str, Any] = field(default_factory=dict)  # differences from `Training`
    alone: Mapping[str, Any] = field(default_factory=dict)  # differences of a single hospital's training
    paper_network: Mapping[str, Any] = field(default_factory=dict)  # arguments of `network_def` in paper.yaml
    paper_start: str = ""  # published weights that paper.yaml needs from the user; empty: random weights
    metadata: Mapping[str, Any] = field(default_factory=dict)  # merged into the common metadata.json

    @property
    def all_training(self) -> Training:
        """Complete training section: the defaults with the bundle's changes."""
        return training_from({**asdict(Training()), **self.training})

    @property
    def training_alone(self) -> Training:
        """Training section of `train.yaml`, for a single hospital."""
        return training_from({**asdict(self.all_training), **self.alone})

    @property
    def default_task(self) -> Mapping[str, Any]:
        return next(iter(read_own_yaml(self.tasks).values())) or {}


def marks(part: str) -> tuple[str, str]:
    """Return the lines before and after a generated part of a card."""
    return f"<!-- begin of {part}, written by `surgfl bundles` -->", f"<!-- end of {part} -->"


def described_bundles(folder: Path | None = None) -> list[str]:
    """Return the names of all `<name>.yaml` in the folder of bundles."""
    return sorted(path.stem for path in (folder or bundles_folder()).glob("*.yaml"))


def read_description(name: str, folder: Path | None = None) -> Description:
    """Read `<name>.yaml` in the folder of bundles; raise ValueError for a missing, unknown or invalid key."""
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
    """Return the generated files of a bundle, by path; only the marked parts of its card change.

    A `whole` bundle is a stand-alone copy, with its own weights and `model.pt`, and no links to other documents. Raise
    ValueError for a missing key, a card without marks, or a damaged `model.json`.
    """
    folder = folder or bundles_folder()
    description = read_description(name, folder)
    other = description.same_weights_as
    facts = shipped_facts(other or name, folder)
    values = _template_values(description, folder, facts, whole=whole)
    template = _templates().get_template
    configs = CONFIGS + (("paper",) if description.alone else ())
    files = {f"configs/{c}.yaml": template(f"{c}.yaml.j2").render(values) for c in configs}
    card = folder / name / CARD
    text = card.read_text("utf-8") if card.is_file() else template("card.md.j2").render(values)
    for part, heading in GENERATED_PARTS.items():
        generated = template(f"{part}.md.j2").render(values).strip()
        text = between_marks(text, marks(part), generated, card, f"under '{heading}'")
    if other and not whole:
        files[FACTS] = json.dumps({SAME_AS: other}) + "\n"
    elif whole and facts is not None:
        weights = shipped_weights.shipped_weights(name, folder)
        files[FACTS] = weights.with_name(Path(FACTS).name).read_text("utf-8")
    licence = folder.parent / "LICENSE"
    licence = licence if licence.is_file() else folder / name / "LICENSE"  # an installed package has no other copy
    return files | {
        "configs/train.json": _as_json(files["configs/train.yaml"]),
        "configs/evaluate.json": _shared("evaluate.json"),
        "configs/logging.conf": _shared("logging.conf"),
        "configs/metadata.json": json.dumps(values["metadata"], indent=2, ensure_ascii=False) + "\n",
        CARD: _without_links(text, f"bundles/{name}/{CARD}") if whole else text,
        DATA_LICENCE: template("data_license.txt.j2").render(values),
        "LICENSE": licence.read_text("utf-8"),
        **({} if facts or other else {KEEPER: ""}),
    }


def _template_values(
    description: Description, folder: Path, facts: Mapping[str, Any] | None, *, whole: bool
) -> dict[str, Any]:
    name, other = description.name, description.same_weights_as
    training, alone, task = description.all_training, description.training_alone, description.default_task
    model = f"../{other}/{MODEL}" if other and not whole else MODEL
    header = (facts or {}).get("header", {})  # the shipped weights keep their input size
    size = int(header.get("height", alone.height)), int(header.get("width", alone.width))
    metadata = _metadata(description, size, facts)
    return {
        **asdict(description),
        "network_def": description.network_def.strip(),
        "tasks": description.tasks.strip(),
        "number": lambda *args, **kwargs: _number(alone, *args, **kwargs),
        "of_paper": lambda *args, **kwargs: _number(training, *args, **kwargs),
        "metadata": metadata if facts is None else metadata | _weights_metadata(facts, model, whole=whole),
        "size": size,
        "frames": int(task.get("frames", 1)),
        "whole": task.get("targets_of") in WHOLE,
        "follows_boxes": follows_boxes(description),
        "marks": marks,
        "facts": facts,
        "model": model,
        "whole_copy": whole,
        "place": description.zoo_name if whole else f"bundles/{name}",
        "begun": _first_start(facts or {}),
        "ships": facts is not None or (description.weights_of and shipped_facts(description.weights_of, folder)),
        "seconds_apart": INTERVAL,
        "certainty": _certainty(folder / (other or name), facts),
        "has_results_page": not whole and (folder.parent / "docs" / "results" / f"{other or name}.md").is_file(),
        "allowed": calibration.ALLOWED,
    }


@functools.cache
def _templates() -> Environment:
    environment = Environment(  # nosec B701 # it writes YAML and Markdown of our own, never HTML
        loader=PackageLoader(__package__, ""), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals |= {function.__name__: function for function in _TEMPLATE_FUNCTIONS}
    return environment


def outdated_files(name: str, folder: Path | None = None) -> list[Path]:
    """Return the files of a bundle that are missing, unneeded or out of date."""
    return _outdated((folder or bundles_folder()) / name, bundle_files(name, folder))


def _outdated(root: Path, files: Mapping[str, str]) -> list[Path]:
    unneeded = [root / KEEPER] if KEEPER not in files and (root / KEEPER).is_file() else []
    return [*differing({root / path: text for path, text in files.items()}), *unneeded]


def write_bundle(name: str, folder: Path | None = None) -> list[Path]:
    """Write the files of a bundle and return the changed files."""
    root = (folder or bundles_folder()) / name
    files = bundle_files(name, folder)
    changed = _outdated(root, files)
    for path in changed:
        text = files.get(path.relative_to(root).as_posix())
        if text is not None:
            write_text(path, text)
        else:
            path.unlink()
    return changed


def write_with_sharing(bundles: Sequence[str], folder: Path | None = None) -> list[Path]:
    """Write bundles and all bundles that share their weights; return the changed files."""
    return [path for name in _with_sharing(bundles, folder) for path in write_bundle(name, folder)]


def check_with_sharing(bundles: Sequence[str], folder: Path | None = None) -> None:
    """Raise the errors of `write_with_sharing` without writing files."""
    for name in _with_sharing(bundles, folder):
        outdated_files(name, folder)


def _with_sharing(bundles: Sequence[str], folder: Path | None) -> list[str]:
    sharing = [name for name in described_bundles(folder) if read_description(name, folder).same_weights_as in bundles]
    return list(dict.fromkeys([*bundles, *sharing]))


def check_weights(name: str, folder: Path | None = None) -> None:
    """Raise CheckpointError unless weights, `model.json` and calibration in a bundle's folder belong together."""
    model = (folder or bundles_folder()) / name / MODEL
    if model.is_file() and (other := read_description(name, folder).same_weights_as):
        raise CheckpointError(
            f"{model}: {name}.yaml says same_weights_as: {other}; remove the file, or the key and model.json beside it"
        )
    if model.is_file() or shipped_facts(name, folder) is not None:
        weights = shipped_weights.shipped_weights(name, folder)
        file = weights.with_name(calibration.FILE)
        if calibration.calibration_of(weights) is None and file.is_file():
            raise CheckpointError(f"{file} belongs to other weights; run `surgfl calibrate {name}`")


def _metadata(description: Description, size: tuple[int, int], facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the bundle's metadata into the common metadata, and check that no required value is missing."""
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


def _weights_metadata(facts: Mapping[str, Any], model: str, *, whole: bool) -> dict[str, Any]:
    metric = shipped_weights.metric_of(facts).name
    scores = [*shipped_weights.mean_scores(facts).values(), *shipped_weights.mean_of_real(facts)]
    means = {f"{metric}, {m['name']}": m[metric].get("mean") for m in scores}
    text = f"{model}: float16, trained on {facts.get('data', 'rendered scenes')}, SHA-256 {facts['sha256']}"
    text += f"; {EXPORTED} holds the same" if whole else ""
    return {"weights": text, "eval_metrics": {k: round(v, 4) for k, v in means.items() if v is not None}}


def _first_start(facts: Mapping[str, Any]) -> str:
    """Return the initial weights of the first pre-training: `random`, or their name and hash."""
    start = [facts, *facts.get("before", [])][-1].get("start", {"start": RANDOM})
    return RANDOM if start["start"] == RANDOM else f"{start['from']} {start['sha256'][:16]}"


def _certainty(root: Path, facts: Mapping[str, Any] | None) -> calibration.Facts | None:
    """Return the facts of the calibration in a bundle's folder; None without one for these weights."""
    path = (root / MODEL).with_name(calibration.FILE)
    if facts is None or not path.is_file():
        return None
    certainty = calibration.read_calibration(path).facts
    return certainty if certainty.weights == facts["sha256"] else None


def follows_boxes(description: Description) -> bool:
    return bool(description.default_task.get("prompts", "none") != "none")


def _without_links(text: str, path: str) -> str:
    """Replace links to other files in Markdown by text and path; `path` is the document's path in the repository."""

    def named(link: re.Match[str]) -> str:
        return f"{link[1]} [`{posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))}`]"

    return re.sub(r"\[([^][]+)\]\((\.\./[^)#]+)[^)]*\)", named, text)


def _as_json(config: str) -> str:
    """Convert a YAML config to JSON with one section per line; `monai.bundle.load` needs JSON."""
    sections = read_own_yaml(config).items()
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sections) + "\n}\n"


def _merged(base: Any, own: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    replaced = ("channel_def",)  # a bundle lists all its channels
    return {**base, **{key: value if key in replaced else _merged(base.get(key), value) for key, value in own.items()}}


def _number(training: Training, key: str, why: str = "", *, indent: int = 2) -> str:
    """Return the line of a training setting, with its reason in a fixed column."""
    setting = getattr(training, key)
    plain = list(setting) if isinstance(setting, tuple) else setting
    value = yaml.safe_dump(plain, default_flow_style=True).splitlines()[0]  # 5e-05 would be read as text
    text = f"{key}: {value}"
    return f"{text:<{28 - indent}} # {why}" if why else text


def _shared(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
