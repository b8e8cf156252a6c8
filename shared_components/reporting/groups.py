"""Group sites by task; only scores of one task are averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared_components.core.card import Card, Metric

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
