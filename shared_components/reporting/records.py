"""Read the records in a run's state directory.

    RUN/run.json                 job, method, arguments, commit, seed, sites, rounds, hardware, started;
                                 the method's label, idea and paper; the card of each site; the metrics of
                                 each kind of task
    RUN/server/rounds.jsonl      one line per site and round, one per aggregation, one per site's final metrics
    RUN/<site>/final.json        all validation metrics of the final model
    RUN/<site>/overlays/*.png    pictures drawn by the site's task

A run may be unfinished, a site may have missed rounds, and a site's folder may be on another machine. Absent records
are left out, and the report names them. Rounds in files and in this package count from 0; people read `round_number`.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared_components.core.card import Card, Metric

NAN = math.nan
Curve = dict[int, float]  # round -> value
EARLY = {"error": "failed", "stopped": "stopped"}
"""Status of a run that ended early; the key of run.json contains the reason."""
_NAMED = 6  # maximum names in a heading; a longer list becomes a count


class RecordError(ValueError):
    """A record is missing or unreadable; the message names the file and what to do."""


@dataclass(frozen=True)
class Group:
    """Sites of a task in the run's order, and the task's metrics, first the metric for model selection.

    ``outputs`` are the classes with separate scores, without the background; empty if each metric is one number.
    """

    card: Card
    metrics: tuple[Metric, ...]
    sites: tuple[str, ...]
    outputs: tuple[str, ...] = ()

    @property
    def first(self) -> Metric:
        """Metric that selects the best model."""
        return self.metrics[0]

    @property
    def task(self) -> str:
        """Heading of the task: ``Segmentation: shaft, wrist``, ``Depth``."""
        kind = self.card.kind.replace("_", " ").capitalize()
        named = f"{kind}: {_listed(self.outputs, 'outputs')}" if self.outputs else kind
        if self.card.frames != 1:
            named += f", {self.card.frames or 'all'} frames"
        others = [name for name in self.card.inputs if name != "image"]
        return f"{named}, with {' and '.join(others)}" if others else named

    @property
    def title(self) -> str:
        """Heading of the task and its sites: ``Depth (site-3)``."""
        return f"{self.task} ({_listed(self.sites, 'sites')})"


def read_cards(info: Mapping[str, Any], sites: Sequence[str], where: object) -> dict[str, Card]:
    """Read the card of each site from the content of run.json; `where` names the file in errors.

    RecordError: the cards are missing (an older version wrote the file), or the card of a site is missing.
    """
    if "cards" not in info or "metrics" not in info:
        reason = "is from an older version of surgfl and names no tasks; run the job again in a new folder"
        raise RecordError(f"{where}: {reason}")
    if missing := [site for site in sites if site not in info["cards"]]:
        known = ", ".join(info["cards"])
        raise RecordError(f"{where}: contains no task of {missing[0]}, only of {known}; restore the file")
    return {site: Card.from_json(info["cards"][site]) for site in sites}


def grouped(
    info: Mapping[str, Any], sites: Sequence[str], scores: Mapping[str, Sequence[Mapping[str, Any]]], where: object
) -> tuple[Group, ...]:
    """Group sites by card, in the order of first occurrence; outputs are named as in the score records.

    RecordError: run.json lacks the card of a site (`read_cards`) or the metrics of a kind of task.
    """
    cards = read_cards(info, sites, where)
    groups = []
    for card in dict.fromkeys(cards.values()):
        if not info["metrics"].get(card.kind):
            kinds = ", ".join(info["metrics"])
            raise RecordError(f"{where}: contains no metrics of {card.kind}, only of {kinds}; restore the file")
        metrics = tuple(map(Metric.from_json, info["metrics"][card.kind]))
        members = tuple(site for site in sites if cards[site] == card)
        records = [record for site in members for record in scores.get(site, ())]
        groups.append(Group(card, metrics, members, output_names(records, metrics[0], card)))
    return tuple(groups)


def output_names(records: Sequence[Mapping[str, Any]], metric: Metric, card: Card) -> tuple[str, ...]:
    """List the outputs that a metric was scored by, without ``mean``; outputs of the card first, in its order."""
    tables = [record.get(metric.name) for record in records]
    names = dict.fromkeys(name for scores in tables if isinstance(scores, Mapping) for name in scores)
    own = [name for name in card.outputs if name in names]  # our JSON has sorted keys
    return tuple(name for name in (*own, *(n for n in names if n not in own)) if name != "mean")


def _listed(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} {what}"


def round_number(r: int) -> int:
    """Return the number of a recorded round for people: counted from 1."""
    return r + 1


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
    """Evaluations of the run's models, by site."""
    compared: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Evaluations on the same frames, by model name and site, for comparison; the last are the run's own."""

    @property
    def rounds(self) -> int:
        """Number of rounds of the job; if run.json lacks it, the number of aggregated rounds."""
        return int(self.info.get("rounds") or len(self.aggregations))

    @property
    def about(self) -> dict[str, str]:
        """Label of the method as in papers, its idea in one sentence, and its paper."""
        plain = {"label": str(self.info.get("method", "Federated run")), "idea": "", "paper": ""}
        return plain | self.info.get("said", {})

    @property
    def cards(self) -> dict[str, Card]:
        """Card of each site."""
        return read_cards(self.info, self.sites, self.folder / "run.json")

    @property
    def groups(self) -> tuple[Group, ...]:
        """Sites grouped by task; a table contains only scores of a single group."""
        ends = (self.finals, self.evaluations)
        scores = {site: [*self._scored(site), *(end[site] for end in ends if site in end)] for site in self.sites}
        return grouped(self.info, self.sites, scores, self.folder / "run.json")

    def evaluations_of(self, group: Group) -> dict[str, dict[str, Any]]:
        """Return the evaluations of a group's sites; RecordError if one is of an unknown site, and so task."""
        if len(set(self.cards.values())) == 1:
            return self.evaluations
        if strange := [site for site in self.evaluations if site not in self.sites]:
            raise RecordError(f"an evaluation is of unknown site {strange[0]}; evaluate only {', '.join(self.sites)}")
        return {site: record for site, record in self.evaluations.items() if site in group.sites}

    def last_metrics(self, site: str) -> dict[str, Any]:
        """Return a site's final metrics or, without them, the metrics of its last reported round."""
        return self.finals.get(site) or next(reversed(self._scored(site)), {})

    def sampled(self, r: int) -> Sequence[str]:
        """Return the sites sampled for a round: all, unless the aggregation's record lists a random sample."""
        return self.aggregations.get(r, {}).get("drawn", self.sites)

    @property
    def draws(self) -> bool:
        """Whether any round used only a random sample of the sites."""
        return any(len(self.sampled(r)) < len(self.sites) for r in self.aggregations)

    def first_round(self, site: str) -> int:
        """Return the first round that sampled a site."""
        return next((r for r in range(self.rounds + 1) if site in self.sampled(r)), 0)

    def absent(self, site: str) -> list[int]:
        """List the rounds that a site was sampled for and missed, up to the newest round that any site reported."""
        newest = max((r for rows in self.rows.values() for r in rows), default=-1)
        return [r for r in range(newest + 1) if r not in self.rows[site] and site in self.sampled(r)]

    def _scored(self, site: str) -> list[dict[str, Any]]:
        return [row["metrics"] for _, row in sorted(self.rows[site].items()) if row.get("metrics")]


