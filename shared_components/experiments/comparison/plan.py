"""Rows and presets of a comparison, sizes of runs, and the settings and digest of every run."""

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

    server_frames: bool = False  # every site also trains on the server's own frames (`also_trains_on` of site.yaml)
    held_out_trains: bool = False  # the held-out site trains, too
    videos: int = 0  # training videos of each site, drawn by the seed, see `splits.few`; 0: all
    leaves_out: str = ""  # the task after pre-training, whose videos of Cholec80 are left out, see `splits.LEFT_OUT`

    @property
    def changes_sites(self) -> bool:
        """Whether the sites need another site.yaml than their own."""
        return self.server_frames or self.videos > 0 or bool(self.leaves_out)


@dataclass(frozen=True)
class Length:
    """How long a row trains, compared with the other rows."""

    times: int = 1  # factor of the iterations of a round
    share: float = 1.0  # factor of the iterations of a round, with as many rounds that the total stays the same


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method with its arguments, the ticks of an ablation, and what else it differs in."""

    label: str  # may hold ``{iterations}``, which becomes the row's number
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ticks: tuple[bool, ...] = ()
    bundle: str = ""  # default: the one that the method is used with, see `bundle_for`
    network: Mapping[str, Any] = field(default_factory=dict)  # overrides of the bundle's network
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # overrides of its numbers, by kind of task
    training: Mapping[str, Any] = field(default_factory=dict)  # overrides that neither scale nor command line replaces
    data: DataChanges = DataChanges()
    length: Length = Length()
    trains: bool = True  # False: the row is what it begins from: one step at a rate of 0
    shows: Mapping[str, str] = field(default_factory=dict)  # several rows: by label a model of the run, see `models`
    after: Variant | None = None  # begins from the shared model of this one's run, of the same seed
    start: str = ""  # what it begins from, of `starts.STARTS`; empty: what the comparison begins from

    @property
    def needs_server(self) -> bool:
        """Whether the row uses frames of the server's own; ValueError where the method cannot be."""
        return self.data.server_frames or load_method(self.method, **self.arguments).server.update is not None

    def identity(self) -> dict[str, Any]:
        """Return what the row's numbers depend on, without its label, its start and whatever is not given.

        The weights that it begins from count by their hash, see `Run.name`.
        """
        bundle = self.bundle if self.bundle != bundle_for(self.method) else ""
        own = {name: dict(getattr(self, name)) for name in ("network", "tasks", "training")}
        after = self.after.identity() if self.after else {}
        more = {"bundle": bundle, "mixes": self.data.server_frames, "untrained": not self.trains, "after": after}
        more |= {"everywhere": self.data.held_out_trains, "shows": sorted(set(self.shows.values()))}
        more |= {"videos": self.data.videos, "leaves_out": self.data.leaves_out}
        given = {name: value for name, value in {**own, **more}.items() if value}
        return {"method": self.method, "arguments": dict(self.arguments), **given}


@dataclass(frozen=True)
class Hospitals:
    """Synthetic sites in the place of the usual ones: of each its look and its layout, which says its task."""

    name: str  # of their folder
    sites: tuple[tuple[str, str], ...]
    task: str = ""  # of all of them, instead of that of their layout


@dataclass(frozen=True)
class Versus:
    """Two kinds of rows that are compared video by video: their names, and the labels by a violin's name."""

    models: tuple[str, str]
    rows: Mapping[str, tuple[str, str]]
    metric: str = ""  # by its name; empty: the first that videos or frames are scored by

    @classmethod
    def of(cls, left: str, right: str) -> Versus:
        """Return two rows beside each other."""
        return cls((left, right), {"all": (left, right)})


@dataclass(frozen=True)
class Preset:
    """A table of a paper.

    Its layout is ``scores``, ``costs``, ``ablation`` (averages beside ticks), ``held-out`` (the site that never
    trains), ``unseen`` (the sites' mean beside that site), ``delta`` (the improvement over local training), ``patches``
    (restored ones), ``classes`` (each class's scores), ``mixing`` (heat maps of the server's weights), ``pictures`` of
    the sites or ``held-out pictures`` of the site outside. All rows have its training, whatever their
    bundle, unless scale or command line say otherwise.
    """

    title: str
    variants: tuple[Variant, ...]
    layout: str = "scores"
    tick_names: tuple[str, ...] = ()  # headings of the rows' ticks
    remark: str = ""  # stands below the tables
    rounds: int = 0  # of the scale ``paper``, where the paper has others than PFedSIS
    training: Mapping[str, Any] = field(default_factory=dict)
    held_out_layout: str = "endovis2017"  # how the synthetic site that never trains lies on disk
    hospitals: Hospitals | None = None  # without a site that never trains
    site_set: str = ""  # one of `site_sets.SETS` instead, whose site `unseen` never trains
    start: str = ""  # what its rows begin from, where the command line does not say it
    versus: tuple[Versus, ...] = ()  # what is compared video by video; by default the best two rows
    scales: Mapping[str, Scale] = field(default_factory=dict)  # its own, by the names of `SCALES`


