"""What is compared: variants of methods, the papers' tables as presets, and sizes that a machine can carry."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from shared_components.arguments import between
from shared_components.bundle_config import Training, build_network, bundle_for, load_bundle
from shared_components.data.sites import Asks, Site, load_site, samples
from shared_components.method import load_method, method_names
from shared_components.start import RANDOM, source_of
from shared_components.task import choose_task


@dataclass(frozen=True)
class Variant:
    """One row of a table: a method with its arguments, and the ticks of an ablation."""

    label: str
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ticks: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Preset:
    """A table of a paper: its rows and its layout, ``scores``, ``costs`` or ``ablation``."""

    title: str
    variants: tuple[Variant, ...]
    layout: str = "scores"
    tick_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """Sizes of the runs and of the synthetic sites (videos for train, validation and test per site).

    ``remark`` stands below the tables.
    """

    rounds: int
    training: Mapping[str, Any]
    frames_per_video: int
    height: int
    width: int
    videos: tuple[tuple[int, int, int], ...] = ((2, 1, 2), (2, 1, 2), (1, 1, 2))
    remark: str = ""


HELD_OUT = "held-out"  # what a site that only tests is called, where its site.yaml gives it no name
SCALES = {
    "quick": Scale(
        3,
        {"height": 64, "width": 96, "learning_rate": 1e-3, "batch_size": 2, "iterations": 12},
        frames_per_video=4,
        height=96,
        width=128,
        remark="a check that everything works, too short to tell methods apart",
    ),
    "small": Scale(
        4,
        {"height": 96, "width": 128, "learning_rate": 5e-4, "batch_size": 4, "iterations": 12},
        frames_per_video=6,
        height=192,
        width=256,
    ),
    "paper": Scale(200, {}, 60, 1024, 1280, videos=((8, 1, 2), (8, 1, 2), (2, 1, 2))),
}
"""quick: does everything work; small: what two cores carry; paper: the bundle's own 512 x 640, 100 iterations,
batches of 8 and 5e-4, with 200 rounds (PFedSIS, Section IV-B)."""


def _pfedsis(label: str, ticks: Sequence[bool], **arguments: Any) -> Variant:
    return Variant(label, "pfedsis", arguments, tuple(ticks))


def _personal(*parts: str) -> dict[str, Any]:
    return {"ape": False, "sge": False, "personal": list(parts)}


_ALL_PARTS = ("decoder", "q", "k", "v")
_FEDAVG, _PFEDSIS = Variant("FedAvg", "fedavg"), Variant("PFedSIS", "pfedsis")

PRESETS = {
    "pfedsis-table1": Preset(
        "Layout of PFedSIS, Table I (* personalised)",
        (
            Variant("Local Train", "local"),
            _FEDAVG,
            Variant("FedSeg", "fedseg"),
            Variant("FedRep*", "fedrep"),
            Variant("pFedLA*", "pfedla"),
            Variant("FedDP*", "feddp"),
            Variant("PFedSIS*", "pfedsis"),
        ),
    ),
    "pfedsis-table2": Preset(
        "Layout of PFedSIS, Table II",
        (
            _FEDAVG,
            Variant("FedSeg", "fedseg"),
            Variant("FedRep", "fedrep"),
            Variant("pFedLA", "pfedla"),
            Variant("FedDP", "feddp"),
            Variant("PFedSIS w/o SGE", "pfedsis", {"sge": False}),
            _PFEDSIS,
        ),
        layout="costs",
    ),
    "pfedsis-table3": Preset(
        "Layout of PFedSIS, Table III: ablation of its components",
        (
            Variant("FedAvg", "fedavg", {}, (False, False, False)),
            _pfedsis("GPD", (True, False, False), ape=False, sge=False),
            _pfedsis("GPD + SGE", (True, True, False), ape=False),
            _pfedsis("GPD + APE", (True, False, True), sge=False),
            _pfedsis("PFedSIS", (True, True, True)),
        ),
        layout="ablation",
        tick_names=("GPD", "SGE", "APE"),
    ),
    "pfedsis-table4": Preset(
        "Layout of PFedSIS, Table IV: what is personal",
        (
            Variant("FedAvg", "fedavg", {}, (False,) * 4),
            *(
                _pfedsis(
                    " + ".join(parts), [p in parts for p in _ALL_PARTS], **_personal(*parts)
                )
                for parts in (("decoder",), ("decoder", "q"), ("decoder", "k"), ("decoder", "v"), _ALL_PARTS)
            ),
        ),
        layout="ablation",
        tick_names=_ALL_PARTS,
    ),
    "fl-endovit-aggregation": Preset(
        "The aggregation schemes of FL-EndoViT, Table 1, on segmentation",
        (
            Variant("Centralised", "centralised"),
            Variant("Adaptive FedSAM", "fedsam", {"adaptive": True}),
            _FEDAVG,
            Variant("FedMedian", "fedmedian"),
            Variant("QFedAvg (q = 2)", "qfedavg", {"q": 2.0}),
            Variant("QFedAvg (q = 0.5)", "qfedavg", {"q": 0.5}),
            Variant("FedAvgM", "fedavgm"),
            Variant("Krum", "krum"),
            Variant("FedAdam", "fedadam"),
        ),
    ),
}  # fmt: skip


def preset_named(name: str) -> Preset:
    """Return a paper's table, or ``all``: every method with its default arguments.

    Raises:
        ValueError: It does not exist; the sentence lists those that do.
    """
    if name == "all":
        return of_methods(method_names(), title="Every method")
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} does not exist; there are {', '.join([*PRESETS, 'all'])}")
    return PRESETS[name]


def of_methods(names: Sequence[str], *, title: str = "Methods") -> Preset:
    """Return a table of methods by file name, with their default arguments.

    Raises:
        ValueError: A method does not exist.
    """
    return Preset(title, tuple(Variant(load_method(name).label, name) for name in names))


def with_arguments(preset: Preset, arguments: Mapping[str, Mapping[str, Any]]) -> Preset:
    """Return the table with arguments of methods added to every row of that method.

    Raises:
        ValueError: No row has a method that is named.
    """
    if unused := sorted(set(arguments) - {variant.method for variant in preset.variants}):
        raise ValueError(f"an argument is given for {unused[0]!r}, which is not compared")
    changed = (
        replace(variant, arguments={**variant.arguments, **arguments.get(variant.method, {})})
        for variant in preset.variants
    )
    return replace(preset, variants=tuple(changed))


@dataclass(frozen=True)
class Run:
    """One variant with one seed: everything that its numbers depend on, but for the code.

    Attributes:
        sites: Every site's site.yaml by name; ``held_out`` is one more, never trained on.
        threads: PyTorch's; another number may change last bits.
        start: What the networks begin from, ``random``, ``rendered`` or ``file``; ``start_file`` is the last one's.
    """

    variant: Variant
    seed: int
    rounds: int
    training: Mapping[str, Any]
    sites: Mapping[str, str]
    held_out: str = ""
    threads: int = 1
    start: str = RANDOM
    start_file: str = ""

    @property
    def name(self) -> str:
        """A folder name that another setting cannot share: label, seed and a digest of all the rest."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.variant.label.lower()).strip("-")
        bundle = bundle_for(self.variant.method)
        values = self.to_json() | {"sites": {n: fingerprint(p, bundle) for n, p in self.sites.items()}}
        values["held_out"] = fingerprint(self.held_out, bundle) if self.held_out else ""
        del values["start"], values["start_file"]  # what counts is what is in the file
        values |= {"start": start} if (start := self.start_hash()) else {}
        values["variant"] = {"method": self.variant.method, "arguments": dict(self.variant.arguments)}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{slug[:60]}-seed-{self.seed}-{digest}"

    def job(self) -> dict[str, Any]:
        """Return the settings of the federation's job."""
        return {
            "name": self.name,
            "bundle": bundle_for(self.variant.method),
            "method": self.variant.method,
            "arguments": dict(self.variant.arguments),
            "training": self._overrides(),
            "rounds": self.rounds,
        }

    def check(self) -> None:
        """Refuse a wrong method, argument, training key or size before anything is rendered or runs.

        Raises:
            ValueError: One sentence.
        """
        load_method(self.variant.method, **self.variant.arguments)
        settings = self.settings()
        self.start_hash()
        for name, value in {"rounds": self.rounds, "threads": self.threads}.items():
            between("compare", name, value, 1, whole=True)
        _check_size(bundle_for(self.variant.method), settings.height, settings.width)

    def settings(self) -> Training:
        """Return the bundle's training section with this run's values in it."""
        return load_bundle(bundle_for(self.variant.method), self._overrides()).training

    def _overrides(self) -> dict[str, Any]:
        begins = {} if self.start == RANDOM else {"start": self.start}
        return {**self.training, "seed": self.seed, **begins}

    @property
    def start_weights(self) -> Path | None:
        """The file to begin from, where there is one of the run's own."""
        return Path(self.start_file) if self.start_file else None

    def start_hash(self) -> str:
        """Return a digest of the weights that the run begins from; empty where they are random.

        Raises:
            CheckpointError: There are none.
        """
        return self._source[1] if self._source else ""

    @cached_property
    def _source(self) -> tuple[Path, str] | None:
        """The weights' file and digest, read once: a run's name is asked for again and again."""
        return source_of(self.start, bundle_for(self.variant.method), self.start_weights)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """Undo :meth:`to_json`."""
        variant = Variant(**{**values["variant"], "ticks": tuple(values["variant"]["ticks"])})
        return cls(**{**values, "variant": variant})


