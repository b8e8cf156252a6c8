"""Read what a run left behind in its state directory.

    RUN/run.json                 job, method, arguments, commit, seed, sites, rounds, hardware, started;
                                 what the method says of itself, every site's card, and the metrics of every
                                 kind of task
    RUN/server/rounds.jsonl      one line per site and round, one per aggregation, one per site's final metrics
    RUN/<site>/final.json        the final model's validation metrics in full
    RUN/<site>/overlays/*.png    pictures, as the site's task draws them

A run may be unfinished, a site may have missed rounds, and its folder may be on another machine: what is
absent is left out here and named by the report. Rounds in files and in this package count from 0; people
read `round_number`.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared_components.core.card import Card, Metric

EARLY = {"error": "failed", "stopped": "stopped"}
"""Status of a run that ended early, by the key of run.json with the reason."""
_NAMED = 6  # a heading counts more names than this


class RecordError(ValueError):
    """A record is missing or unreadable; the message names the file and what to do."""


@dataclass(frozen=True)
class Group:
    """The sites of one task, in the run's order, and its metrics, the selecting one first.

    ``outputs`` have scores of their own (classes without the background); a task with one number per metric has none.
    """

    card: Card
    metrics: tuple[Metric, ...]
    sites: tuple[str, ...]
    outputs: tuple[str, ...] = ()

    @property
    def first(self) -> Metric:
        """The metric that selects the best model."""
        return self.metrics[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of a full table: every output, then the mean."""
        return (*self.outputs, "mean")

    @property
    def task(self) -> str:
        """The task for a heading: ``Segmentation: shaft, wrist``, ``Depth``."""
        kind = self.card.kind.replace("_", " ").capitalize()
        named = f"{kind}: {_listed(self.outputs, 'outputs')}" if self.outputs else kind
        if self.card.frames != 1:
            named += f", {self.card.frames or 'all'} frames"
        others = [name for name in self.card.inputs if name != "image"]
        return f"{named}, with {' and '.join(others)}" if others else named

    @property
    def title(self) -> str:
        """The task and its sites: ``Depth (site-3)``."""
        return f"{self.task} ({_listed(self.sites, 'sites')})"


def read_cards(info: Mapping[str, Any], sites: Sequence[str], where: object) -> dict[str, Card]:
    """Read every site's card from the content of run.json; `where` names the file in errors.

    Raises:
        RecordError: It holds none (an older version wrote it), or none of a site.
    """
    if "cards" not in info or "metrics" not in info:
        raise RecordError(f"{where}: names no tasks, an older version of surgfl wrote it; run it again in a new folder")
    if missing := [site for site in sites if site not in info["cards"]]:
        raise RecordError(f"{where}: names no task for {missing[0]}; its cards are of {', '.join(info['cards'])}")
    return {site: Card.from_json(info["cards"][site]) for site in sites}


def _read_metrics(info: Mapping[str, Any], kind: str, where: object) -> tuple[Metric, ...]:
    """Read the metrics of a kind of task, the selecting one first."""
    if not (rows := info["metrics"].get(kind)):
        raise RecordError(f"{where}: holds no metrics of {kind}; its metrics are of {', '.join(info['metrics'])}")
    return tuple(map(Metric.from_json, rows))


def grouped(
    info: Mapping[str, Any], sites: Sequence[str], scores: Mapping[str, Sequence[Mapping[str, Any]]], where: object
) -> tuple[Group, ...]:
    """Group sites by card, in the order in which the cards first occur; their score records name the outputs.

    Raises:
        RecordError: run.json holds no card of a site (`read_cards`), or no metrics of a kind of task.
    """
    cards = read_cards(info, sites, where)
    groups = []
    for card in dict.fromkeys(cards.values()):
        metrics = _read_metrics(info, card.kind, where)
        members = tuple(site for site in sites if cards[site] == card)
        records = [record for site in members for record in scores.get(site, ())]
        groups.append(Group(card, metrics, members, output_names(records, metrics[0], card)))
    return tuple(groups)