@dataclass(frozen=True)
class Scale:
    """Sizes of the runs and of the synthetic sites."""

    rounds: int
    training: Mapping[str, Any]
    frames_per_video: int
    height: int
    width: int
    videos: tuple[tuple[int, int, int], ...] = ((2, 1, 2), (2, 1, 2), (1, 1, 2))  # train, validation, test per site
    remark: str = ""  # stands below the tables
    changes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Entries of rows' fields, by the label of a row, or by ``""`` of all: {"FedAvg": {"training": {...}}}."""
    weights: str = ""  # published weights that all rows begin from; the command line names the file


AS_LONG: dict[str, tuple[str, ...]] = {"fedst": ("batches",)}
"""Arguments of methods that are as many as the comparison's iterations of a round, where a row says no other: FedST's
server has 100 batches where its sites have 100 iterations (Section 4.1.3)."""
STILL = {"iterations": 1, "epochs": 0, "learning_rate": 0.0, "learning_rates": {}, "least_learning_rate": 0.0}
"""Training that changes no weight, of rows that do not train."""
_CLIP_WIDTH = 512  # of CLIP ViT-B/32's texts; all others have the bundle's width
LAST, AVERAGED = "last", "averaged"  # models of a run: after the last round, and the mean over rounds (SWA)
BEST_OF = {"best": LAST, "best averaged": AVERAGED}
"""Rows of the best round, see `best_round`: which model's scores after every round they choose from."""
SCORES = "scores.json"  # of a run's folder, written when all is done
HELD_OUT = "held-out"  # what a site that only tests is called, where its site.yaml gives it no name
SMOKE_TEST = "a check that everything works, too short to tell methods apart"  # the remark of every scale `quick`
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
"""quick: does everything work; small: what two cores carry; paper: the bundle's own 512 x 640, 100 iterations,
batches of 8 and 5e-4, with 200 rounds (PFedSIS, Section IV-B); FedST's presets have their own."""


def scale_of(name: str, preset: Preset) -> Scale:
    """Return a scale as a preset has it: its own training below the scale's, and at ``paper`` its own rounds."""
    scale = preset.scales.get(name, SCALES[name])
    rounds = preset.rounds if name == "paper" and preset.rounds else scale.rounds
    return replace(scale, rounds=rounds, training={**preset.training, **scale.training})


