"""Job settings: parse, check and change them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

from shared_components.common.arguments import between
from shared_components.common.plain_values import check_amount
from shared_components.common.reject_code import refuse_code
from shared_components.common.schema import check_keys, check_values, kinds_of, parse, required_by, short_repr
from shared_components.core.bundle import Bundle, load_bundle
from shared_components.core.training_settings import MOST_ROUNDS
from shared_components.federation.privacy.gaussian import Privacy
from shared_components.federation.secure_sums.job_section import SecureSums
from shared_components.networks.network_class import check_job_class

MOST_SITES, LONGEST_WAIT = 10_000, 10_000_000  # seconds
SECTIONS = ("arguments", "training", "tasks", "network", "synthetic", "privacy", "secure_sums", "regions")
CHECKED_LATER = ("training", "network")  # `open_bundle` checks type and range of each value
Name = Annotated[str, Meta(description="write a name")]
Sites = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=100)]],
    Meta(min_length=1, max_length=MOST_SITES, description="write a list of the region's sites"),
]
Wire = Literal["float32", "bf16"]
FLOAT32: Wire = "float32"
BF16: Wire = "bf16"
LARGEST = 1_000_000_000  # limit of every number except seeds
LARGEST_SEED = 2**63 - 1
LATEST = "latest"  # link to the newest run; no run may have this name
Side = Annotated[int, Meta(ge=1, le=4096)]
Videos = Annotated[int, Meta(ge=0, le=1000)]
SYNTHETIC: Mapping[str, Any] = {
    "frames_per_video": Annotated[int, Meta(ge=1, le=100_000)],
    "height": Side,
    "width": Side,
    "seed": Annotated[int, Meta(ge=0, le=LARGEST_SEED)],
    "clip": Annotated[int, Meta(ge=1, le=1024)],
    "interval": Annotated[float, Meta(ge=0, le=3600)],
    "dense": bool,
    "layouts": Annotated[list[Name], Meta(min_length=1, description="it is a list of layouts, see `surgfl render -h`")],
    "set": Annotated[str, Meta(max_length=100, description="write endo700k or fedsurg, or leave it out")],
    "videos": Annotated[
        list[Videos], Meta(min_length=3, max_length=3, description="it is three whole numbers: train, validation, test")
    ],
}
"""Types of the keys of section ``synthetic``."""
SYNTHETIC_KEYS: Mapping[str, str] = {
    "tasks": "Kinds of task, assigned to sites in turn; default: the layout's task.",
    "layouts": "Data layouts, assigned to sites in turn.",
    "set": "Named set of sites with their own looks, layouts, tasks and videos.",
    "videos": "Number of videos for training, validation and test.",
    "frames_per_video": "Number of frames in a video.",
    "height": "Height of a frame, in pixels.",
    "width": "Width of a frame, in pixels.",
    "seed": "Seed of the scenes.",
    "clip": "Number of frames in a clip.",
    "interval": "Seconds between two frames of a clip.",
    "dense": "Label all frames of a clip, not only the last.",
}


def folder_name(what: str, value: str) -> str:
    """Return a name if it is valid for a folder, else raise ValueError: a server must not choose a site's paths."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", str(value)):
        raise ValueError(f"{what} {value!r} is no folder name; use letters, digits, '_', '-' and '.'")
    return value


