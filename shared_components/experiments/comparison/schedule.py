"""Run many trainings in parallel processes; a second call resumes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from shared_components.common import machine, step_file
from shared_components.common.atomic import write_json
from shared_components.common.counted import counted
from shared_components.common.progress import Step
from shared_components.common.progress_display import Board
from shared_components.experiments.comparison.plan import Run, finished
from shared_components.experiments.comparison.run import REFUSED

LIBRARIES_GB = 1.2  # a process that has imported everything, with the models of a few sites
GB_PER_MEGAPIXEL = 4.0  # of a training batch: 3.6 measured with PFedSIS, 1.8 with FedAvg


@dataclass
class Working:
    """A run under way; its log's part before ``start`` is of earlier attempts."""

    run: Run
    process: subprocess.Popen
    log: Path
    start: int
    began: float
    stream: IO[str]


def side_by_side(run: Run) -> int:
    """Return how many such runs fit: by cores, by the memory that is free, and by the accelerator's."""
    cores = machine.cores()
    training = run.settings()
    frames = training.batch_size * run.clip[0]
    batch = GB_PER_MEGAPIXEL * frames * training.height * training.width / 1e6
    if not torch.cuda.is_available():
        return max(1, min(cores // run.threads, int(_free_gigabytes() / (LIBRARIES_GB + batch))))
    there = torch.cuda.mem_get_info()[0] / 1e9
    return max(1, min(cores // run.threads, int(_free_gigabytes() / LIBRARIES_GB), int(there / (1 + batch))))


def _free_gigabytes() -> float:
    """Return the free memory without swapping; where the system does not report it, enough for one run."""
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text(encoding="utf-8").splitlines() if meminfo.exists() else []:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e9
    return LIBRARIES_GB


def carry_out_all(runs: Sequence[Run], root: Path, *, jobs: int) -> dict[str, str]:
    """Carry out every run that is not done, ``jobs`` at a time; return the reasons of those without a result, by name.

    Each that has ended gets a printed line, above the progress of the others. An interruption ends the processes and
    leaves their state, from which the same call resumes.

    Raises:
        KeyboardInterrupt: Ctrl-C, or a termination signal.
    """
    working: list[Working] = []
    board = Board(read=lambda: _steps(working))
    waiting = [run for run in runs if not finished(run, root)]
    if len(waiting) < len(runs):
        board.say(f"{len(runs) - len(waiting)} of {counted(len(runs), 'run')} done already")
    reasons: dict[str, str] = {}
    seconds: list[float] = []
    with _termination_interrupts(), board:
        try:
            while waiting or working:
                while waiting and len(working) < jobs:
                    working.append(_start(waiting.pop(0), root))
                for one in [w for w in working if w.process.poll() is not None]:
                    working.remove(one)
                    seconds.append(time.monotonic() - one.began)
                    left = _time_left(len(waiting) + len(working), seconds, jobs)
                    _close(one, root, reasons, board.say, left)
                time.sleep(0.05)
        finally:
            _end(working)
    return reasons


def _steps(working: Sequence[Working]) -> dict[str, Step]:
    """Return the progress of the runs under way, by their names in the table."""
    return {
        f"{one.run.variant.label}, seed {one.run.seed}": step_file.read_step(one.log.parent) or Step("starting")
        for one in list(working)
    }


def _time_left(count: int, seconds: Sequence[float], jobs: int) -> str:
    """Estimate the time that a number of runs take from the seconds of those before, so many side by side."""
    if not count:
        return "that was the last"
    minutes = count * sum(seconds) / len(seconds) / jobs / 60
    return f"{count} to go, about {max(1, round(minutes))} min"


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that `kill` ends the runs, too."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(working: Sequence[Working]) -> None:
    for one in working:
        one.process.terminate()
    for one in working:
        one.process.wait()
        one.stream.close()


def _start(run: Run, root: Path) -> Working:
    folder = root / run.name
    step_file.forget(folder)
    settings = folder / "settings.json"
    write_json(settings, run.to_json())
    log = folder / "log.txt"
    stream = log.open("a", encoding="utf-8")
    threads = str(run.threads)
    process = subprocess.Popen(  # nosec B603 # this Python, our own module, two paths of our own, no shell
        [sys.executable, "-m", "shared_components.experiments.comparison.run", str(settings), str(root)],
        stdout=stream,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
    )
    return Working(run, process, log, log.stat().st_size, time.monotonic(), stream)


def _close(one: Working, root: Path, reasons: dict[str, str], say: Callable[[str], None], left: str) -> None:
    one.stream.close()
    what = f"{one.run.variant.label}, seed {one.run.seed}"
    if finished(one.run, root):
        say(f"{what}: done in {time.monotonic() - one.began:.0f} s; {left}")
        return
    lines = one.log.read_bytes()[one.start :].decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"it ended with status {one.process.returncode} and no message"
    refused = one.process.returncode == REFUSED
    reasons[one.run.name] = last.removeprefix("refused: ") if refused else f"{last} ({one.log})"
    say(f"{what}: {'refused' if refused else 'FAILED'}: {reasons[one.run.name]}; {left}")
