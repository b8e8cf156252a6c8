"""Read what a federation needs of a bundle, without evaluating anything.

A MONAI bundle is code: its `$` expressions and `_target_` entries run Python. A federation reads three plain
sections of `train.yaml`, `network_def`, `tasks` and `training`, and what `paper.yaml` has in place of one hospital's
settings, with a safe YAML loader, and builds only networks of `network_class`. (It also spares every simulator task
MONAI's import of five seconds.)
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta
from torch import nn

from shared_components.common.arguments import require_list
from shared_components.common.counted import counted
from shared_components.common.plain_yaml import read_own_yaml
from shared_components.common.reject_code import refuse_expression
from shared_components.common.schema import check_keys, check_values, kinds_of, shown
from shared_components.networks.adapter import adapted
from shared_components.networks.network_arguments import chosen_definition
from shared_components.networks.network_class import is_ours, make, network_class, without_memory

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Start = Literal["random", "rendered", "file"]
STARTS: tuple[Start, ...] = get_args(Start)
MOST_ROUNDS = 1_000_000
Rate = Annotated[float, Meta(ge=0, le=1000.0)]
Beta = Annotated[float, Meta(ge=0, lt=1)]
Few = Literal["repeat", "shrink", "refuse"]
Schedule = Literal["constant", "cosine", "polynomial"]
Optimizer = Literal["adamw", "sgd"]
_FILE = "a job carries no path: with file every site names its own in SURGFL_START_WEIGHTS"


@dataclass(frozen=True)
class Training:
    """The `training` section: sizes in pixels, rates per step; a hospital's `limits.yaml` may allow less.

    `start` is what the network begins from: the seed alone (`random`), the weights that the bundle ships, which
    have seen rendered scenes only (`rendered`), or a file that each site names itself (`file`).

    With `precision: bf16` the forward pass and the losses of every local step run under bfloat16 autocast, on
    a CPU and a GPU alike; with `auto` where the machine computes in it. Weights, gradients and the optimizer stay
    float32, and with them all that is sent; validation, what a method measures or trains outside of local steps,
    evaluation and inference stay float32, so that scores are those of the weights that are saved.

    The learning rates of a step follow from its place in all rounds, see `core.schedules`, and weight decay and the
    rates of layers from `parameter_groups`.

    Attributes:
        height: Height of the network's input, in pixels.
        width: Width of the network's input, in pixels.
        batch_size: Samples in a batch.
        few_samples: With fewer samples than a batch: repeat samples, use a smaller batch, or refuse the site.
        iterations: Local steps per round if ``epochs`` is 0.
        epochs: Passes over the training samples per round; 0: use ``iterations``.
        learning_rate: Learning rate of all parts not in ``learning_rates``.
        weight_decay: Weight decay.
        optimizer: Optimizer.
        momentum: Momentum of ``sgd``.
        schedule: Learning-rate schedule over all rounds; ``polynomial`` has power 0.9.
        warmup_rounds: Rounds of linear warm-up from 0.
        least_learning_rate: Final learning rate of the schedule; rates of parts fall in proportion.
        betas: The two betas of ``adamw``.
        decay_free: No weight decay on vectors, biases and tokens.
        layer_decay: Learning-rate factor from each ViT layer to the layer below it.
        accumulate: Batches per optimizer step (mean gradient); a round's leftover batches are dropped.
        seed: Seed of weights, sample order and all other random numbers.
        rounds: Rounds of a bundle that trains alone; a job has its own ``rounds``.
        fixed: Parts that are not trained and not sent; all sites must have equal weights in them.
        learning_rates: Learning rates by part.
        precision: Precision of forward pass and losses in training; ``auto``: bf16 if the machine supports it. Weights,
            updates and scores stay float32.
        start: Initial weights: from the seed, the bundle's shipped weights, or each site's file in
            ``SURGFL_START_WEIGHTS``.
        colour: Strength of colour, sharpness and noise augmentation; 0: none.
        rotation: Largest random rotation, in degrees; 0: none.
        flips: Mirror frames at random in each direction, with probability 0.5.
        crops: Scale frames at random by 0.5 to 2 and crop them.
        crop_area: For tasks without targets: smallest area of a random crop before resizing, as a share of the frame,
            instead of ``crops``; 0: none.
        feature_cache_gb: Disk space for features of a frozen image encoder, in 10^9 bytes; 0: no cache. Requires no
            flips, crops, colour or rotation.

    Raises ValueError for a value of another type, out of its range, not finite or unknown.
    """

    height: Annotated[int, Meta(ge=1, le=16_384)] = 512
    width: Annotated[int, Meta(ge=1, le=16_384)] = 640
    batch_size: Annotated[int, Meta(ge=1, le=65_536)] = 8
    few_samples: Few = "repeat"
    iterations: Annotated[int, Meta(ge=1, le=10_000_000)] = 100
    epochs: Annotated[int, Meta(ge=0, le=10_000)] = 0
    learning_rate: Rate = 5e-4
    weight_decay: Rate = 0.01
    optimizer: Optimizer = "adamw"
    momentum: Beta = 0.9
    schedule: Schedule = "constant"
    warmup_rounds: Annotated[float, Meta(ge=0, le=MOST_ROUNDS)] = 0.0
    least_learning_rate: Rate = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    decay_free: bool = False
    layer_decay: Annotated[float, Meta(gt=0, le=1)] = 1.0
    accumulate: Annotated[int, Meta(ge=1, le=10_000_000)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 2022
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 200
    fixed: tuple[str, ...] = ()
    learning_rates: Mapping[str, Rate] = field(default_factory=dict)
    precision: Literal[Precision, "auto"] = "float32"
    start: Annotated[Start, Meta(description=f"use one of {', '.join(STARTS)} ({_FILE})")] = "random"
    colour: Annotated[float, Meta(ge=0, le=1)] = 0.0
    rotation: Annotated[float, Meta(ge=0, le=180)] = 0.0
    flips: bool = True
    crops: bool = True
    crop_area: Annotated[float, Meta(ge=0, le=1)] = 0.0
    feature_cache_gb: Annotated[float, Meta(ge=0, le=1e6)] = 0.0

    def __post_init__(self) -> None:
        require_list(self.fixed, "training: fixed", "encoder", least=0)
        check_values(kinds_of(Training), vars(self), "training")
        if self.least_learning_rate > self.learning_rate:
            raise ValueError(
                f"training: least_learning_rate is {self.least_learning_rate}, and learning_rate {self.learning_rate}; "
                "make it less: a schedule falls to it"
            )
        if self.feature_cache_gb and (random := self._random_frames()):
            raise ValueError(
                f"training: feature_cache_gb is {self.feature_cache_gb}, and a cache keeps the features of frames that "
                f"do not change; write {', '.join(random)} beside it, or feature_cache_gb: 0"
            )

    def _random_frames(self) -> list[str]:
        """Return the settings, as they would be off, by which training frames change at random."""
        return [f"{name}: {'false' if on is True else 0}" for name, on in self.augmentation.items() if on]

    def for_samples(self, samples: int) -> Training:
        """Return the settings of a site with this many training samples: its epochs as iterations, its batch.

        Raises ValueError for fewer samples than a batch where `few_samples` refuses them.
        """
        few = samples < self.batch_size
        if few and self.few_samples == "refuse":
            raise ValueError(
                f"has {counted(samples, 'training sample')}, fewer than a batch of {self.batch_size}, and few_samples "
                f"is 'refuse'; make batch_size {samples} at most, or write few_samples: shrink"
            )
        size = max(1, samples) if few and self.few_samples == "shrink" else self.batch_size
        if not self.epochs and size == self.batch_size:
            return self
        count = max(1, math.ceil(self.epochs * samples / size)) if self.epochs else self.iterations
        return replace(self, epochs=0, iterations=count, batch_size=size)

    @property
    def augmentation(self) -> dict[str, Any]:
        """How `dataset.batches` changes training frames at random."""
        return {name: getattr(self, name) for name in ("colour", "rotation", "flips", "crops", "crop_area")}

    @property
    def steps(self) -> int:
        """Optimizer steps of a round, of settings that `for_samples` returned."""
        return self.iterations // self.accumulate


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


def bundles_folder() -> Path:
    """Return the folder of the bundles: it lies beside the package, in a checkout and when installed."""
    return Path(__file__).resolve().parents[2] / "bundles"


def bundle_names() -> list[str]:
    """Return the bundles by listing their folder."""
    return sorted(p.name for p in bundles_folder().iterdir() if (p / "configs" / "train.yaml").is_file())


def bundle_for(method: str) -> str:
    """Return the bundle that a method is used with: one of its own name, else the baselines' network."""
    own = bundles_folder() / method / "configs" / "train.yaml"
    return method if own.is_file() else "pvt_fpn"


