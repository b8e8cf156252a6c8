"""Messages between server and site, and the job that they belong to."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor

from shared_components.common.schema import check_keys, check_values, kinds_of, parse, required_by
from shared_components.core.partition import Pieces
from shared_components.federation.job_ranges import LARGEST, SYNTHETIC, SecureSums, check_section
from shared_components.federation.privacy.gaussian import Privacy
from shared_components.networks.bundle_config import MOST_ROUNDS, Bundle, load_bundle

MOST_SITES, LONGEST_WAIT = 10_000, 10_000_000  # seconds
SECTIONS = ("arguments", "training", "tasks", "network", "synthetic", "privacy", "secure_sums")
CHECKED_WHERE_READ = ("training", "network")  # each value by its own type and range: `open_bundle`
Name = Annotated[str, Meta(description="write a name")]


class FederationError(RuntimeError):
    """The job cannot go on; the message is one sentence for a person."""


class SiteRefusal(FederationError):
    """A site cannot or will not take part; the message names the site, the file or key, and what to do."""


@dataclass(frozen=True)
class Message:
    """Plain values and tensors.

    Attributes:
        header: Plain values.
        pieces: GLOBAL and MIXED pieces of the network; empty where there are none.
        groups: Further tensors by the name of their group: a method's extras, what its server broadcasts, and at
            the finish a consenting site's ``model``.
    """

    header: dict[str, Any]
    pieces: Pieces = field(default_factory=dict)
    groups: dict[str, Pieces] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Say whether no tensor travels."""
        return not self.pieces and not any(self.groups.values())


def total_bytes(pieces: Mapping[str, Tensor]) -> int:
    """Return the bytes of the numbers themselves."""
    return sum(value.numel() * value.element_size() for value in pieces.values())


def folder_name(what: str, value: str) -> str:
    """Return a name that may become a folder; a server must not choose where a site writes.

    Raises:
        ValueError: It is not made of letters, digits, `_`, `-` and `.`, or begins with a dot.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", str(value)):
        raise ValueError(f"{what} {value!r} is no folder name; use letters, digits, '_', '-' and '.'")
    return value


@dataclass(frozen=True)
class Job:
    """The settings of a federation: names and numbers, no paths and no code.

    Attributes:
        name: Folder name of the job; its state lies under it.
        bundle: Folder in ``bundles/`` whose network and training settings are used.
        method: File in ``shared_components/methods``.
        arguments: The method's own arguments; ``load_method`` refuses an unknown one.
        training: Overrides of the bundle's ``training`` section; an unknown key is refused when it is read.
        tasks: By kind of task, overrides of the bundle's numbers.
        network: Overrides of the network's arguments, by name.
        rounds: Communication rounds.
        min_sites: Updates that a round needs; 0: of all its sites.
        client_fraction: Share of the sites that take part in a round, sampled for each; at least one, and as many as
            the method needs.
        grace_seconds: How long a round still waits once it has ``min_sites`` updates.
        longest_wait_seconds: How long a task may take at most; then its site counts as absent.
        largest_change: Updates that move further than this times (1 + norm of what was sent) are rejected.
        synthetic: Simulator only: sizes of the scenes that a site without data renders (``frames_per_video``,
            ``videos`` for train, validation and test, ``height``, ``width``, ``seed``; ``tasks`` to cycle through,
            frames of a ``clip`` and their ``interval`` in seconds).
        privacy: Clipped noise on every update, see `privacy.gaussian.Privacy`; empty: none.
        secure_sums: Let the server see nothing but the sum of the sites' weights, see `job_ranges.SecureSums`; empty:
            it sees each site's.
    """

    name: Name
    bundle: Name
    method: Name
    arguments: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 200
    min_sites: Annotated[int, Meta(ge=0, le=MOST_SITES)] = 0
    client_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    grace_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 60.0
    longest_wait_seconds: Annotated[float, Meta(gt=0, le=LONGEST_WAIT)] = 3600.0
    largest_change: Annotated[float, Meta(gt=0, le=LARGEST)] = 10.0
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure_sums: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds, values = kinds_of(Job), vars(self)
        check_values({key: kinds[key] for key in required_by(Job)}, values, "job")
        who = f"job {folder_name('job name', self.name)}"
        for key in SECTIONS:
            check_section(who, key, values[key], values=key not in CHECKED_WHERE_READ)
        check_values({key: kind for key, kind in kinds.items() if key not in SECTIONS}, values, who)
        check_values(SYNTHETIC, self.synthetic, who, key="synthetic.{}")
        if self.privacy:
            parse(Privacy, self.privacy, who, key="privacy.{}")
        if self.secure_sums:
            parse(SecureSums, self.secure_sums, who, key="secure_sums.{}")
        if self.privacy and self.secure_sums:
            raise ValueError(
                f"{who}: privacy and secure_sums do not work together yet (noisy sites all count alike, and a sum "
                "weighs them by samples); leave one of them out"
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: dict(v) if isinstance(v, Mapping) else v for key, v in asdict(self).items()}

    @property
    def noise(self) -> Privacy | None:
        """The job's ``privacy``; None where it has none."""
        return Privacy(**self.privacy) if self.privacy else None

    def open_bundle(self) -> Bundle:
        """Return the job's bundle with its own numbers in it; ValueError where they do not fit."""
        return load_bundle(self.bundle, self.training, self.tasks, self.network)

    def drawn(self, sites: Sequence[str], round: int, seed: int, *, least: int = 1) -> list[str]:
        """Return the sites that take part in a round, in their order: the same ones whenever the round is run again.

        Args:
            sites: All sites, in order.
            round: From 0 on.
            seed: The training's.
            least: Sites that the method needs.
        """
        count = min(len(sites), max(least, math.ceil(self.client_fraction * len(sites) - 1e-9)))
        if count == len(sites):
            return list(sites)
        draw = random.Random(f"{seed} {round}")  # nosec B311 # a draw that can be repeated, no secret
        chosen = draw.sample(range(len(sites)), count)
        return [sites[number] for number in sorted(chosen)]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """Build a job; ValueError names a key that is unknown, missing or out of its range."""
        return cls(**check_keys(kinds_of(cls), values, "job", required_by(cls)))