def load_run(
    folder: Path,
    *,
    evaluations: dict[str, dict[str, Any]] | None = None,
    compared: dict[str, dict[str, dict[str, Any]]] | None = None,
) -> Run:
    """Read a run's state directory; `evaluations` and `compared` become fields of the `Run`.

    RecordError: run.json is missing or contains no tasks, a record cannot be read, or an evaluation has none of the
    run's sites.
    """
    info = read_json(folder / "run.json")
    lines = read_lines(folder / "server" / "rounds.jsonl")
    by_site = [line for line in lines if line.get("kind") == "site"]
    sites = tuple(dict.fromkeys(map(str, [*info.get("sites", []), *(line["site"] for line in by_site)])))
    rows: dict[str, dict[int, dict[str, Any]]] = {site: {} for site in sites}
    for line in by_site:  # after a resume a round may occur twice: the later line counts
        rows[str(line["site"])][int(line["round"])] = line
    aggregations = {int(line["round"]): line for line in lines if line.get("kind") == "aggregation"}
    finals = {str(line["site"]): line for line in lines if line.get("kind") == "final"}
    files = {site: site_folder(folder, site) / "final.json" for site in sites}
    finals |= {site: read_json(file) for site, file in files.items() if file.is_file()}
    run = Run(folder, info, sites, rows, aggregations, finals, dict(evaluations or {}), dict(compared or {}))
    for group in run.groups:  # raises if run.json has no tasks, or an evaluation has no task
        run.evaluations_of(group)
    for name, records in run.compared.items() if len(run.compared) > 1 else ():
        if not set(records) & set(sites):
            reason = f"are of {', '.join(records)}, but the run's sites are {', '.join(sites)}"
            raise RecordError(f"the evaluations {name!r} {reason}; give evaluations of the run's sites, or another run")
    return run


