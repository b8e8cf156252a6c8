"""What is tried with a provisioned federation of real processes; every file here is a room of trials.

    @trial("the server is killed -9 after round 1", quick=True)
    def server_killed(deploy: Deploy) -> str:
        ...
        return "24 of 24 tensors bit-equal"

A trial makes its federation by ``deploy``, breaks it, asserts what must have survived, and returns the figure that it
saw. `python -m evidence.production` runs all and prints the table; CI runs those that are ``quick``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from evidence.production.deployment import Deployment

Deploy = Callable[..., Deployment]
"""Provisions a federation: the sites' names (three without), and options of `Deployment`; it ends with the trial."""


@dataclass(frozen=True)
class Trial:
    """One row of the table.

    Attributes:
        room: The file it stands in.
        words: What is tried, without a full stop.
        run: Breaks a federation and returns a figure; an AssertionError says what was lost.
        quick: Whether CI runs it.
    """

    room: str
    words: str
    run: Callable[[Deploy], str]
    quick: bool


_TRIALS: list[Trial] = []


def trial(words: str, *, quick: bool = False) -> Callable[[Callable[[Deploy], str]], Callable[[Deploy], str]]:
    """Register a function as a trial."""

    def register(run: Callable[[Deploy], str]) -> Callable[[Deploy], str]:
        _TRIALS.append(Trial(run.__module__.rpartition(".")[2], words, run, quick))
        return run

    return register


def all_trials() -> list[Trial]:
    """Return every trial, by room and in the order of its file."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return list(_TRIALS)