def output_names(records: Sequence[Mapping[str, Any]], metric: Metric, card: Card) -> tuple[str, ...]:
    """List the names beside ``mean`` that a metric was scored by, in the card's order where it has them."""
    found = [record.get(metric.name) for record in records]
    names = dict.fromkeys(name for scores in found if isinstance(scores, Mapping) for name in scores)
    own = [name for name in card.outputs if name in names]  # JSON written by us has sorted keys
    return tuple(name for name in (*own, *(n for n in names if n not in own)) if name != "mean")


def _listed(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} {what}"


NAN = math.nan
Curve = dict[int, float]  # round -> value


def round_number(r: int) -> int:
    """Return the number of a recorded round for people, who count from 1."""
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
    beside: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By name, evaluations on the same frames to be compared; the run's own are the last."""

    @property
    def rounds(self) -> int:
        """Rounds of the job; where run.json does not say, those it has aggregated."""
        return int(self.info.get("rounds") or len(self.aggregations))

    @property
    def said(self) -> dict[str, str]:
        """The method's label as papers write it, its idea in a sentence, and its paper."""
        plain = {"label": str(self.info.get("method", "Federated run")), "idea": "", "paper": ""}
        return plain | self.info.get("said", {})

    @property
    def cards(self) -> dict[str, Card]:
        """Every site's task."""
        return read_cards(self.info, self.sites, self._file)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The sites by task; only scores of one group share a table."""
        ends = (self.finals, self.evaluations)
        scores = {site: [*self._scored(site), *(end[site] for end in ends if site in end)] for site in self.sites}
        return grouped(self.info, self.sites, scores, self._file)

    def evaluations_of(self, group: Group) -> dict[str, dict[str, Any]]:
        """The evaluations of a group's sites.

        Raises:
            RecordError: One is of a site that the run does not have, so that its task is not known.
        """
        if len(set(self.cards.values())) == 1:
            return self.evaluations
        if strange := [site for site in self.evaluations if site not in self.sites]:
            raise RecordError(
                f"an evaluation is of {strange[0]}; with several tasks it must be one of {', '.join(self.sites)}"
            )
        return {site: record for site, record in self.evaluations.items() if site in group.sites}

    def last_metrics(self, site: str) -> dict[str, Any]:
        """Return a site's final metrics or, without them, those of the last round it reported."""
        return self.finals.get(site) or next(reversed(self._scored(site)), {})

    def drawn(self, r: int) -> Sequence[str]:
        """Return the sites that took part in a round: all, unless the aggregation's record names a random sample."""
        return self.aggregations.get(r, {}).get("drawn", self.sites)

    @property
    def draws(self) -> bool:
        """Whether a round had only a random sample of the sites."""
        return any(len(self.drawn(r)) < len(self.sites) for r in self.aggregations)

    def first_round(self, site: str) -> int:
        """Return the first round that a site was drawn in."""
        return next((r for r in range(self.rounds + 1) if site in self.drawn(r)), 0)

    def absent(self, site: str) -> list[int]:
        """List the rounds, up to the newest one any site has reported, that a site was drawn in and missed."""
        newest = max((r for rows in self.rows.values() for r in rows), default=-1)
        return [r for r in range(newest + 1) if r not in self.rows[site] and site in self.drawn(r)]

    @property
    def _file(self) -> Path:
        return self.folder / "run.json"

    def _scored(self, site: str) -> list[dict[str, Any]]:
        return [row["metrics"] for _, row in sorted(self.rows[site].items()) if row.get("metrics")]


