"""The component that writes a party's metrics for Prometheus to a file, also while no job runs.

`surgfl secure-kit KIT --metrics FOLDER` adds it to the party's own `local/resources.json`; a job cannot.
node_exporter's textfile collector reads the file, so no port is open.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from shared_components.common.atomic import atomically
from shared_components.federation.runs.state_root import state_root
from shared_components.flare.boundary import kit_of_process
from shared_components.flare.deployment.certificates import expiry_time
from shared_components.flare.deployment.kits import Kit
from shared_components.reporting.run_metrics import TASK_LOG, CountedLog, Sample, ServerCounts, SiteCounts, exposition

logger = logging.getLogger(__name__)
_FILES = {"server": ("run.json", "rounds.jsonl"), "site": ("enrolled.json", TASK_LOG)}  # by role: job, and log


class MetricsFile(FLComponent):
    """Write ``surgfl-<party>.prom`` into ``folder`` every ``seconds``, from the start of the party's own process on."""

    def __init__(self, folder: str, seconds: float = 30.0) -> None:
        super().__init__()
        self._folder, self._seconds = Path(folder), max(1.0, float(seconds))
        self._end = threading.Event()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start and end with the party; the processes of jobs, which FLARE starts with this component, too, do not."""
        if event_type == EventType.SYSTEM_START:
            party = PartyMetrics(kit_of_process(), fl_ctx.get_identity_name(), fl_ctx.get_engine())
            threading.Thread(target=self._run, args=[party], name="metrics", daemon=True).start()
        elif event_type == EventType.SYSTEM_END:
            self._end.set()

    def _run(self, party: "PartyMetrics") -> None:
        while True:
            write_metrics(party, self._folder)
            if self._end.wait(self._seconds):
                return


class PartyMetrics:
    """Metrics of the server, a site or a region's node; ``engine`` is FLARE's."""

    def __init__(self, kit: Kit, name: str, engine: Any) -> None:
        self.kit, self.name, self._engine = kit, name, engine
        self._log: CountedLog | None = None
        self.problems: set[str] = set()  # logged already

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the party, and of its newest run if there is one."""
        runs = state_root(self.kit.folder, simulator=False)
        yield Sample("surgfl_written_timestamp_seconds", time.time())
        disk = shutil.disk_usage(runs if runs.is_dir() else self.kit.folder)
        yield Sample("surgfl_free_disk_bytes", disk.free)
        seconds = (expiry_time(self.kit) - datetime.now(UTC)).total_seconds()
        yield Sample("surgfl_certificate_days", seconds / 86400)
        yield Sample("surgfl_running_jobs", len(self._jobs()))
        part = "server" if self.kit.part == "server" else self.name
        run = _newest(runs, part, *_FILES[self.kit.part]) if self.kit.part in _FILES else None
        job = _job(run, self.kit.part, part) if run else {}
        if self.kit.part == "server":
            here = {client.name for client in self._engine.get_clients() if client.get_is_leaf() is not False}
            for site in sorted({*here, *job.get("sites", ())}):
                yield Sample("surgfl_site_connected", site in here, site)
        if run:
            yield Sample("surgfl_rounds", job["rounds"])
            yield from self._of_run(run, part)

    def _jobs(self) -> list[str]:
        return list(self._engine.run_processes if self.kit.part == "server" else self._engine.get_all_job_ids())

    def _of_run(self, run: Path, part: str) -> Iterator[Sample]:
        """Yield the metrics of a run; a run without a log has finished no round."""
        description, name = _FILES[self.kit.part]
        is_server, log = self.kit.part == "server", run / part / name
        if self._log is None or self._log.path != log:
            self._log = CountedLog(log, ServerCounts if is_server else SiteCounts)
        counted = list((self._log.read() if log.is_file() else self._log.counts).samples())
        yield from counted
        if not any(sample.name == "surgfl_last_round_timestamp_seconds" for sample in counted):
            start = run / description if is_server else run / part / description
            last = log if is_server and log.is_file() else start
            yield Sample("surgfl_last_round_timestamp_seconds", last.stat().st_mtime)


def _newest(runs: Path, part: str, description: str, log: str) -> Path | None:
    """Return the run whose files at this party have changed last, or None."""
    patterns = [f"*/[0-9]*/{description}" if part == "server" else f"*/[0-9]*/{part}/{description}"]
    files = [path for pattern in (*patterns, f"*/[0-9]*/{part}/{log}") for path in runs.glob(pattern)]
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    return runs / Path(*newest.relative_to(runs).parts[:2]) if newest else None


def _job(run: Path, role: str, part: str) -> dict[str, Any]:
    """Return the rounds of a run's job, and at the server its sites."""
    path = run / "run.json" if role == "server" else run / part / "enrolled.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    return {"rounds": values["rounds"], "sites": values["sites"]} if role == "server" else values["job"]


def write_metrics(party: PartyMetrics, folder: Path) -> None:
    """Write a party's metrics, readable by every account; log each problem once, and write what is known."""
    samples: list[Sample] = []
    try:
        try:
            samples.extend(party.samples())
        finally:
            text = exposition(samples, party=party.name, role=party.kit.part)
            with atomically(folder / f"surgfl-{party.name}.prom") as beside:
                beside.write_text(text, encoding="utf-8")
                beside.chmod(0o644)
    except Exception as error:  # monitoring must never end a party
        if (problem := f"{type(error).__name__}: {error}") not in party.problems:
            party.problems.add(problem)
            logger.warning("metrics are missing or incomplete: %s", problem)