def weights_of(name: str) -> str:
    """Return the bundle whose shipped weights ``start: rendered`` means: the one that `weights_of` names, or itself.

    Raises ValueError where there is no such bundle.
    """
    path = bundles_folder() / name / "configs" / "train.yaml"
    whose = (_document(path.read_text("utf-8")).get("weights_of") if path.is_file() else None) or name
    if whose != name and whose not in bundle_names():
        raise ValueError(f"{path}: weights_of is {shown(whose)}, and there are the bundles {', '.join(bundle_names())}")
    return str(whose)


def takes_squares(name: str) -> bool:
    """Whether a bundle's network takes square frames alone; it is not built."""
    return bool(getattr(network_class(load_bundle(name).network), "squares", False))


def load_bundle(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    network: Mapping[str, Any] | None = None,
) -> Bundle:
    """Read the plain sections of a bundle.

    Args:
        name: A folder of `bundles/`. Never a path: a job must not choose files on a hospital's disk.
        overrides: Values that replace entries of `training`; `iterations` without `epochs` replaces its epochs.
        tasks: By kind of task, values that replace entries of its numbers.
        network: Values that replace arguments of the network, or with ``class`` the whole of it, see
            `network_arguments`.

    Raises:
        ValueError: No such bundle, a `$` expression in a plain section, or an unknown key, kind of task or argument.
    """
    if name not in bundle_names():
        raise ValueError(f"bundle {name!r} does not exist; there are {', '.join(bundle_names())}")
    path = bundles_folder() / name / "configs" / "train.yaml"
    document = _document(path.read_text("utf-8"))
    sections = {key: copy.deepcopy(document.get(key)) or {} for key in ("network_def", "tasks", "training")}
    paper = path.with_name("paper.yaml")
    of_paper = _document(paper.read_text("utf-8")).get("+training") if paper.is_file() else {}
    _refuse_expressions(sections, f"{path}")
    _refuse_expressions(of_paper, f"{paper}: +training")
    for given in (sections["training"], of_paper, overrides or {}):
        if not isinstance(given, Mapping):
            raise ValueError(f"training: it is {given!r}; write its settings as 'name: value'")
    steps = [(overrides or {}).get(key) for key in ("iterations", "epochs")]
    if all(steps):
        raise ValueError(
            f"training: iterations {steps[0]} would change nothing, since epochs is {steps[1]}; write epochs: 0, or "
            "leave iterations out"
        )
    training = training_from(with_settings({**sections["training"], **(of_paper or {})}, overrides or {}))
    definition: Mapping[str, Any] = sections["network_def"]
    chosen: Mapping[str, Any] = {}
    if network not in (None, {}):
        definition, chosen = chosen_definition(network, definition)
    return Bundle(name, definition, training, tasks_from(sections["tasks"], tasks or {}), chosen)


