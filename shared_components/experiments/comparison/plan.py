"""Define presets, their rows, run sizes, and the settings and folder name of each run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from shared_components.common.arguments import between
from shared_components.core.bundle import Bundle, load_bundle
from shared_components.core.initial_weights import RANDOM, source_of
from shared_components.core.method import load_method
from shared_components.core.site_fingerprint import fingerprint
from shared_components.core.task import check_tasks
from shared_components.core.training_settings import Training
from shared_components.networks.bundle_config import bundle_for, check_size, weightless


@dataclass(frozen=True)
class DataChanges:
    """Changes of a row to the data that its sites train on."""

    server_frames: bool = False  # each site also trains on the server's frames (`also_trains_on` of site.yaml)
    held_out_trains: bool = False  # the held-out site trains too
    videos: int = 0  # training videos per site, drawn with the seed (`splits.few`); 0: all
    leaves_out: str = ""  # task after pre-training; its videos of Cholec80 are left out (`splits.LEFT_OUT`)

    @property
    def changes_sites(self) -> bool:
        return self.server_frames or self.videos > 0 or bool(self.leaves_out)


@dataclass(frozen=True)
class Length:
    """Training length of a row, relative to the other rows."""

    times: int = 1  # factor of the iterations per round
    share: float = 1.0  # factor of the iterations per round; the rounds change so that the total stays the same


@dataclass(frozen=True)
class Variant:
    """Row of a table: a method, its arguments, and every other difference from the other rows."""

    label: str  # may contain ``{iterations}``, which becomes the row's iterations per round
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ticks: tuple[bool, ...] = ()
    bundle: str = ""  # empty: the method's default, see `bundle_for`
    network: Mapping[str, Any] = field(default_factory=dict)  # overrides of the bundle's network
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # overrides of task settings, by kind of task
    training: Mapping[str, Any] = field(default_factory=dict)  # overrides that scale and command line do not replace
    data: DataChanges = DataChanges()
    length: Length = Length()
    trains: bool = True  # False: evaluate the initial weights (one step with learning rate 0)
    shows: Mapping[str, str] = field(default_factory=dict)  # for several rows: label to model of the run, see `models`
    after: Variant | None = None  # start from the shared model of this row's run with the same seed
    start: str = ""  # initial weights, a key of `names.STARTS`; empty: as in the comparison

    @property
    def needs_server(self) -> bool:
        """Whether the row uses frames of the server; raise ValueError for an invalid method."""
        return self.data.server_frames or load_method(self.method, **self.arguments).server.update is not None

    def identity(self) -> dict[str, Any]:
        """Return the values that change the row's scores, without label, start and defaults.

        `Run.name` adds the hash of the initial weights.
        """
        values = {
            "network": dict(self.network), "tasks": dict(self.tasks), "training": dict(self.training),
            "bundle": self.bundle if self.bundle != bundle_for(self.method) else "",
            "mixes": self.data.server_frames, "untrained": not self.trains, "everywhere": self.data.held_out_trains,
            "after": self.after.identity() if self.after else {}, "shows": sorted(set(self.shows.values())),
            "videos": self.data.videos, "leaves_out": self.data.leaves_out,
        }  # fmt: skip
        changed = {name: value for name, value in values.items() if value}
        return {"method": self.method, "arguments": dict(self.arguments), **changed}


@dataclass(frozen=True)
class Hospitals:
    """Synthetic sites of a preset, each with a look and a data-set layout, which defines the task."""

    name: str  # of the folder
    sites: tuple[tuple[str, str], ...]
    task: str = ""  # task of all sites, instead of the layouts' tasks


@dataclass(frozen=True)
class Versus:
    """Two groups of rows that are compared video by video: their names, and a pair of labels per violin."""

    models: tuple[str, str]
    rows: Mapping[str, tuple[str, str]]
    metric: str = ""  # empty: first metric with scores per video or frame

    @classmethod
    def of(cls, left: str, right: str) -> Versus:
        return cls((left, right), {"all": (left, right)})


@dataclass(frozen=True)
class Preset:
    """Table or figure of a paper.

    Layouts: ``scores``, ``costs``, ``ablation`` (averages beside ticks), ``held-out`` (the held-out site), ``unseen``
    (mean over the sites beside the held-out site), ``delta`` (improvement over local training), ``patches`` (restored
    patches), ``classes`` (scores per class), ``mixing`` (heat maps of aggregation weights), ``pictures`` (frames of
    the sites) and ``held-out pictures``. All rows share the preset's training settings, also with another bundle.
    """

    title: str
    variants: tuple[Variant, ...]
    layout: str = "scores"
    tick_names: tuple[str, ...] = ()  # headings of the rows' ticks
    remark: str = ""  # printed below the tables
    rounds: int = 0  # rounds at scale ``paper``; 0: those of PFedSIS
    training: Mapping[str, Any] = field(default_factory=dict)
    held_out_layout: str = "endovis2017"  # data-set layout of the synthetic held-out site
    hospitals: Hospitals | None = None  # sites without a held-out site
    site_set: str = ""  # instead of `hospitals`: a key of `site_sets.SETS`, whose site `unseen` never trains
    start: str = ""  # default initial weights
    versus: tuple[Versus, ...] = ()  # comparisons video by video; empty: the best two rows
    scales: Mapping[str, Scale] = field(default_factory=dict)  # replace entries of `SCALES`


@dataclass(frozen=True)
class Scale:
    """Sizes of the runs and of the synthetic sites."""

    rounds: int
    training: Mapping[str, Any]
    frames_per_video: int
    height: int
    width: int
    videos: tuple[tuple[int, int, int], ...] = ((2, 1, 2), (2, 1, 2), (1, 1, 2))  # train, validation, test per site
    remark: str = ""  # printed below the tables
    changes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Changes to rows' fields, by the row's label or ``""`` for all rows: {"FedAvg": {"training": {...}}}."""
    weights: str = ""  # published weights that all rows need; the user names the file on the command line