def load_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Read FOLDER/<site>/metrics.json of every site, as the bundles' evaluate.yaml writes it.

    The ``rows`` of each record come from videos.csv (one row per video) or metrics.csv (per frame) in its folder.
    """
    files = sorted(folder.glob("*/metrics.json"))
    if not files:
        raise RecordError(f"{folder}: contains no <site>/metrics.json; give the folder with one folder per site")
    by_site: dict[str, dict[str, Any]] = {}
    for file in files:
        record = read_json(file)
        if (site := str(record.get("site", file.parent.name))) in by_site:
            raise RecordError(f"{file}: another folder also has an evaluation of {site}; keep one of them")
        by_site[site] = {**record, "rows": _read_rows(file)}
    return by_site


def _read_rows(file: Path) -> list[dict[str, str]]:
    table = next((t for name in ("videos.csv", "metrics.csv") if (t := file.with_name(name)).is_file()), None)
    if table is None:
        return []
    with table.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    if any("video" not in row or None in row.values() for row in rows):
        raise RecordError(f"{table}: is not an evaluation's table, with a video in every row; evaluate the model again")
    return rows


def site_folder(folder: Path, site: str) -> Path:
    """Return a site's folder; it is inside the run's folder for any name."""
    return folder / site.replace("/", "_").replace("\\", "_").strip(".")


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object; RecordError if the file is missing or is no JSON object."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); give a run's state directory") from error
    except ValueError as error:
        raise RecordError(f"{file}: is not JSON ({error}); restore it or run the job again") from error
    if not isinstance(record, dict):
        raise RecordError(f"{file}: is a JSON {type(record).__name__}, not an object; restore it")
    return record


def score(metrics: Mapping[str, Any], metric: str, name: str = "mean") -> float:
    """Return a metric of one output, or NaN if it is absent, null or not finite."""
    by_output = metrics.get(metric)
    value = by_output.get(name) if isinstance(by_output, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else NAN


def curves(run: Run, sites: Sequence[str], metric: str, name: str = "mean") -> dict[str, Curve]:
    """Return each site's metric over its reported rounds, NaN if no frame could be scored."""
    scored = {site: [item for item in sorted(run.rows[site].items()) if item[1].get("metrics")] for site in sites}
    return {site: {r: score(row["metrics"], metric, name) for r, row in rows} for site, rows in scored.items()}


def worst(by_site: dict[str, Curve], metric: Metric) -> Curve:
    """Return the worst value over the sites for each round."""
    rounds = sorted({r for curve in by_site.values() for r in curve})
    return {r: metric.worst([curve[r] for curve in by_site.values() if r in curve]) for r in rounds}


def worst_site(scores: Mapping[str, float], metric: Metric) -> tuple[str, float]:
    """Return the first site with the worst score, and this score."""
    value = metric.worst(scores.values())
    return next(site for site in scores if scores[site] == value), value


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN, or NaN if there are none."""
    counted = [v for v in values if not math.isnan(v)]
    return sum(counted) / len(counted) if counted else NAN


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read JSON lines, none if the file is missing; leave out an incomplete last line.

    A run appends to its file, and may be killed while it does. RecordError: another line is no JSON.
    """
    content = file.read_text(encoding="utf-8") if file.is_file() else ""
    texts = [text for text in content.splitlines() if text.strip()]
    records = []
    for number, text in enumerate(texts, start=1):
        try:
            records.append(json.loads(text))
        except ValueError as error:
            if number < len(texts):
                raise RecordError(f"{file}: record {number} is not JSON ({error})") from error
    return records
