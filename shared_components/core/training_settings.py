"""The settings of a training: the section `training` of a bundle or job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from shared_components.common.arguments import require_list
from shared_components.common.counted import counted
from shared_components.common.schema import check_keys, check_values, kinds_of, short_repr

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Start = Literal["random", "rendered", "file"]
STARTS: tuple[Start, ...] = get_args(Start)
RANDOM, RENDERED, FILE = get_args(Start)
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

    Everything that a method computes outside of local steps stays float32. `core.schedules` defines learning rates over
    the rounds, and `parameter_groups` weight decay and learning rates by layer.

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
            raise ValueError(f"training: least_learning_rate {self.least_learning_rate} is above {self.learning_rate}")
        random = [f"{name}: {'false' if on is True else 0}" for name, on in self.augmentation.items() if on]
        if self.feature_cache_gb and random:
            raise ValueError(
                f"training: feature_cache_gb is {self.feature_cache_gb}, but the cache needs unchanged frames; write "
                f"{', '.join(random)}, or feature_cache_gb: 0"
            )

    def for_samples(self, samples: int) -> Training:
        """Return a site's settings: epochs as iterations, its batch size; ValueError if `few_samples` refuses."""
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
        """Settings of `dataset.batches` for random changes of training frames."""
        return {name: getattr(self, name) for name in ("colour", "rotation", "flips", "crops", "crop_area")}

    @property
    def steps(self) -> int:
        """Optimizer steps of a round, for settings from `for_samples`."""
        return self.iterations // self.accumulate


def training_from(values: Mapping[str, Any]) -> Training:
    """Build the training settings; ValueError for an unknown key or a value out of its range."""
    given = check_keys(sorted(kinds_of(Training)), values, "training")
    fixed, rates = given.get("fixed") or (), given.get("learning_rates") or {}
    require_list(fixed, "training: fixed", "encoder", least=0)
    if not isinstance(rates, Mapping):
        raise ValueError(f"training: learning_rates is {short_repr(rates)}; write rates such as encoder: 0.0001")
    lists = {"betas": tuple(given["betas"])} if isinstance(given.get("betas"), list) else {}
    return Training(**{**given, **lists, "fixed": tuple(fixed), "learning_rates": dict(rates)})


def with_settings(training: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `training` with other settings; `iterations` without `epochs` replaces its epochs."""
    return {**training, **({"epochs": 0} if "iterations" in changes else {}), **changes}
