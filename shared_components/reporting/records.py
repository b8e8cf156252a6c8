"""Read what a run left behind in its state directory.

    RUN/run.json                 job, method, arguments, commit, seed, sites, rounds, hardware, started
    RUN/server/rounds.jsonl      one line per site and round, one per aggregation, one per site's final metrics
    RUN/<site>/final.json        the final model's validation metrics with distances
    RUN/<site>/overlays/*.png    frame | truth | prediction

A run may be unfinished, a site may have missed rounds, and its folder may be on another machine: what is
absent is left out here and named by the report.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAN = math.nan
Curve = dict[int, float]  # round -> value


class RecordError(ValueError):
    """A record is missing or unreadable; the message names the file and what to do."""


@dataclass(frozen=True)
class Run:
    """One run's records, by site and round; round r holds the metrics of the model received in round r."""

    folder: Path
    info: dict[str, Any]
    sites: tuple[str, ...]
    rows: dict[str, dict[int, dict[str, Any]]]
    aggregations: dict[int, dict[str, Any]]
    finals: dict[str, dict[str, Any]]
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Rounds the run was asked for; where run.json does not say, those it has aggregated."""
        return int(self.info.get("rounds") or len(self.aggregations))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names without the background, in the records' order, over all sites."""
        seen: dict[str, None] = {}
        for metrics in self._all_metrics():
            seen.update(dict.fromkeys(metrics.get("dice", {})))
        return tuple(name for name in seen if name != "mean")

    def last_metrics(self, site: str) -> dict[str, Any]:
        """Give a site's final metrics or, without them, those of the last round it reported."""
        if site in self.finals:
            return self.finals[site]
        scored = [row["metrics"] for _, row in sorted(self.rows[site].items()) if row.get("metrics")]
        return scored[-1] if scored else {}

    def absent(self, site: str) -> list[int]:
        """List the rounds, up to the newest one any site has reported, that a site did not report."""
        newest = max((r for rows in self.rows.values() for r in rows), default=-1)
        return [r for r in range(newest + 1) if r not in self.rows[site]]

    def _all_metrics(self) -> list[dict[str, Any]]:
        rows = [row.get("metrics") or {} for site in self.sites for row in self.rows[site].values()]
        return [*rows, *self.finals.values(), *self.evaluations.values()]


def load_run(folder: Path, *, evaluations: dict[str, dict[str, Any]] | None = None) -> Run:
    """Read a run's state directory.

    Raises:
        RecordError: when run.json is missing or a record cannot be read.
    """
    info = read_json(folder / "run.json")
    lines = _read_lines(folder / "server" / "rounds.jsonl")
    by_site = [line for line in lines if line.get("kind") == "site"]
    named = [*info.get("sites", []), *(line["site"] for line in by_site)]
    sites = tuple(dict.fromkeys(str(name) for name in named))
    rows: dict[str, dict[int, dict[str, Any]]] = {site: {} for site in sites}
    for line in by_site:  # after a resume a round may stand there twice: the later line counts
        rows[str(line["site"])][int(line["round"])] = line
    aggregations = {int(line["round"]): line for line in lines if line.get("kind") == "aggregation"}
    files = {site: site_folder(folder, site) / "final.json" for site in sites}
    finals = {str(line["site"]): line for line in lines if line.get("kind") == "final"}
    finals |= {site: read_json(file) for site, file in files.items() if file.is_file()}
    return Run(folder, info, sites, rows, aggregations, finals, dict(evaluations or {}))


def load_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Read FOLDER/<site>/metrics.json, as the bundles' evaluate.yaml writes it, for every site there."""
    files = sorted(folder.glob("*/metrics.json"))
    if not files:
        raise RecordError(f"{folder}: holds no <site>/metrics.json; give the folder with one folder per site")
    records = {file.parent.name: read_json(file) for file in files}
    return {str(record.get("site", name)): record for name, record in records.items()}


def site_folder(folder: Path, site: str) -> Path:
    """Give a site's folder, which stays inside the run's whatever the name holds."""
    return folder / site.replace("/", "_").replace("\\", "_").strip(".")


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        RecordError: when the file is missing or holds something else.
    """
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(
            f"{file}: cannot be read ({error.strerror}); give a run's state directory"
        ) from error
    except ValueError as error:
        raise RecordError(f"{file}: is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RecordError(f"{file}: holds a JSON {type(record).__name__}, not an object")
    return record


def score(metrics: dict[str, Any], metric: str, name: str = "mean") -> float:
    """Give metric "dice" of class `name`; NaN where it is absent, null or not finite."""
    value = (metrics.get(metric) or {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else NAN


def curves(run: Run, metric: str, name: str = "mean") -> dict[str, Curve]:
    """Give each site's metric over the rounds it reported (NaN where the class had no frame to score)."""
    return {
        site: {
            r: score(row["metrics"], metric, name)
            for r, row in sorted(run.rows[site].items())
            if row.get("metrics")
        }
        for site in run.sites
    }


def worst(by_site: dict[str, Curve]) -> Curve:
    """Give the lowest value of the sites in every round."""
    rounds = sorted({r for curve in by_site.values() for r in curve})
    return {r: lowest([curve[r] for curve in by_site.values() if r in curve]) for r in rounds}


def lowest(values: list[float]) -> float:
    """Give the smallest value that is not NaN."""
    return min((v for v in values if not math.isnan(v)), default=NAN)


def mean(values: list[float]) -> float:
    """Average what is not NaN."""
    counted = [v for v in values if not math.isnan(v)]
    return sum(counted) / len(counted) if counted else NAN


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line cut short by a kill is left out, any other bad line is an error."""
    if not file.is_file():
        return []
    texts = [text for text in file.read_text(encoding="utf-8").splitlines() if text.strip()]
    records = []
    for number, text in enumerate(texts, start=1):
        try:
            records.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):
                raise RecordError(f"{file}: record {number} is not JSON ({error})") from error
    return records
