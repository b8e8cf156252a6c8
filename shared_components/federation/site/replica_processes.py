"""Start the processes that train beside a site's own process, one per further GPU, and give them their rounds.

They live as long as this process, or until `stop_replicas`. A replica ends when its standard input closes or its parent
ends, so that none outlives this process, even if that is killed. If a replica ends, so does the round, with its error.
"""

import atexit
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed

from shared_components.core import replicas
from shared_components.federation.messages import FederationError, Request, SiteRefusal
from shared_components.federation.runs.store import named_groups, save_tensors

logger = logging.getLogger(__name__)

START_SECONDS = 600  # timeout for the start of the processes
DYING_SECONDS = 10.0  # timeout between the end of a connection and the end of its process
OWNER, PIECES = "a round of replicas", "pieces"  # of a task's file; group of its tensors
HEADER = ("run", "round", "items", "answered", "pool")  # fields of a request that travel as plain values
_team: "Team | None" = None  # of this process


@dataclass(frozen=True)
class ReplicaTask:
    """Settings for a replica's training of a site's round, besides the request."""

    name: str  # of the site in the federation
    folder: Path  # of all runs
    files: Path  # the site's folder in the run
    sites: dict[int, tuple[str, Path]]  # name and site.yaml of each site whose frames are read, by the site's number
    start_weights: Path | None

    @property
    def file(self) -> Path:
        return self.files / replicas.FOLDER / "round.safetensors"

    def write(self, request: Request) -> None:
        """Write the task with its request to `file`, for `replica.train`."""
        self.file.parent.mkdir(exist_ok=True)
        header = {key: getattr(request, key) for key in HEADER} | asdict(request.place) | {"job": request.job.to_json()}
        values = {
            "header": header, "groups": list(request.groups), "name": self.name, "folder": str(self.folder),
            "sites": [(number, name, str(path)) for number, (name, path) in self.sites.items()],
            "start_weights": None if self.start_weights is None else str(self.start_weights),
        }  # fmt: skip
        save_tensors(self.file, named_groups({PIECES: request.pieces, **request.groups}), values, of=OWNER)


class Team:
    """The replicas of this process: ``size`` with this process, which is the first."""

    def __init__(self, size: int, folder: Path, *, site: str) -> None:
        """Start the processes, which meet and log in a folder; SiteRefusal if one ends or is too slow."""
        self.size, self._folder, self._site = size, folder, site
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*"):
            path.unlink()
        self._processes: dict[int, subprocess.Popen] = {}
        self._closed = False
        try:
            for rank in range(1, size):
                self._processes[rank] = self._start(rank)
            self._meet()
        except BaseException as error:
            self._end_round(error)
            raise

    def _start(self, rank: int) -> subprocess.Popen:
        paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path(__file__).parents[3]), *sys.path]
        command = [sys.executable, "-P", "-m", "shared_components.federation.site.replica"]
        numbers = map(str, (rank, self.size, torch.get_num_threads()))
        with self._log(rank).open("w", encoding="utf-8") as log:
            return subprocess.Popen(  # nosec B603 # this Python, our own module, paths and numbers of our own, no shell
                [*command, str(self._folder), *numbers], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths)))},
            )  # fmt: skip

    def _meet(self) -> None:
        began = time.monotonic()
        while len(list(self._folder.glob("ready-*"))) < self.size - 1:
            if self._ended() or time.monotonic() > began + START_SECONDS:
                raise RuntimeError(f"the {self.size} processes of the training have not met")
            time.sleep(0.05)
        replicas.join(self._folder, rank=0, size=self.size)
        for process in self._processes.values():
            threading.Thread(target=self._abort_after, args=(process,), name="replica", daemon=True).start()

    def _abort_after(self, process: subprocess.Popen) -> None:
        """End this process's wait for a replica that has ended; over TCP (gloo), the lost connection does."""
        process.wait()
        if not self._closed:
            _abort()

    @contextmanager
    def training(self, task: ReplicaTask, request: Request) -> Iterator[None]:
        """Let all replicas train a round, this process in the context; end all replicas at any error.

        SiteRefusal: a replica has ended; the message has its number and its error.
        """
        self._site, path = task.name, task.file
        try:
            task.write(request)
            for process in self._processes.values():
                assert process.stdin is not None
                process.stdin.write(f"{path}\n")
                process.stdin.flush()
            with replicas.training_in(rank=0, size=self.size):
                yield
                distributed.barrier()  # also if this site does not train in this round
        except BaseException as error:
            self._end_round(error)
            raise
        finally:
            path.unlink(missing_ok=True)

    def is_alive(self) -> bool:
        """Return whether all processes live."""
        return not self._ended()

    def close(self) -> None:
        """End all other processes, and leave the group."""
        self._closed = True
        for process in self._processes.values():
            process.kill()
            with suppress(OSError):  # the process has not read all of its input
                process.communicate()
        if distributed.is_initialized():
            _abort()
            distributed.destroy_process_group()

    def _end_round(self, error: BaseException) -> None:
        """Close the team; raise SiteRefusal if a replica's end is the reason for an error of this process."""
        lost_connection = isinstance(error, RuntimeError | OSError) and not isinstance(error, FederationError)
        until = time.monotonic() + DYING_SECONDS * lost_connection
        while not self._ended() and time.monotonic() < until:
            time.sleep(0.05)
        reasons = [self._reason(rank) for rank in self._ended()] if lost_connection else []
        self.close()
        if reasons:
            _, rank, reason = min(reasons)
            raise SiteRefusal(
                f"site {self._site}: the process of GPU {rank} ended: {reason}; see {self._log(rank)}, or write gpus: 1"
            ) from error

    def _ended(self) -> list[int]:
        return [rank for rank, process in self._processes.items() if process.poll() is not None]

    def _reason(self, rank: int) -> tuple[float, int, str]:
        """Return (time, rank, reason) of an end; killed processes sort first, since others only lose them."""
        path = self._folder / f"error-{rank}"
        if path.is_file():
            return path.stat().st_mtime, rank, path.read_text("utf-8")
        return 0.0, rank, f"exit status {self._processes[rank].returncode}"

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"


@contextmanager
def sharing(size: int, task_of: Callable[[Request], ReplicaTask], request: Request) -> Iterator[None]:
    """Share a round's training between ``size`` processes, which are started if needed; nothing for a size of 1.

    SiteRefusal as `Team`.
    """
    global _team
    if size == 1:
        yield
        return
    task = task_of(request)
    if _team is not None and not (_team.size == size and _team.is_alive()):
        stop_replicas()
    if _team is None:
        _team = Team(size, task.files / replicas.FOLDER, site=task.name)
    logger.info("site %s: %d GPUs train round %d", task.name, size, request.round + 1)
    try:
        with _team.training(task, request):
            yield
    except BaseException:
        _team = None
        raise


def stop_replicas() -> None:
    """End the replicas of this process."""
    global _team
    if _team is not None:
        _team.close()
        _team = None


atexit.register(stop_replicas)


def _abort() -> None:
    group = distributed.group.WORLD
    if group is not None and distributed.get_backend() == "nccl":
        group.abort()
