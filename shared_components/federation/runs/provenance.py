"""Provenance of a run: commit, seed and hardware."""

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
    seed = job.open_bundle().training.seed
    versions = {"commit": commit(), "version": __version__}
    return {**versions, "seed": seed, "hardware": hardware(), "torch": torch.__version__}


@functools.cache  # the code of a process does not change
def commit() -> str:
    """Return the commit of the source tree, marked if it has uncommitted changes; empty outside a checkout."""
    here = Path(__file__).resolve()
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # fails in a repository around an installation
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=10")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(  # nosec B603, B607 # fixed words, no shell; git from the person's PATH
        command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
