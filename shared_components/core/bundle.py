"""Read a bundle's plain settings for a federation, without evaluating anything.

A MONAI bundle is code: its `$` expressions and `_target_` entries run Python. A federation reads three plain sections
of `train.yaml`: `network_def`, `tasks` and `training`. `paper.yaml` replaces settings of `training`. Both are read with
a safe YAML loader, and only networks of `network_class` are built. Without MONAI, a simulator task starts five seconds
earlier.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared_components.common.reject_code import refuse_expression
from shared_components.core.training_settings import Training, training_from, with_settings
from shared_components.networks import bundle_config
from shared_components.networks.network_arguments import chosen_definition
from shared_components.networks.network_class import network_class


@dataclass(frozen=True)
class Bundle:
    """The plain sections of one bundle's `train.yaml`, with the settings of its `paper.yaml`."""

    name: str
    network: Mapping[str, Any]
    training: Training
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"segmentation": {}})
    """The kinds of task that the network can learn and their numbers; the first one is a site's default."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What of ``network`` is not the bundle's own, but a job's or a checkpoint's."""


def load_bundle(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    network: Mapping[str, Any] | None = None,
) -> Bundle:
    """Read the plain sections of a bundle.

    ``name`` is a folder of `bundles/`, never a path: a job must not choose files on a hospital's disk. ``overrides``
    replace settings of `training`; `iterations` without `epochs` replaces its epochs. ``tasks`` replace settings of
    tasks by kind. ``network`` replaces arguments of the network, or the whole network with ``class``, see
    `network_arguments`. Raises ValueError if the bundle does not exist, a plain section has a `$` expression, or a key,
    kind of task or argument is unknown.
    """
    if name not in bundle_config.bundle_names():
        raise ValueError(f"bundle {name!r} does not exist; there are {', '.join(bundle_config.bundle_names())}")
    path = bundle_config.bundles_folder() / name / "configs" / "train.yaml"
    document = bundle_config.read_config(path.read_text("utf-8"))
    sections = {key: copy.deepcopy(document.get(key)) or {} for key in ("network_def", "tasks", "training")}
    paper = path.with_name("paper.yaml")
    of_paper = bundle_config.read_config(paper.read_text("utf-8")).get("+training") if paper.is_file() else {}
    _refuse_expressions(sections, f"{path}")
    _refuse_expressions(of_paper, f"{paper}: +training")
    for given in (sections["training"], of_paper, overrides or {}):
        if not isinstance(given, Mapping):
            raise ValueError(f"training: it is {given!r}; write its settings as 'name: value'")
    steps = [(overrides or {}).get(key) for key in ("iterations", "epochs")]
    if all(steps):
        raise ValueError(f"training: iterations {steps[0]} has no effect, since epochs is {steps[1]}; write epochs: 0")
    training = training_from(with_settings({**sections["training"], **(of_paper or {})}, overrides or {}))
    definition: Mapping[str, Any] = sections["network_def"]
    chosen: Mapping[str, Any] = {}
    if network not in (None, {}):
        definition, chosen = chosen_definition(network, definition)
    return Bundle(name, definition, training, tasks_from(sections["tasks"], tasks or {}), chosen)


def tasks_from(section: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each kind of task, by default only segmentation; ValueError for wrong overrides."""
    settings = {kind: dict(numbers or {}) for kind, numbers in (section or {"segmentation": {}}).items()}
    for kind, numbers in overrides.items():
        if kind not in settings:
            raise ValueError(f"tasks: the bundle does not learn {kind!r}; it learns {', '.join(settings)}")
        if not isinstance(numbers, Mapping):
            raise ValueError(f"tasks: {kind} is {numbers!r}; write its numbers as 'name: value'")
        settings[kind] |= numbers
    return settings


def needs_square_frames(name: str) -> bool:
    """Return whether a bundle's network takes only square frames, without building it."""
    return bool(getattr(network_class(load_bundle(name).network), "squares", False))


def _refuse_expressions(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_expressions(item, f"{where}: {key}")
    elif isinstance(value, list):
        for item in value:
            _refuse_expressions(item, where)
    elif isinstance(value, str):
        refuse_expression(value, where)
