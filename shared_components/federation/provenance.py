"""Where a number came from: commit, seed and hardware, for the run's record."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from shared_components import __version__
from shared_components.bundle_config import load_bundle
from shared_components.federation.messages import Job


def provenance(job: Job) -> dict[str, Any]:
    """Return commit, version, seed and hardware as plain values."""
    return {
        "commit": commit(),
        "version": __version__,
        "seed": load_bundle(job.bundle, job.training).training.seed,
        "hardware": hardware(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """Return the commit of the source tree, marked where it has uncommitted changes; empty outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def hardware() -> str:
    """Return processor, cores usable by this process and accelerators in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([name, f"{cores} cores", *cards])
