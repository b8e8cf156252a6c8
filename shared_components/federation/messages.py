"""What travels between server and site, and what a job says."""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from shared_components.common.arguments import between
from shared_components.common.reject_code import refuse_code
from shared_components.core.partition import Pieces
from shared_components.federation.job_ranges import (
    LARGEST,
    check_privacy,
    check_section,
    check_secure_sums,
    check_synthetic,
)
from shared_components.federation.privacy.gaussian import Privacy
from shared_components.networks.bundle_config import MOST_ROUNDS, Bundle, load_bundle

MOST_SITES, LONGEST_WAIT = 10_000, 10_000_000  # seconds
CHECKED_WHERE_READ = ("training", "network")  # each value by its own type and range: `open_bundle`


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
    """Everything a job says: names and numbers, no paths and no code.

    Attributes:
        name: Folder name of the job; its state lives under it.
        bundle: Folder in ``bundles/`` whose network and training settings are used.
        method: File in ``shared_components/methods``.
        arguments: The method's own arguments; ``load_method`` refuses an unknown one.
        training: Overrides of the bundle's ``training`` section; an unknown key is refused when it is read.
        tasks: By kind of task, overrides of the bundle's numbers.
        network: Overrides of the network's arguments, by name.
        rounds: Communication rounds.
        min_sites: Updates that a round needs; 0 stands for all sites that are asked.
        client_fraction: Share of the sites that a round asks, drawn anew for each; at least one, and as many as the
            method needs.
        grace_seconds: How long a round still waits once it has ``min_sites`` updates.
        longest_wait_seconds: How long a task may take at most; then its site counts as absent.
        largest_change: Updates that move further than this times (1 + norm of what was sent) are rejected.
        synthetic: Simulator only: what a site renders that has no data of its own (``frames_per_video``, ``videos``
            for train, validation and test, ``height``, ``width``, ``seed``; ``tasks`` to cycle through, frames of a
            ``clip`` and their ``interval`` in seconds).
        privacy: Clipped noise on every update: ``clip``, ``noise_multiplier``, ``delta``; empty: none, see
            `shared_components.federation.privacy`.
        secure_sums: Let the server see nothing but the sum of the sites' weights (``threshold`` sites at least are in
            it and open it; ``fraction_bits`` of a weight). Empty: it sees each site's.
    """

    name: str
    bundle: str
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 200
    min_sites: int = 0
    client_fraction: float = 1.0
    grace_seconds: float = 60.0
    longest_wait_seconds: float = 3600.0
    largest_change: float = 10.0
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure_sums: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("name", "bundle", "method"):
            if not isinstance(value := getattr(self, key), str):
                raise ValueError(f"job: {key} is {value!r:.80}; write a name")
        who = f"job {folder_name('job name', self.name)}"
        for key in ("arguments", "training", "tasks", "network", "synthetic", "privacy", "secure_sums"):
            check_section(who, key, getattr(self, key), values=key not in CHECKED_WHERE_READ)
            refuse_code(getattr(self, key), f"{who}: {key}")
        between(who, "rounds", self.rounds, 1, MOST_ROUNDS, whole=True)
        between(who, "min_sites", self.min_sites, 0, MOST_SITES, whole=True)
        between(who, "client_fraction", self.client_fraction, 0, 1, ends="(]")
        between(who, "grace_seconds", self.grace_seconds, 0, LONGEST_WAIT)
        between(who, "longest_wait_seconds", self.longest_wait_seconds, 0, LONGEST_WAIT, ends="(]")
        between(who, "largest_change", self.largest_change, 0, LARGEST, ends="(]")
        check_synthetic(who, self.synthetic)
        check_privacy(who, self.privacy)
        check_secure_sums(who, self.secure_sums)
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
        """What ``privacy`` says; None where the job has none."""
        return Privacy(**self.privacy) if self.privacy else None

    def open_bundle(self) -> Bundle:
        """Return the job's bundle with its own numbers in it; ValueError where they do not fit."""
        return load_bundle(self.bundle, self.training, self.tasks, self.network)

    def drawn(self, sites: Sequence[str], round: int, seed: int, *, least: int = 1) -> list[str]:
        """Return the sites that a round asks, in their order: the same ones whenever the round is run again.

        Args:
            sites: All sites, in order.
            round: Counted from 0.
            seed: The training's.
            least: How many the method needs.
        """
        count = min(len(sites), max(least, math.ceil(self.client_fraction * len(sites) - 1e-9)))
        if count == len(sites):
            return list(sites)
        draw = random.Random(f"{seed} {round}")  # nosec B311 # a draw that can be repeated, no secret
        chosen = draw.sample(range(len(sites)), count)
        return [sites[number] for number in sorted(chosen)]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """Build a job; an unknown key, and one that is missing, is refused by name."""
        if not isinstance(values, Mapping):
            raise ValueError(f"job: it is {values!r:.80}; write its settings as 'name: value'")
        known = {f.name for f in fields(cls)}
        if missing := [key for key in ("name", "bundle", "method") if key not in values]:
            raise ValueError(f"job: {missing[0]!r} is missing")
        if unknown := sorted(set(values) - known):
            raise ValueError(f"job: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
        return cls(**values)


def is_number(value: object) -> bool:
    """Say whether a value is a finite number, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # neither NaN nor infinite, nor a whole number that no float holds