@dataclass(frozen=True)
class Run:
    """One variant with one seed: everything that its numbers depend on, but for the code."""

    variant: Variant
    seed: int
    rounds: int
    training: Mapping[str, Any]
    sites: Mapping[str, str]  # every site's site.yaml by name
    held_out: str = ""  # the site.yaml of one more, never trained on
    threads: int = 1  # PyTorch's; another number may change last bits
    start: str = RANDOM  # what the networks begin from: ``random``, ``rendered`` or ``file``
    start_file: str = ""
    server: str = ""  # the site.yaml of the server's own frames, where the row uses them

    @property
    def bundle(self) -> str:
        """The bundle that the row runs."""
        return self.variant.bundle or bundle_for(self.variant.method)

    @property
    def name(self) -> str:
        """A folder name that another setting cannot share: label, seed and a digest of all the rest."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.variant.label.lower()).strip("-")
        values = self.to_json() | {"sites": {n: self._fingerprint(p) for n, p in self.sites.items()}}
        values["held_out"] = self._fingerprint(self.held_out) if self.held_out else ""
        del values["start"], values["start_file"], values["server"]  # what counts is what is in the files
        values |= {"start": self.start_hash} if self.start_hash else {}
        values |= {"server": self._fingerprint(self.server)} if self.server else {}
        values["variant"] = self.variant.identity()
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{slug[:60]}-seed-{self.seed}-{digest}"

    def job(self) -> dict[str, Any]:
        """Return the settings of the federation's job."""
        own = {"network": self.variant.network, "tasks": self.variant.tasks}
        return {
            "name": self.name,
            "bundle": self.bundle,
            "method": self.variant.method,
            "arguments": dict(self.variant.arguments),
            "training": self._overrides(),
            "rounds": self.rounds,
            **{name: dict(value) for name, value in own.items() if value},
        }

    @property
    def before(self) -> Run | None:
        """The run whose shared model this one begins from."""
        return resolved(replace(self, variant=self.variant.after)) if self.variant.after else None

    def check(self) -> None:
        """Refuse a wrong method, argument, training key or size before anything is rendered or runs.

        Raises:
            ValueError: One sentence.
        """
        load_method(self.variant.method, **self.variant.arguments)
        bundle = self.open_bundle()
        check_tasks(bundle.tasks)
        _ = self.start_hash  # raises where there are no weights
        for name, value in {"rounds": self.rounds, "threads": self.threads}.items():
            between("compare", name, value, 1, whole=True)
        check_size(_weightless(json.dumps(bundle.network)), bundle.training.height, bundle.training.width)
        if self.before:
            self.before.check()

    def open_bundle(self) -> Bundle:
        """Return the row's bundle with this run's values in it."""
        return load_bundle(self.bundle, self._overrides(), self.variant.tasks, self.variant.network)

    def settings(self) -> Training:
        """Return the bundle's training section with this run's values in it."""
        return self.open_bundle().training

    @property
    def clip(self) -> tuple[int, float]:
        """Frames of a sample of the bundle's first task, and the seconds between them."""
        numbers = next(iter(self.open_bundle().tasks.values()))
        return numbers.get("frames", 1), numbers.get("interval", 0.0)

    def _overrides(self) -> dict[str, Any]:
        begins = {} if self.start == RANDOM else {"start": self.start}
        return {**self.training, **self.variant.training, "seed": self.seed, **begins}

    def _fingerprint(self, path: str) -> str:
        return fingerprint(path, self.bundle, self.variant.tasks)

    @property
    def start_weights(self) -> Path | None:
        """The file to begin from, where there is one of the run's own."""
        return Path(self.start_file) if self.start_file else None

    @cached_property  # read once: a run's name is used many times
    def start_hash(self) -> str:
        """A digest of the weights that the run begins from; empty where they are random.

        Raises:
            CheckpointError: There are none.
        """
        source = source_of(self.start, self.bundle, self.start_weights)
        return source[1] if source else ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Undo :meth:`to_json`."""
        return cls(**{**values, "variant": _variant(values["variant"])})


@lru_cache(maxsize=32)  # rows of a table have few networks
def _weightless(definition: str) -> nn.Module:
    return weightless(json.loads(definition))


def _variant(values: Mapping[str, Any]) -> Variant:
    """Undo `dataclasses.asdict`."""
    after = _variant(values["after"]) if values["after"] else None
    groups = {"data": DataChanges(**values["data"]), "length": Length(**values["length"])}
    return Variant(**{**values, **groups, "ticks": tuple(values["ticks"]), "after": after})


def resolved(run: Run) -> Run:
    """Return the run with the values that its row leaves to the comparison: label, rounds, iterations, arguments.

    Raises:
        ValueError: A row's method or training cannot be.
    """
    variant, iterations = run.variant, run.settings().iterations
    rounds, own = apportioned(run.rounds, iterations, variant.length.share)
    own *= variant.length.times
    arguments = _arguments(variant, iterations, rounds)
    training = {**run.training, "iterations": own} if own != iterations else run.training
    if not variant.trains:
        rounds, training = 1, {**run.training, **STILL}
    label = variant.label.format(iterations=own)
    own_variant = replace(variant, label=label, arguments=arguments, network=_network(variant), length=Length())
    return replace(run, variant=own_variant, rounds=rounds, training=training)


def apportioned(rounds: int, iterations: int, share: float) -> tuple[int, int]:
    """Return rounds and iterations of about a share of the iterations, of just the same total.

    Of the total's divisors that one is taken whose ratio to the share is nearest to 1, of two the smaller.
    """
    if share == 1.0:
        return rounds, iterations
    total, wanted = rounds * iterations, share * iterations
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    own = min(divisors, key=lambda number: abs(math.log(number / wanted)))
    return total // own, own


def _arguments(variant: Variant, iterations: int, rounds: int) -> dict[str, Any]:
    trains = load_method(variant.method, **variant.arguments).server.update is not None
    as_long = AS_LONG.get(variant.method, ()) if trains else ()
    averages = AVERAGED in {BEST_OF.get(which, which) for which in variant.shows.values()}
    swa = {"swa": {"start": averaged_from(rounds)}} if averages else {}
    return {**dict.fromkeys(as_long, iterations), **swa, **variant.arguments}


def averaged_from(rounds: int) -> int:
    """Return the first of the rounds t >= 0.75 T, from 0, whose models are averaged; at least the last one's is."""
    return min(math.ceil(0.75 * rounds), rounds - 1)


def at_scale(preset: Preset, scale: Scale) -> Preset:
    """Return a preset with what a scale changes in its rows; what a row says itself is replaced."""

    def changed(row: Variant) -> Variant:
        for label in ("", row.label):
            for name, entries in scale.changes.get(label, {}).items():
                row = replace(row, **{name: {**getattr(row, name), **entries}})  # type: ignore[arg-type]
        return replace(row, after=changed(row.after)) if row.after else row

    return replace(preset, variants=tuple(map(changed, preset.variants)))


def _network(variant: Variant) -> dict[str, Any]:
    """Return the overrides of the network; it takes an indicator of the width of its text's vector."""
    reads = variant.network.get("text") != "none" and variant.arguments.get("text_encoder") == "clip"
    return {**({"indicator": _CLIP_WIDTH} if reads else {}), **variant.network}


def finished(run: Run, root: Path) -> Path | None:
    """Return the folder of a run that is done."""
    done = sorted((root / run.name).glob(f"[0-9]*/{SCORES}"))
    return done[-1].parent if done else None
