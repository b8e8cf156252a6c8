"""Trials of a provisioned federation of real processes; each file contains one group of trials.

    @trial("the server is killed -9 after round 1", quick=True)
    def server_killed(deploy: Deploy) -> str:
        ...
        return "24 of 24 tensors bit-equal"

A trial provisions its federation with ``deploy``, breaks it, asserts the parts that must survive, and returns its
result. `python -m evidence.production` runs all trials and prints the table. CI runs the ``quick`` trials.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from evidence.production.deployment import Deployment

Deploy = Callable[..., Deployment]
"""Function that provisions a federation from site names (default: three sites) and options of `Deployment`."""


@dataclass(frozen=True)
class Trial:
    """One row of the table.

    Attributes:
        room: File of the trial.
        words: Description, without a full stop.
        run: Function that breaks a federation and returns the result; an AssertionError describes the damage.
        quick: Whether CI runs the trial.
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