ROUND_LONG_ARGUMENTS: dict[str, tuple[str, ...]] = {"fedst": ("batches",)}
"""Method arguments that default to the iterations per round: FedST's server takes 100 batches where its sites take 100
iterations (Section 4.1.3)."""
NO_TRAINING = {"iterations": 1, "epochs": 0, "learning_rate": 0.0, "learning_rates": {}, "least_learning_rate": 0.0}
"""Training settings that change no weight."""
_CLIP_WIDTH = 512  # width of CLIP ViT-B/32's text vectors; other encoders have the bundle's width
LAST, AVERAGED = "last", "averaged"  # models of a run: after the last round, and the mean over rounds (SWA)
BEST_OF = {"best": LAST, "best averaged": AVERAGED}
"""Rows that show the best round, and the model that they choose the round of."""
SCORES = "scores.json"  # in a run's folder, written when the run is complete
HELD_OUT = "held-out"  # name of the held-out site, unless its site.yaml gives one
SMOKE_TEST = "smoke test, too short to compare methods"  # remark of every scale `quick`
SCALES = {
    "quick": Scale(
        3, {"height": 64, "width": 96, "learning_rate": 1e-3, "batch_size": 2, "iterations": 12}, 4, 96, 128,
        remark=SMOKE_TEST,
    ),
    "small": Scale(
        4, {"height": 96, "width": 128, "learning_rate": 5e-4, "batch_size": 4, "iterations": 12}, 6, 192, 256
    ),
    "paper": Scale(200, {}, 60, 1024, 1280, videos=((8, 1, 2), (8, 1, 2), (2, 1, 2))),
}  # fmt: skip
"""quick: smoke test; small: two CPU cores; paper: the bundle's 512 x 640, 100 iterations, batches of 8 and learning
rate 5e-4, with 200 rounds (PFedSIS, Section IV-B). FedST's presets have other values."""


def scale_of(name: str, preset: Preset) -> Scale:
    """Return the preset's scale: its training settings below the scale's, and its own rounds at ``paper``."""
    scale = preset.scales.get(name, SCALES[name])
    rounds = preset.rounds if name == "paper" and preset.rounds else scale.rounds
    return replace(scale, rounds=rounds, training={**preset.training, **scale.training})


