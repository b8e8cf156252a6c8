"""Where a number came from: commit, seed and hardware, for the run's record."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import torch

from shared_components import __version__
from shared_components.common.machine import hardware
from shared_components.federation.messages import Job


def provenance(job: Job) -> dict[str, Any]:
    """Return commit, version, seed and hardware as plain values."""
    return {
        "commit": commit(),
        "version": __version__,
        "seed": job.open_bundle().training.seed,
        "hardware": hardware(),
        "torch": torch.__version__,
    }


@functools.cache  # what a process has loaded stays as it is
def commit() -> str:
    """Return the commit of the source tree, marked where it has uncommitted changes; empty outside a checkout."""
    here = Path(__file__).resolve()
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # not in a repository that an installation lies in
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=10")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    found = subprocess.run(  # nosec B603, B607 # fixed words, no shell; git is where the person's PATH has it
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return found.stdout.strip()