@dataclass(frozen=True)
class Job:
    """The settings of a federation: names and numbers, no paths and no code.

    Attributes:
        name: Name of the job and of its state folder.
        bundle: Folder in ``bundles/`` with network, tasks and training settings.
        method: File in ``shared_components/methods``.
        arguments: The method's arguments; its card explains them.
        training: Changes to the bundle's training settings.
        tasks: Changes to the bundle's task settings, by kind of task.
        network: Changes to the network's arguments, or another network's ``class`` and arguments.
        rounds: Number of communication rounds.
        validate_every: Rounds between validations; final models are always validated.
        checkpoint_every: Rounds between states that server and sites keep for restoring a backup; 0: only the newest.
        min_sites: Updates that a round needs; 0: all sampled sites.
        client_fraction: Share of sites sampled for each round, rounded half up; at least 1 site, and as many as the
            method needs.
        grace_seconds: Time that a round still waits after ``min_sites`` updates.
        longest_wait_seconds: Time limit of a task; a slower site counts as absent.
        largest_change: Reject updates whose change exceeds this times (1 + norm of the model sent).
        synthetic: Simulator only: scenes that a site without data renders.
        privacy: Clipping and noise on every update.
        secure_sums: Show the server only the sum of the sites' weights; excludes ``privacy`` and ``bf16``.
        wire: Format of tensors in messages; states and sums stay float32.
        regions: Sites by region; the server combines the regions' means. Excludes ``privacy`` and ``secure_sums``.
    """

    name: Name
    bundle: Name
    method: Name
    arguments: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 200
    validate_every: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 1
    checkpoint_every: Annotated[int, Meta(ge=0, le=MOST_ROUNDS)] = 0
    min_sites: Annotated[int, Meta(ge=0, le=MOST_SITES)] = 0
    client_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    grace_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 60.0
    longest_wait_seconds: Annotated[float, Meta(gt=0, le=LONGEST_WAIT)] = 3600.0
    largest_change: Annotated[float, Meta(gt=0, le=LARGEST)] = 10.0
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure_sums: Mapping[str, Any] = field(default_factory=dict)
    wire: Wire = FLOAT32
    regions: Mapping[str, Sites] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds, values = kinds_of(Job), vars(self)
        check_values({key: kinds[key] for key in required_by(Job)}, values, "job")
        who = f"job {folder_name('job name', self.name)}"
        for key in SECTIONS:
            _check_section(who, key, values[key], numbers=key not in CHECKED_LATER)
        check_values({key: kind for key, kind in kinds.items() if key not in SECTIONS}, values, who)
        check_values(SYNTHETIC, self.synthetic, who, key="synthetic.{}")
        if self.privacy:
            parse(Privacy, self.privacy, who, key="privacy.{}")
        if self.secure_sums:
            parse(SecureSums, self.secure_sums, who, key="secure_sums.{}")
        if self.privacy and self.secure_sums:
            # noisy sites all count alike, and a sum weighs them by samples
            raise ValueError(f"{who}: privacy and secure_sums do not work together; leave one of them out")
        if self.wire != FLOAT32 and self.secure_sums:  # masked weights are integers, which cannot be rounded
            remedy = f"write wire: {FLOAT32}, or leave secure_sums out"
            raise ValueError(f"{who}: wire is {self.wire}, which secure_sums do not take; {remedy}")
        self._check_regions(who)

    def _check_regions(self, who: str) -> None:
        check_values({"regions": kinds_of(Job)["regions"]}, {"regions": self.regions}, who)
        seen: dict[str, str] = {}
        for region, sites in self.regions.items():
            folder_name("region", region)
            for site in sites:
                if site in seen:
                    raise ValueError(f"{who}: regions.{region} names {site!r}, which is in {seen[site]}; name it once")
                seen[site] = region
        others = {"privacy": self.privacy, "secure_sums": self.secure_sums}
        if self.regions and (both := [key for key, value in others.items() if value]):
            raise ValueError(f"{who}: regions and {both[0]} do not work together yet; leave one of them out")

    def to_json(self) -> dict[str, Any]:
        return {key: dict(v) if isinstance(v, Mapping) else v for key, v in asdict(self).items()}

    @property
    def noise(self) -> Privacy | None:
        return Privacy(**self.privacy) if self.privacy else None

    @property
    def sums(self) -> SecureSums | None:
        return SecureSums(**self.secure_sums) if self.secure_sums else None

    def open_bundle(self) -> Bundle:
        """Return the bundle with the job's settings; ValueError if they do not fit or are not allowed."""
        check_job_class(self.network)
        return load_bundle(self.bundle, self.training, self.tasks, self.network)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default of each optional setting."""
        optional = [setting for setting in fields(Job) if setting.name not in required_by(Job)]
        return {setting.name: {} if setting.default is MISSING else setting.default for setting in optional}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """Build a job; ValueError names a key that is unknown, missing or out of range."""
        return cls(**check_keys(kinds_of(Job), values, "job", required_by(Job)))


def with_changes(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return job settings with changes; a section keeps the entries that the changes do not name.

    None restores the default of a setting or of an entry of ``training``. In ``training``, ``iterations`` replaces
    ``epochs`` and vice versa.
    """
    merged = _merged(settings, changes)
    old, new, training = (values.get("training") for values in (settings, changes, merged))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and isinstance(training, dict):
        if new.get("epochs") and "iterations" not in new:
            training.pop("iterations", None)
        if new.get("iterations") and "epochs" not in new and old.get("epochs"):
            training["epochs"] = 0
    if isinstance(training, Mapping):
        merged["training"] = {name: value for name, value in training.items() if value is not None}
    return {key: value for key, value in merged.items() if value is not None}


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(settings)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _check_section(who: str, section: str, values: object, *, numbers: bool) -> None:
    """Check that a section maps names to plain values without code, and with ``numbers`` the range of each number."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{who}: {section} is {short_repr(values)}; write its settings as 'name: value'")
    check_amount(f"{who}: {section}", values)
    if numbers:
        _check_numbers(who, section, values)
    refuse_code(values, f"{who}: {section}")


def _check_numbers(who: str, key: str, value: object) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_numbers(who, f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_numbers(who, key, item)
    elif value is None or isinstance(value, bool | str) or (isinstance(value, float) and not math.isfinite(value)):
        return  # method and task refuse numbers that are not finite, with their own range
    else:
        most = LARGEST_SEED if key.rpartition(".")[2] == "seed" else LARGEST
        between(who, key, value, -most, most)
