"""Run many trainings in parallel processes; a second call resumes them."""

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

LIBRARIES_GB = 1.2  # memory of a process with all imports and the models of a few sites
GB_PER_MEGAPIXEL = 4.0  # memory per megapixel of a training batch; measured: 3.6 with PFedSIS, 1.8 with FedAvg


@dataclass
class Working:
    """Active run; bytes of its log before ``start`` are from earlier attempts."""

    run: Run
    process: subprocess.Popen
    log: Path
    start: int
    began: float
    stream: IO[str]

    @property
    def label(self) -> str:
        return f"{self.run.variant.label}, seed {self.run.seed}"


def side_by_side(run: Run) -> int:
    """Return how many such runs fit in the CPU cores, the free memory and the accelerator's memory."""
    cores, training = machine.cores(), run.settings()
    batch = GB_PER_MEGAPIXEL * training.batch_size * run.clip[0] * training.height * training.width / 1e6
    if not torch.cuda.is_available():
        return max(1, min(cores // run.threads, int(_free_gigabytes() / (LIBRARIES_GB + batch))))
    device_gb = torch.cuda.mem_get_info()[0] / 1e9
    return max(1, min(cores // run.threads, int(_free_gigabytes() / LIBRARIES_GB), int(device_gb / (1 + batch))))


def _free_gigabytes() -> float:
    """Return the free memory without swapping; if the system does not report it, enough for one run."""
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text(encoding="utf-8").splitlines() if meminfo.exists() else []:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e9
    return LIBRARIES_GB


def carry_out_all(runs: Sequence[Run], root: Path, *, jobs: int) -> dict[str, str]:
    """Carry out all incomplete runs, ``jobs`` at a time; return the reason of each failed run, by name.

    Ctrl-C and SIGTERM end the processes and raise KeyboardInterrupt; the same call resumes the runs.
    """
    working: list[Working] = []
    board = Board(read=lambda: {w.label: step_file.read_step(w.log.parent) or Step("starting") for w in list(working)})
    waiting = [run for run in runs if not finished(run, root)]
    if len(waiting) < len(runs):
        board.say(f"{len(runs) - len(waiting)} of {counted(len(runs), 'run')} done already")
    reasons: dict[str, str] = {}
    seconds: list[float] = []
    with _sigterm_interrupts(), board:
        try:
            while waiting or working:
                while waiting and len(working) < jobs:
                    working.append(_start(waiting.pop(0), root))
                for ended in [w for w in working if w.process.poll() is not None]:
                    working.remove(ended)
                    seconds.append(time.monotonic() - ended.began)
                    left = _time_left(len(waiting) + len(working), seconds, jobs)
                    _close(ended, root, reasons, board.say, left)
                time.sleep(0.05)
        finally:
            for active in working:
                active.process.terminate()
            for active in working:
                active.process.wait()
                active.stream.close()
    return reasons


def _time_left(count: int, seconds: Sequence[float], jobs: int) -> str:
    if not count:
        return "that was the last"
    minutes = count * sum(seconds) / len(seconds) / jobs / 60
    return f"{count} to go, about {max(1, round(minutes))} min"


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that `kill` also ends the runs."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(run: Run, root: Path) -> Working:
    folder = root / run.name
    step_file.forget(folder)
    settings, log = folder / "settings.json", folder / "log.txt"
    write_json(settings, run.to_json())
    stream = log.open("a", encoding="utf-8")
    threads = str(run.threads)
    process = subprocess.Popen(  # nosec B603 # this Python, our own module, two paths of our own, no shell
        [sys.executable, "-m", "shared_components.experiments.comparison.run", str(settings), str(root)],
        stdout=stream,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the others
    )
    return Working(run, process, log, log.stat().st_size, time.monotonic(), stream)


def _close(ended: Working, root: Path, reasons: dict[str, str], say: Callable[[str], None], left: str) -> None:
    ended.stream.close()
    if finished(ended.run, root):
        say(f"{ended.label}: done in {time.monotonic() - ended.began:.0f} s; {left}")
        return
    lines = ended.log.read_bytes()[ended.start :].decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"the process ended with status {ended.process.returncode} and no message"
    refused = ended.process.returncode == REFUSED
    reasons[ended.run.name] = last.removeprefix("refused: ") if refused else f"{last} ({ended.log})"
    say(f"{ended.label}: {'refused' if refused else 'FAILED'}: {reasons[ended.run.name]}; {left}")
