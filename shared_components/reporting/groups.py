"""Which sites may stand in one table and enter one mean: those that learn the same thing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared_components.core.card import Card, Metric

_NAMED = 6  # with more names than this a heading counts them


class RecordError(ValueError):
    """A record is missing or unreadable; the message names the file and what to do."""


@dataclass(frozen=True)
class Group:
    """The sites of one card.

    Attributes:
        card: What they learn.
        metrics: How well, the selecting one first.
        sites: In the run's order.
        outputs: Names with scores of their own (classes without the background); none where a task has only
            one number per metric.
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
        """What is learned: ``Segmentation: shaft, wrist``, ``Depth``."""
        kind = self.card.kind.replace("_", " ").capitalize()
        named = f"{kind}: {_listed(self.outputs, 'outputs')}" if self.outputs else kind
        if self.card.frames != 1:
            named += f", {self.card.frames or 'all'} frames"
        others = [name for name in self.card.inputs if name != "image"]
        return f"{named}, with {' and '.join(others)}" if others else named

    @property
    def title(self) -> str:
        """What is learned and where: ``Depth (site-3)``."""
        return f"{self.task} ({_listed(self.sites, 'sites')})"


def read_cards(info: Mapping[str, Any], sites: Sequence[str], where: object) -> dict[str, Card]:
    """Read every site's card from run.json.

    Args:
        info: What the file holds.
        sites: Whose cards are needed.
        where: The file, for errors.

    Raises:
        RecordError: It holds none (an older version wrote it), or none of a site.
    """
    if "cards" not in info or "metrics" not in info:
        raise RecordError(f"{where}: names no tasks, an older version of surgfl wrote it; run it again in a new folder")
    if missing := [site for site in sites if site not in info["cards"]]:
        raise RecordError(f"{where}: names no task for {missing[0]}; its cards are of {', '.join(info['cards'])}")
    return {site: Card.from_json(info["cards"][site]) for site in sites}


def read_metrics(info: Mapping[str, Any], kind: str, where: object) -> tuple[Metric, ...]:
    """Read the metrics of a kind of task from run.json, the selecting one first.

    Raises:
        RecordError: It holds none of this kind.
    """
    if not (rows := info["metrics"].get(kind)):
        raise RecordError(f"{where}: holds no metrics of {kind}; its metrics are of {', '.join(info['metrics'])}")
    return tuple(map(Metric.from_json, rows))


def grouped(
    info: Mapping[str, Any], sites: Sequence[str], scores: Mapping[str, Sequence[Mapping[str, Any]]], where: object
) -> tuple[Group, ...]:
    """Group sites by card, in the order in which the cards first occur.

    Args:
        info: What run.json holds.
        sites: In the run's order.
        scores: Every site's score records, which name the outputs.
        where: The file, for errors.

    Raises:
        RecordError: See :func:`read_cards` and :func:`read_metrics`.
    """
    cards = read_cards(info, sites, where)
    groups = []
    for card in dict.fromkeys(cards.values()):
        metrics = read_metrics(info, card.kind, where)
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
