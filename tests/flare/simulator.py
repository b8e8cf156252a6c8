"""Run `nvflare simulator` on a tiny copy of a job, watch it, and kill parts of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from shared_components.core.bundle import needs_square_frames

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "nvflare_jobs"
TINY = {"height": 32, "width": 64, "batch_size": 2, "iterations": 2}
SCENES = {"frames_per_video": 4, "videos": [1, 1, 1], "height": 64, "width": 96}
PYTHON = Path(sys.executable)
COUNTS = ("sensitivity_images", "batches", "pretraining")  # arguments of methods that take time
SERVER, CLIENT = (f"app/config/config_fed_{side}.json" for side in ("server", "client"))


def tiny_job(folder: Path, name: str, *, rounds: int = 2, longest_wait: float = 120.0, **arguments) -> Path:
    """Write a small copy of a job; ``arguments`` are further arguments of its method."""
    job = Path(shutil.copytree(JOBS / name, folder / name))

    def shrink(config: dict) -> None:
        settings = config["workflows"][0]["args"]
        settings.update(rounds=rounds, grace_seconds=5, longest_wait_seconds=longest_wait)
        settings["synthetic"] = {**settings.get("synthetic", {}), **SCENES}
        square = {"width": TINY["height"]} if needs_square_frames(settings["bundle"]) else {}
        settings["training"] = {**settings.get("training", {}), **TINY, **square}
        own = settings.get("arguments", {})
        small = {name: 2 for name in COUNTS if name in own}
        settings["arguments"] = {**own, **small, **arguments}

    edit(job / SERVER, shrink)
    return job


def edit(path: Path, change: Callable[[dict], None]) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")


class Simulator:
    """One launch, in a separate process group; leaving the context kills its remaining processes.

    Its processes import the library from ``root``. Later launches do not change `output` and `run`, the state folder.
    """

    def __init__(
        self,
        job: Path,
        workspace: Path,
        *options: str,
        log: Path | None = None,
        python: Path = PYTHON,
        root: Path = ROOT,
        **variables: str,
    ) -> None:
        self.workspace = workspace
        self.state = workspace.with_name(f"{workspace.name}-state") / job.name
        self._log = log or workspace.with_name(f"{workspace.name}.log")
        self._output = ""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SURGFL_")}
        path = os.pathsep.join(filter(None, [str(root), str(ROOT), inherited.get("PYTHONPATH", "")]))
        command = [python, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace), *options]
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, cwd=root, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables},
            )  # fmt: skip
        self._began = time.time_ns()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output, self.run = self.output, (self.state / "latest").resolve()

    @property
    def output(self) -> str:
        return self._output or self._log.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        return self.output.strip().splitlines()[-1]

    def wait(self, seconds: float = 480.0) -> int:
        """Return the exit code; kill a launch that takes longer, and fail the test."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {seconds:g} s:\n{self.output[-4000:]}") from None

    def kill(self) -> None:
        """Kill every process of this launch at once, including workers, which have their own sessions."""
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        for process in (self._process, *children):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self._process.wait()
        psutil.wait_procs(children, timeout=10)

    def wait_for_words(self, words: str, seconds: float = 480.0) -> None:
        """Wait until this launch has printed these words."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            if words in self.output:
                return
            time.sleep(0.005)
        raise AssertionError(f"{words!r} was not printed:\n{self.output[-4000:]}")

    def wait_for_task(self, site: str, number: int, seconds: float = 120.0) -> int:
        """Wait until a site has begun its ``number``-th task of this launch; return its process.

        The executor announces itself in a file whenever it begins a task.
        """
        seen: set[int] = set()
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            for path in self.state.glob(f"[0-9]*/{site}/process"):
                try:
                    when, process = path.stat().st_mtime_ns, int(path.read_text())
                except FileNotFoundError:  # removed in between, before the next task
                    continue
                seen |= {when} if when > self._began else set()
                if len(seen) == number:
                    return process
            time.sleep(0.005)
        raise AssertionError(f"task {number} of {site} has not begun:\n{self.output[-4000:]}")
