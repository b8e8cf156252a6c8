"""Count a run's records as metrics for Prometheus, and write them in its text format.

All metrics are gauges. Metrics of a run describe the party's newest run. The only names are the party's
own name, and at the server the names of the sites.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

TASK_LOG = "tasks.jsonl"  # in a site's folder of a run: one line per finished task
METRICS: Mapping[str, str] = {
    "surgfl_written_timestamp_seconds": "Unix time at which the party's process wrote these metrics.",
    "surgfl_free_disk_bytes": "Free disk space for the party's runs.",
    "surgfl_certificate_days": "Days until the party's certificate or its root certificate expires.",
    "surgfl_running_jobs": "Jobs that run at the party now.",
    "surgfl_site_connected": "Whether a site is connected to the server.",
    "surgfl_rounds": "Rounds of the newest run's job.",
    "surgfl_rounds_done": "Finished rounds of the newest run.",
    "surgfl_last_round_timestamp_seconds": "Unix time of the newest run's last round, or of its start.",
    "surgfl_round_seconds": "Seconds of the newest run's last round.",
    "surgfl_site_wait_seconds": "Seconds that the server waited for a site in the last round.",
    "surgfl_training_seconds": "Seconds that a site trained in its last round.",
    "surgfl_validation_seconds": "Seconds of a site's last validation.",
    "surgfl_sent_bytes": "Bytes of tensors that the party has sent in the newest run.",
    "surgfl_received_bytes": "Bytes of tensors that the party has received in the newest run.",
    "surgfl_rejected_updates": "Updates of a site in the newest run that were sent and not used.",
    "surgfl_missing_updates": "Updates of a site in the newest run that the server did not receive.",
}
"""Help text of every metric."""

logger = logging.getLogger(__name__)
Record = dict[str, Any]


class Sample(NamedTuple):
    """A value of a metric; ``site`` is empty if the value is the party's."""

    name: str
    value: float
    site: str = ""


class Counts(Protocol):
    """Numbers of a run, counted record by record."""

    def add(self, record: Record) -> None: ...

    def samples(self) -> Iterable[Sample]: ...


class ServerCounts:
    """Numbers of a run from the records in ``rounds.jsonl``."""

    def __init__(self) -> None:
        self.rounds, self.seconds = 0, 0.0
        self.sent, self.received = 0, 0
        self.wait: dict[str, float] = {}
        self.rejected, self.missing = Counter[str](), Counter[str]()
        self._answers: dict[str, float | None] = {}  # seconds of each site's work in the current round, if known

    def add(self, record: Record) -> None:
        if record["kind"] == "site":
            site, sizes = record["site"], record.get("bytes") or {}
            self._answers[site] = (record.get("seconds") or {}).get("total")
            self.sent += sum(sizes.get("down", {}).values())
            self.received += sum(sizes.get("up", {}).values())
            for counter in (self.rejected, self.missing):
                counter[site] += 0
        elif record["kind"] == "aggregation":
            self.rounds, self.seconds = record["round"] + 1, record.get("seconds_wall", 0.0)
            lost = [entry["site"] for entry in record.get("rejected") or ()]
            self.rejected.update(site for site in lost if site in self._answers)
            self.missing.update(site for site in lost if site not in self._answers)
            known = {site: self.seconds if value is None else value for site, value in self._answers.items()}
            self.wait = known | {site: self.seconds for site in lost if site not in known}
            self._answers = {}

    def samples(self) -> Iterable[Sample]:
        """Yield the metrics; a site without recorded seconds counts as waited for until the end of the round."""
        yield Sample("surgfl_rounds_done", self.rounds)
        yield Sample("surgfl_round_seconds", self.seconds)
        yield Sample("surgfl_sent_bytes", self.sent)
        yield Sample("surgfl_received_bytes", self.received)
        yield from (Sample("surgfl_site_wait_seconds", value, site) for site, value in sorted(self.wait.items()))
        yield from (Sample("surgfl_rejected_updates", value, site) for site, value in sorted(self.rejected.items()))
        yield from (Sample("surgfl_missing_updates", value, site) for site, value in sorted(self.missing.items()))


class SiteCounts:
    """Numbers of a run from the records in a site's `TASK_LOG`."""

    def __init__(self) -> None:
        self.rounds, self.rejected, self.sent, self.received = 0, 0, 0, 0
        self.time: float | None = None
        self.seconds: dict[str, float] = {}  # of each stage, when it last occurred

    def add(self, record: Record) -> None:
        self.sent += record["sent"]
        self.received += record["received"]
        asked, counted = record["round"], record["answered"]
        # a request has the last round in which the site's update counted
        if record["task"] in ("round", "finish") and 0 < self.rounds <= asked:
            self.rejected += counted is None or counted < self.rounds - 1
        if record["task"] == "round":
            self.rounds, self.time = asked + 1, record["time"]
            self.seconds |= record["seconds"]

    def samples(self) -> Iterable[Sample]:
        """Yield the metrics; seconds only of stages that have occurred."""
        yield Sample("surgfl_rounds_done", self.rounds)
        yield Sample("surgfl_sent_bytes", self.sent)
        yield Sample("surgfl_received_bytes", self.received)
        yield Sample("surgfl_rejected_updates", self.rejected)
        if self.time is not None:
            yield Sample("surgfl_last_round_timestamp_seconds", self.time)
        for stage, name in (("total", "round"), ("training", "training"), ("validating", "validation")):
            if stage in self.seconds:
                yield Sample(f"surgfl_{name}_seconds", self.seconds[stage])


class CountedLog:
    """A log that grows, read from where the last reading ended; if it changed otherwise, it is read anew."""

    def __init__(self, path: Path, make: Callable[[], Counts]) -> None:
        self.path, self._make = path, make
        self._start_anew()

    def _start_anew(self) -> None:
        self.counts, self._end, self._last = self._make(), 0, b""

    def read(self) -> Counts:
        """Count the new complete lines; a line that is not JSON is logged and left out. OSError: unreadable file."""
        with self.path.open("rb") as file:
            file.seek(self._end - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._start_anew()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end, self._last = self._end + len(line), line
                try:
                    record = json.loads(line)
                except ValueError:
                    logger.warning("metrics: a line of %s is not JSON and is left out", self.path)
                    continue
                self.counts.add(record)
        return self.counts


def exposition(samples: Iterable[Sample], *, party: str, role: str) -> str:
    """Return samples in Prometheus' text format, version 0.0.4, with the labels ``party``, ``role`` and ``site``."""
    by_name: dict[str, list[str]] = {}
    for sample in samples:
        labels = {"party": party, "role": role} | ({"site": sample.site} if sample.site else {})
        text = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        by_name.setdefault(sample.name, []).append(f"{sample.name}{{{text}}} {float(sample.value)!r}")
    families = ((f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge", *by_name[name]) for name in sorted(by_name))
    return "".join(f"{line}\n" for family in families for line in family)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