def _check_size(bundle: str, height: int, width: int) -> None:
    stride = _stride(bundle)
    if height % stride or width % stride:
        rows, columns = (max(1, round(size / stride)) * stride for size in (height, width))
        raise ValueError(
            f"the size is {height}x{width}, and the network of {bundle} takes multiples of {stride}; "
            f"{rows}x{columns} would do"
        )


@lru_cache
def _stride(bundle: str) -> int:
    """Return what a bundle's network says that height and width must be multiples of."""
    network: Any = build_network(load_bundle(bundle).network)
    return int(network.stride)


def fingerprint(path: str, bundle: str) -> str:
    """Return a digest of a site's description and of its files' names and sizes; where they lie does not count.

    Of its own text vectors and text encoder, if it has any, the files count likewise.

    Args:
        path: The site's site.yaml.
        bundle: With the site's task it decides which files are read.

    Raises:
        SiteError: The description is wrong, or a video is missing.
    """
    return _fingerprint(path, bundle, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _fingerprint(path: str, bundle: str, changed: int) -> str:
    site = load_site(Path(path))
    digest = hashlib.sha256(Path(path).read_bytes())
    for split in sorted(site.split):
        for sample in samples(site, split, _asks(site, bundle)):
            paths = [*sample.images, *(path for paths in sample.targets.values() for path in paths)]
            files = [(path.name, path.stat().st_size) for path in paths]
            digest.update(json.dumps([split, sample.video, sample.index, files]).encode())
    for own in (site.text_vectors, site.text_encoder):
        if own is not None:
            inside = sorted(path for path in [own, *own.rglob("*")] if path.is_file())
            digest.update(json.dumps([(path.name, path.stat().st_size) for path in inside]).encode())
    return digest.hexdigest()


def _asks(site: Site, bundle: str) -> Asks:
    """Return what the site's task asks of its data; where the bundle does not learn it, the pictures alone.

    Such a run has a name, so that the other rows go on: the federation refuses it with a sentence.
    """
    try:
        return choose_task(
            load_bundle(bundle).tasks, site.task, classes=site.classes, who=str(site.path)
        ).asks
    except ValueError:
        return Asks(targets=())
