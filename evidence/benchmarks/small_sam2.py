"""Measure the memory of SurgFed at the published size: one round of two sites with SAM2 small in FLARE's simulator.

`python -m evidence.benchmarks.small_sam2`. Weights are random and data rendered: one site with three object classes and
one depth site, 512 pixels, clips of two frames, batch 1. Memory is the sum of the proportional set sizes of all
processes (a page shared by several processes counts once), read five times per second; the largest sum counts.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from evidence.benchmarks.simulator import JOBS, NVFLARE

AIM = 12  # GB
SIDE, STEPS = 512, 2
TRAINING = {"height": SIDE, "width": SIDE, "batch_size": 1, "iterations": STEPS, "learning_rate": 1e-4}
CHANGES: dict[str, Any] = {
    "rounds": 1,
    "training": TRAINING | {"start": "random"},
    "network": {"architecture": "small", "size": SIDE},
    "synthetic": {"layouts": ["endovis2017", "scared"], "height": SIDE, "width": SIDE},
}


def main(changes: dict[str, Any] = CHANGES) -> None:
    """Print the largest sum, and each site's share of it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        write_job(job, changes)
        started = time.monotonic()
        command = [NVFLARE, "simulator", str(job), "-w", str(Path(folder) / "ws"), "-n", "2", "-t", "2"]
        peak = peak_of(command, Path(folder) / "log.txt")
        took = time.monotonic() - started
    print(f"a round of two sites, SAM2 small at {SIDE}x{SIDE}, batch 1, {STEPS} steps, all processes (aim {AIM} GB)")
    print(f"  at most {peak / 1e9:.1f} GB; {took:.0f} s")


def write_job(job: Path, changes: dict[str, Any], *, name: str = "surgfed") -> None:
    """Copy a job with some changed arguments."""
    shutil.copytree(JOBS / name, job)
    path = job / "app/config/config_fed_server.json"
    config = json.loads(path.read_text("utf-8"))
    config["workflows"][0]["args"] |= changes
    path.write_text(json.dumps(config))


def peak_of(command: list[str], log: Path) -> int:
    """Run a command with its output in a file; return the peak memory in bytes of the command and its descendants."""
    environment = {**os.environ, "SURGFL_CPU_THREADS": "1"}
    environment.pop("SURGFL_SITE_CONFIG", None)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    whole, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        family = [whole, *whole.children(recursive=True)]
        peak = max(peak, sum(map(held_by, family)))
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"{log.read_text(encoding='utf-8')}\n{command[0]} ended with {process.returncode}")
    return peak


def held_by(process: psutil.Process) -> int:
    """Return the proportional set size of a process in bytes; 0 if it has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
