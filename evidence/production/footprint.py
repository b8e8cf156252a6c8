"""What the processes of a federation hold from round to round: memory, threads, open files, and the disk below them.

Within a round a process holds several copies of the model and lets them go. So a job's process is asked how much it
holds when it has just let go of a round; of what is looked at from outside, the least of each round counts. Whatever
is never let go of raises both.
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

APART = 1.0  # seconds between two looks, each of which takes 20 ms a process


@dataclass(frozen=True)
class Held:
    """What a process held at least in one round; bytes, and counts."""

    rss: int
    uss: int
    threads: int
    files: int

    def least(self, other: Held) -> Held:
        """Return the smaller of both, by each number for itself."""
        return Held(
            min(self.rss, other.rss),
            min(self.uss, other.uss),
            min(self.threads, other.threads),
            min(self.files, other.files),
        )


@dataclass
class Footprint:
    """A federation's course.

    Attributes:
        held: By process, ``server job`` or ``hospital-a parent``, and by round, counted from 1.
        disk: By party and by round, bytes.
        seconds: From the end of the first round to the end of the last.
    """

    held: dict[str, dict[int, Held]]
    disk: dict[str, dict[int, int]]
    seconds: float

    def slopes(self, what: str, *, since: int) -> dict[str, float]:
        """Return, by process, how many bytes of ``rss`` or ``uss`` a round adds from a round on."""
        return {
            name: slope([(round, getattr(held, what)) for round, held in rounds.items() if round >= since])
            for name, rounds in self.held.items()
        }

    def with_jobs(self, told: Mapping[str, Sequence[tuple[int, int]]]) -> Footprint:
        """Return it with the memory that the jobs' processes have told after each of their rounds.

        Args:
            told: ``rss`` and ``uss`` by process; of a site, which tells after its enrolment, too, round 1 comes second.
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
        """Return, by process, how many ``threads`` or ``files`` there were at least in some rounds."""
        chosen = list(rounds)
        return {name: min(getattr(held[round], what) for round in chosen) for name, held in self.held.items()}

    def disk_slopes(self, *, since: int) -> dict[str, float]:
        """Return, by party, how many bytes of disk a round adds from a round on."""
        return {
            name: slope([point for point in rounds.items() if point[0] >= since]) for name, rounds in self.disk.items()
        }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much y grows with x, by least squares."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def watch(deployment: Deployment, name: str, *, rounds: int, job: str, seconds: float) -> Footprint:
    """Look at every process of a running job, from the end of its first round to the end of its last.

    Args:
        deployment: Started, with the job submitted.
        name: The job's.
        rounds: How many it has.
        job: FLARE's id of it.
        seconds: How long it may take.

    Raises:
        AssertionError: The job failed, or did not come to the end of a round in time.
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
    """Return, by the job's process of each party, what `at_start.note_held` has written: ``rss`` and ``uss``, bytes."""
    told = {}
    for party in deployment.parties:
        lines = Path(party.variables[HELD]).read_text(encoding="utf-8").splitlines()
        told[f"{short(party)} job"] = [(int(rss), int(uss)) for rss, uss in map(str.split, lines)]
    return told


def counter(deployment: Deployment, name: str) -> Callable[[], int]:
    """Return a function that tells how many rounds of a job are done, by the states of the server."""
    folder = deployment.server.kit / "surgfl" / name

    def done() -> int:
        found = [int(path.stem.split("-")[1]) for path in folder.glob("[0-9]*/server/round-*.safetensors")]
        return max(found, default=-1) + 1

    return done


def pids(deployment: Deployment, job: str) -> dict[str, int]:
    """Return the processes of every party: its parent, and the one that runs a job."""
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
    """Return what a process holds now."""
    memory = process.memory_full_info()
    return Held(memory.rss, memory.uss, process.num_threads(), process.num_fds())


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder; what vanishes meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
