"""Carry out many runs, what fits side by side, each in a process of its own; a second call goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shared_components.comparison.plan import Run
from shared_components.comparison.run import REFUSED, SCORES
from shared_components.federation.store import write_json

GIGABYTES_PER_RUN = 2.0  # at the small sizes; more at the paper's, where a GPU's memory decides


@dataclass
class Working:
    """A run under way."""

    run: Run
    process: subprocess.Popen
    log: Path
    began: float
    stream: IO[str]


def finished(run: Run, root: Path) -> Path | None:
    """Return the folder of a run that is done."""
    done = sorted((root / run.name).glob(f"[0-9]*/{SCORES}"))
    return done[-1].parent if done else None


def side_by_side(threads: int) -> int:
    """Return how many runs fit: by cores, and by the memory that is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // threads, int(_free_gigabytes() / GIGABYTES_PER_RUN)))


def _free_gigabytes() -> float:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (ValueError, OSError):
        return GIGABYTES_PER_RUN


def carry_out_all(
    runs: Sequence[Run], root: Path, *, jobs: int, say: Callable[[str], None] = print
) -> dict[str, str]:
    """Carry out every run that is not done, ``jobs`` at a time.

    An interruption ends the processes and leaves their state; the same call goes on from it.

    Returns:
        Why, by run name, for those that have no result.
    """
    todo = [run for run in runs if not finished(run, root)]
    if len(todo) < len(runs):
        say(f"{len(runs) - len(todo)} of {len(runs)} runs are done already")
    waiting = list(todo)
    working: list[Working] = []
    reasons: dict[str, str] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(_start(waiting.pop(0), root))
            for one in [w for w in working if w.process.poll() is not None]:
                working.remove(one)
                _close(one, root, reasons, say, left=len(waiting) + len(working))
            time.sleep(0.05)
    finally:
        for one in working:
            one.process.terminate()
        for one in working:
            one.process.wait()
            one.stream.close()
    return reasons


def _start(run: Run, root: Path) -> Working:
    folder = root / run.name
    write_json(folder / "settings.json", run.to_json())
    log = folder / "log.txt"
    stream = log.open("a")
    threads = str(run.threads)
    command = [
        sys.executable,
        "-m",
        "shared_components.comparison.run",
        str(folder / "settings.json"),
        str(root),
    ]
    process = subprocess.Popen(
        command,
        stdout=stream,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
    )
    return Working(run, process, log, time.monotonic(), stream)


def _close(
    one: Working, root: Path, reasons: dict[str, str], say: Callable[[str], None], *, left: int
) -> None:
    one.stream.close()
    seconds = time.monotonic() - one.began
    what = f"{one.run.variant.label}, seed {one.run.seed}"
    if finished(one.run, root):
        say(f"{what}: done in {seconds:.0f} s; {left} runs to go")
        return
    lines = one.log.read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it left no message"
    refused = one.process.returncode == REFUSED
    reasons[one.run.name] = last.removeprefix("refused: ") if refused else f"{last} ({one.log})"
    say(f"{what}: {'refused' if refused else 'FAILED'}: {reasons[one.run.name]}")