def with_settings(training: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `training` with other settings; `iterations` without `epochs` replaces its epochs."""
    return {**training, **({"epochs": 0} if "iterations" in changes else {}), **changes}


@functools.lru_cache(maxsize=16)
def _document(text: str) -> Mapping[str, Any]:
    """Read a config; a site reads its bundle a dozen times a round."""
    return read_own_yaml(text)


def tasks_from(section: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Read the section `tasks`, kinds and their numbers; without one a bundle learns segmentation.

    Raises ValueError for an override that is of a kind that the bundle does not learn, or no mapping.
    """
    found = {kind: dict(numbers or {}) for kind, numbers in (section or {"segmentation": {}}).items()}
    for kind, numbers in overrides.items():
        if kind not in found:
            raise ValueError(f"tasks: the bundle does not learn {kind!r}; it learns {', '.join(found)}")
        if not isinstance(numbers, Mapping):
            raise ValueError(f"tasks: {kind} is {numbers!r}; write its numbers as 'name: value'")
        found[kind] |= numbers
    return found


def training_from(values: Mapping[str, Any]) -> Training:
    """Build the training settings; a misspelt key and a value out of its range are refused by name: ValueError.

    Parts that the network does not have are refused where it is known.
    """
    given = check_keys(sorted(kinds_of(Training)), values, "training")
    fixed, rates = given.get("fixed") or (), given.get("learning_rates") or {}
    require_list(fixed, "training: fixed", "encoder", least=0)
    if not isinstance(rates, Mapping):
        raise ValueError(f"training: learning_rates is {shown(rates)}; it is a rate by part, such as encoder: 0.0001")
    lists = {"betas": tuple(given["betas"])} if isinstance(given.get("betas"), list) else {}
    return Training(**{**given, **lists, "fixed": tuple(fixed), "learning_rates": dict(rates)})


def build_network(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build the network that `network_def` names, see `network_class`; one of another library is `adapter.adapted`.

    Raises ValueError where it names another class, or the class cannot be made with these arguments.
    """
    kind = network_class(definition)
    if not is_ours(kind):
        channels = overrides.pop("out_channels", None)
        return adapted({**definition, **overrides}, channels)
    return make(kind, {k: v for k, v in definition.items() if not k.startswith("_")} | overrides)


def weightless(definition: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """Build a network whose tensors have shapes and no memory; ValueError as in `build_network`."""
    with without_memory():
        return build_network(definition, **overrides)


def check_size(network: nn.Module, height: int, width: int, *, least: int = 1) -> None:
    """Refuse an input size that a network does not take: it halves a frame several times, so sides are multiples.

    Height and width, in pixels, are multiples of the network's ``stride`` (without one it takes any), at least
    ``least``, and equal where it takes ``squares`` alone. Raises ValueError with a size that would do.
    """
    stride, squares = int(getattr(network, "stride", 1)), bool(getattr(network, "squares", False))
    if all(side % stride == 0 and side >= least for side in (height, width)) and (height == width or not squares):
        return
    near = [(height + width) / 2] * 2 if squares else [height, width]
    rows, columns = (max(-(-least // stride), round(side / stride)) * stride for side in near)
    at_least = f", at least {least}" if least > 1 else ""
    raise ValueError(
        f"the size is {height}x{width}, and {type(network).__name__} takes {'squares of ' * squares}multiples of "
        f"{stride}{at_least}; "
        f"{rows}x{columns} would do"
    )


def _refuse_expressions(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_expressions(item, f"{where}: {key}")
    elif isinstance(value, list):
        for item in value:
            _refuse_expressions(item, where)
    elif isinstance(value, str):
        refuse_expression(value, where)
