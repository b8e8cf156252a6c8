"""Measure memory, threads, open files and disk use of a federation's processes by round.

Within a round a process has several copies of the model. A job's process therefore reports its memory after it has
released a round. For values measured from outside, the lowest value per round counts. A leak raises both.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from evidence.production.at_start import HELD
from evidence.production.deployment import Deployment, Party, until

APART = 1.0  # seconds between two measurements, which take 20 ms per process


@dataclass(frozen=True)
class Held:
    """Lowest values of a process in one round: bytes, and counts."""

    rss: int
    uss: int
    threads: int
    files: int

    def least(self, other: Held) -> Held:
        """Return the minimum of each number."""
        return Held(
            min(self.rss, other.rss),
            min(self.uss, other.uss),
            min(self.threads, other.threads),
            min(self.files, other.files),
        )


@dataclass
class Footprint:
    """Measurements of a federation.

    Attributes:
        held: By process (``server job`` or ``hospital-a parent``) and by round, counted from 1.
        disk: Bytes by party and by round.
        seconds: Seconds from the end of the first round to the end of the last round.
    """

    held: dict[str, dict[int, Held]]
    disk: dict[str, dict[int, int]]
    seconds: float

    def slopes(self, what: str, *, since: int) -> dict[str, float]:
        """Return the growth of ``rss`` or ``uss`` in bytes per round, by process, from a round on."""
        return {
            name: slope([(round, getattr(held, what)) for round, held in rounds.items() if round >= since])
            for name, rounds in self.held.items()
        }

    def with_jobs(self, told: Mapping[str, Sequence[tuple[int, int]]]) -> Footprint:
        """Return a copy with the memory that the jobs' processes have reported after each round.

        Args:
            told: ``rss`` and ``uss`` by process; a site also reports after its enrolment, so its round 1 comes second.
        """
        held = dict(self.held)
        for name, lines in told.items():
            first = 0 if name.startswith("server") else 1
            held[name] = {
                round: replace(one, rss=lines[round - 1 + first][0], uss=lines[round - 1 + first][1])
                for round, one in self.held[name].items()
            }
        return replace(self, held=held)

    def least(self, what: str, rounds: Iterable[int]) -> dict[str, int]:
        """Return the lowest number of ``threads`` or ``files`` in some rounds, by process."""
        chosen = list(rounds)
        return {name: min(getattr(held[round], what) for round in chosen) for name, held in self.held.items()}

    def disk_slopes(self, *, since: int) -> dict[str, float]:
        """Return the growth of the disk use in bytes per round, by party, from a round on."""
        return {
            name: slope([point for point in rounds.items() if point[0] >= since]) for name, rounds in self.disk.items()
        }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of y over x."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def watch(deployment: Deployment, name: str, *, rounds: int, job: str, seconds: float) -> Footprint:
    """Measure every process of a running job, from the end of its first round to the end of its last round.

    Args:
        deployment: Deployment that is running the job.
        name: Name of the job.
        rounds: Number of rounds.
        job: FLARE's id of the job.
        seconds: Time limit.

    Raises:
        AssertionError: The job failed, or a round did not end in time.
        psutil.NoSuchProcess: A process has died.
    """
    done = counter(deployment, name)

    def first() -> int:
        assert f"job {name} FAILED" not in (said := deployment.server.log), said[-2000:]
        return done()

    until(first, seconds, f"round 1 of {name}")
    processes = {key: psutil.Process(pid) for key, pid in pids(deployment, job).items()}
    held: dict[str, dict[int, Held]] = {key: {} for key in processes}
    disk: dict[str, dict[int, int]] = defaultdict(dict)
    begun = time.monotonic()
    while (round := done() + 1) <= rounds:
        assert time.monotonic() - begun < seconds, f"round {round} of {name} was not done within {seconds:g} s"
        for key, process in processes.items():
            now = look(process)
            held[key][round] = now.least(held[key].get(round, now))
        for party in deployment.parties:
            if round not in disk[party.name]:
                disk[party.name][round] = size(party.kit)
        time.sleep(APART)
    return Footprint(held, dict(disk), time.monotonic() - begun)


def told_by_jobs(deployment: Deployment) -> dict[str, list[tuple[int, int]]]:
    """Return the reports of `at_start.note_held`, by job process of each party: ``rss`` and ``uss`` in bytes."""
    told = {}
    for party in deployment.parties:
        lines = Path(party.variables[HELD]).read_text(encoding="utf-8").splitlines()
        told[f"{short(party)} job"] = [(int(rss), int(uss)) for rss, uss in map(str.split, lines)]
    return told


def counter(deployment: Deployment, name: str) -> Callable[[], int]:
    """Return a function that counts a job's finished rounds from the server's states."""
    folder = deployment.server.kit / "surgfl" / name

    def done() -> int:
        found = [int(path.stem.split("-")[1]) for path in folder.glob("[0-9]*/server/round-*.safetensors")]
        return max(found, default=-1) + 1

    return done


def pids(deployment: Deployment, job: str) -> dict[str, int]:
    """Return the processes of every party: its parent process and its job process."""
    found: dict[str, int] = {}
    for party in deployment.parties:
        assert party.pid is not None, f"{party.name} does not run"
        (worker,) = party.job_pids(job)
        found |= {f"{short(party)} parent": party.pid, f"{short(party)} job": worker}
    return found


def short(party: Party) -> str:
    """Return ``server``, or a site's name."""
    return "server" if party.side == "server" else party.name


def look(process: psutil.Process) -> Held:
    """Measure a process."""
    memory = process.memory_full_info()
    return Held(memory.rss, memory.uss, process.num_threads(), process.num_fds())


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