def load_run(
    folder: Path,
    *,
    evaluations: dict[str, dict[str, Any]] | None = None,
    beside: dict[str, dict[str, dict[str, Any]]] | None = None,
) -> Run:
    """Read a run's state directory, with evaluations of its models by site, and of these and others by name.

    Raises:
        RecordError: run.json is missing or names no tasks, a record cannot be read, or of several evaluations one is of
            none of the run's sites.
    """
    info = read_json(folder / "run.json")
    lines = _read_lines(folder / "server" / "rounds.jsonl")
    by_site = [line for line in lines if line.get("kind") == "site"]
    named = [*info.get("sites", []), *(line["site"] for line in by_site)]
    sites = tuple(dict.fromkeys(str(name) for name in named))
    rows: dict[str, dict[int, dict[str, Any]]] = {site: {} for site in sites}
    for line in by_site:  # after a resume a round may occur twice: the later line counts
        rows[str(line["site"])][int(line["round"])] = line
    aggregations = {int(line["round"]): line for line in lines if line.get("kind") == "aggregation"}
    finals = {str(line["site"]): line for line in lines if line.get("kind") == "final"}
    files = {site: site_folder(folder, site) / "final.json" for site in sites}
    finals |= {site: read_json(file) for site, file in files.items() if file.is_file()}
    run = Run(folder, info, sites, rows, aggregations, finals, dict(evaluations or {}), dict(beside or {}))
    for group in run.groups:  # refuses a run.json without tasks, and evaluations that fit none
        run.evaluations_of(group)
    for name, records in run.beside.items() if len(run.beside) > 1 else ():
        if not set(records) & set(sites):
            raise RecordError(
                f"the evaluations {name!r} are of {', '.join(records)}, and the run's sites are {', '.join(sites)}; "
                "give evaluations of these sites, or the run that those are of"
            )
    return run


def load_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Read FOLDER/<site>/metrics.json, as the bundles' evaluate.yaml writes it, for every site there.

    Each record has as ``rows`` those of the file beside it of whole videos (videos.csv) or frames (metrics.csv).
    """
    files = sorted(folder.glob("*/metrics.json"))
    if not files:
        raise RecordError(f"{folder}: holds no <site>/metrics.json; give the folder with one folder per site")
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        record = read_json(file)
        if (site := str(record.get("site", file.parent.name))) in found:
            raise RecordError(f"{file}: is of {site}, as another folder here is; evaluate each site once into {folder}")
        found[site] = {**record, "rows": _rows_beside(file)}
    return found


def _rows_beside(file: Path) -> list[dict[str, str]]:
    for name in ("videos.csv", "metrics.csv"):
        if (table := file.with_name(name)).is_file():
            with table.open(newline="", encoding="utf-8") as text:
                rows = list(csv.DictReader(text))
            if any("video" not in row or None in row.values() for row in rows):
                raise RecordError(
                    f"{table}: is not as an evaluation writes it, with a video in every row; evaluate again"
                )
            return rows
    return []


def site_folder(folder: Path, site: str) -> Path:
    """Return a site's folder, which is inside the run's whatever the name holds."""
    return folder / site.replace("/", "_").replace("\\", "_").strip(".")


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        RecordError: The file is missing or holds something else.
    """
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); give a run's state directory") from error
    except ValueError as error:
        raise RecordError(f"{file}: is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RecordError(f"{file}: holds a JSON {type(record).__name__}, not an object")
    return record


def score(metrics: Mapping[str, Any], metric: str, name: str = "mean") -> float:
    """Return a metric of one output; NaN where it is absent, null or not finite."""
    found = metrics.get(metric)
    value = found.get(name) if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else NAN


def curves(run: Run, sites: Sequence[str], metric: str, name: str = "mean") -> dict[str, Curve]:
    """Return each site's metric over the rounds it reported (NaN where the output had no frame to score)."""
    return {
        site: {
            r: score(row["metrics"], metric, name) for r, row in sorted(run.rows[site].items()) if row.get("metrics")
        }
        for site in sites
    }


def worst(by_site: dict[str, Curve], metric: Metric) -> Curve:
    """Return the worst value of the sites in every round."""
    rounds = sorted({r for curve in by_site.values() for r in curve})
    return {r: metric.worst([curve[r] for curve in by_site.values() if r in curve]) for r in rounds}


def mean(values: Sequence[float]) -> float:
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
