"""What travels between server and site, and what a job says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from shared_components.partition import Pieces


class FederationError(RuntimeError):
    """The job cannot go on; the message is one sentence for a person."""


class SiteRefusal(FederationError):
    """A site cannot or will not take part; the message names the site, the file or key, and what to do."""


@dataclass(frozen=True)
class Message:
    """Plain values and tensors. ``tensors`` groups them: ``pieces`` and a method's extras."""

    header: dict[str, Any]
    tensors: dict[str, Pieces] = field(default_factory=dict)

    @property
    def pieces(self) -> Pieces:
        """The group of GLOBAL and MIXED pieces; empty where there is none."""
        return self.tensors.get("pieces", {})

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each group of tensors."""
        return {group: total_bytes(pieces) for group, pieces in self.tensors.items()}


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
        rounds: Communication rounds.
        min_sites: Updates that a round needs; 0 stands for all sites.
        grace_seconds: How long a round still waits once it has ``min_sites`` updates.
        longest_wait_seconds: How long a task may take at most; then its site counts as absent.
        largest_change: Updates that move further than this times (1 + norm of what was sent) are rejected.
        synthetic: Simulator only: what a site renders that has no data of its own (``frames_per_video``, ``videos``
            for train, validation and test, ``height``, ``width``, ``seed``).
    """

    name: str
    bundle: str
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 200
    min_sites: int = 0
    grace_seconds: float = 60.0
    longest_wait_seconds: float = 3600.0
    largest_change: float = 10.0
    synthetic: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folder_name("job name", self.name)
        if self.rounds < 1:
            raise ValueError(f"job {self.name}: rounds is {self.rounds}; at least 1 is needed")
        if self.longest_wait_seconds <= 0 or self.grace_seconds < 0:
            raise ValueError(
                f"job {self.name}: longest_wait_seconds must be positive, grace_seconds not negative"
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: dict(v) if isinstance(v, Mapping) else v for key, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """Build a job; an unknown key is refused by name."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"job: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
        return cls(**values)
