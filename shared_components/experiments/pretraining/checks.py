"""Scores on a few rendered frames that are held out of pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from shared_components.common.progress import follow
from shared_components.core.evaluation import BATCH, quick_scores
from shared_components.core.task import Batch, Scores, Task
from shared_components.data.dataset import collated
from shared_components.data.samples import Item
from shared_components.data.synthetic.looks import LOOKS
from shared_components.data.transforms import to_tensors
from shared_components.experiments.pretraining.plan import Settings
from shared_components.experiments.pretraining.stream import RESERVED, held_out

RANDOM_LOOKS, SAMPLES = 12, 2


class Checks:
    """Held-out frames by group: of reserved random looks, or else of the settings' own looks, and of the named looks.

    They are rendered once, at the last phase's size.
    """

    def __init__(self, task: Task, settings: Settings) -> None:
        own = [f"random-{RESERVED + number}" for number in range(RANDOM_LOOKS)]
        groups = {"trained" if settings.looks else "random": settings.looks or own, "named": LOOKS}
        self._task = task
        self._items = {name: _render(looks, task, settings) for name, looks in groups.items()}

    def scores(self, network: nn.Module) -> dict[str, Scores]:
        """Score a network on each group, in float32 and without slow metrics."""
        return {
            name: quick_scores(network, self._task, follow(_batches(items), "scoring", -(-len(items) // BATCH)))
            for name, items in self._items.items()
        }


def summary(task: Task, scores: dict[str, Any]) -> str:
    """Write each group's mean of the first metric."""
    metric = task.metrics[0]
    means = {name: (found.get(metric.name) or {}).get("mean") for name, found in scores.items()}
    return f"{metric.label}: " + ", ".join(
        f"{name} looks {metric.said(value)}" for name, value in means.items() if value is not None
    )


def _render(looks: Sequence[str], task: Task, settings: Settings) -> list[Item]:
    found = []
    for number, look in enumerate(follow(looks, "rendering looks to score on,")):
        found += held_out(look, number, size=settings.size, spec=task.spec, count=SAMPLES)
    return found


def _batches(items: Sequence[Item]) -> Iterator[tuple[Batch, list[Item]]]:
    for start in range(0, len(items), BATCH):
        some = list(items[start : start + BATCH])
        yield collated([to_tensors(item.images, {}) for item in some]), some