@dataclass(frozen=True)
class Run:
    """One row with one seed: all settings that change its scores."""

    variant: Variant
    seed: int
    rounds: int
    training: Mapping[str, Any]
    sites: Mapping[str, str]  # site.yaml by site
    held_out: str = ""  # site.yaml of the site that never trains
    threads: int = 1  # PyTorch's; another number may change the last bits
    start: str = RANDOM  # initial weights: ``random``, ``rendered`` or ``file``
    start_file: str = ""
    server: str = ""  # site.yaml of the server's frames, for rows that use them

    @property
    def bundle(self) -> str:
        return self.variant.bundle or bundle_for(self.variant.method)

    @property
    def name(self) -> str:
        """Unique folder name: label, seed and a digest of all other settings."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.variant.label.lower()).strip("-")
        values = self.to_json() | {"sites": {n: self._fingerprint(p) for n, p in self.sites.items()}}
        values["held_out"] = self._fingerprint(self.held_out) if self.held_out else ""
        del values["start"], values["start_file"], values["server"]  # the content of these files counts, not the path
        values |= {"start": self.start_hash} if self.start_hash else {}
        values |= {"server": self._fingerprint(self.server)} if self.server else {}
        values["variant"] = self.variant.identity()
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{slug[:60]}-seed-{self.seed}-{digest}"

    def job(self) -> dict[str, Any]:
        names = {"name": self.name, "bundle": self.bundle, "method": self.variant.method}
        settings = {"arguments": dict(self.variant.arguments), "training": self._overrides(), "rounds": self.rounds}
        overrides = {"network": self.variant.network, "tasks": self.variant.tasks}
        return names | settings | {name: dict(value) for name, value in overrides.items() if value}

    @property
    def before(self) -> Run | None:
        """Run whose shared model is the start of this run."""
        return resolved(replace(self, variant=self.variant.after)) if self.variant.after else None

    def check(self) -> None:
        """Raise ValueError for an invalid setting, before anything is rendered or trained."""
        load_method(self.variant.method, **self.variant.arguments)
        bundle = self.open_bundle()
        check_tasks(bundle.tasks)
        _ = self.start_hash  # raises if there are no weights
        for name, value in {"rounds": self.rounds, "threads": self.threads}.items():
            between("compare", name, value, 1, whole=True)
        check_size(_weightless(json.dumps(bundle.network)), bundle.training.height, bundle.training.width)
        if self.before:
            self.before.check()

    def open_bundle(self) -> Bundle:
        return load_bundle(self.bundle, self._overrides(), self.variant.tasks, self.variant.network)

    def settings(self) -> Training:
        return self.open_bundle().training

    @property
    def clip(self) -> tuple[int, float]:
        """Frames per sample of the bundle's first task, and the seconds between them."""
        numbers = next(iter(self.open_bundle().tasks.values()))
        return numbers.get("frames", 1), numbers.get("interval", 0.0)

    def _overrides(self) -> dict[str, Any]:
        start = {} if self.start == RANDOM else {"start": self.start}
        return {**self.training, **self.variant.training, "seed": self.seed, **start}

    def _fingerprint(self, path: str) -> str:
        return fingerprint(path, self.bundle, self.variant.tasks)

    @property
    def start_weights(self) -> Path | None:
        return Path(self.start_file) if self.start_file else None

    @cached_property  # a run's name is used many times
    def start_hash(self) -> str:
        """SHA-256 of the initial weights, empty for random weights; CheckpointError if they do not exist."""
        source = source_of(self.start, self.bundle, self.start_weights)
        return source[1] if source else ""

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Undo :meth:`to_json`."""
        return cls(**{**values, "variant": _variant(values["variant"])})


@lru_cache(maxsize=32)  # the rows of a table share few networks
def _weightless(definition: str) -> nn.Module:
    return weightless(json.loads(definition))


def _variant(values: Mapping[str, Any]) -> Variant:
    after = _variant(values["after"]) if values["after"] else None
    groups = {"data": DataChanges(**values["data"]), "length": Length(**values["length"])}
    return Variant(**{**values, **groups, "ticks": tuple(values["ticks"]), "after": after})


def resolved(run: Run) -> Run:
    """Fill in label, rounds, iterations, arguments and network of a row; raise ValueError if they are invalid."""
    variant, iterations = run.variant, run.settings().iterations
    rounds, own = rounds_and_iterations(run.rounds, iterations, variant.length.share)
    own *= variant.length.times
    has_update = load_method(variant.method, **variant.arguments).server.update is not None
    arguments: dict[str, Any] = dict.fromkeys(
        ROUND_LONG_ARGUMENTS.get(variant.method, ()) if has_update else (), iterations
    )
    if AVERAGED in {BEST_OF.get(model, model) for model in variant.shows.values()}:
        arguments |= {"swa": {"start": first_averaged_round(rounds)}}
    training = {**run.training, "iterations": own} if own != iterations else run.training
    if not variant.trains:
        rounds, training = 1, {**run.training, **NO_TRAINING}
    reads_clip = variant.network.get("text") != "none" and variant.arguments.get("text_encoder") == "clip"
    row = replace(
        variant,
        label=variant.label.format(iterations=own),
        arguments={**arguments, **variant.arguments},
        network={**({"indicator": _CLIP_WIDTH} if reads_clip else {}), **variant.network},
        length=Length(),
    )
    return replace(run, variant=row, rounds=rounds, training=training)


def rounds_and_iterations(rounds: int, iterations: int, share: float) -> tuple[int, int]:
    """Scale the iterations per round by about `share`, with the same total of iterations.

    Take the divisor of the total with the smallest ratio to the exact value, the smaller of two equally near divisors.
    """
    if share == 1.0:
        return rounds, iterations
    total, exact = rounds * iterations, share * iterations
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    own = min(divisors, key=lambda number: abs(math.log(number / exact)))
    return total // own, own


def first_averaged_round(rounds: int) -> int:
    """Return the first round t >= 0.75 T, from 0, whose model is averaged (SWA), at most the last round."""
    return min(math.ceil(0.75 * rounds), rounds - 1)


def at_scale(preset: Preset, scale: Scale) -> Preset:
    """Apply the scale's changes to the preset's rows; they replace the rows' own values."""

    def changed(row: Variant) -> Variant:
        for label in ("", row.label):
            for name, entries in scale.changes.get(label, {}).items():
                row = replace(row, **{name: {**getattr(row, name), **entries}})  # type: ignore[arg-type]
        return replace(row, after=changed(row.after)) if row.after else row

    return replace(preset, variants=tuple(map(changed, preset.variants)))


def finished(run: Run, root: Path) -> Path | None:
    """Return the folder of a complete run, or None."""
    folders = sorted((root / run.name).glob(f"[0-9]*/{SCORES}"))
    return folders[-1].parent if folders else None
