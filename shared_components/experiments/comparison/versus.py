"""Compare two rows video by video: split violins as in FL-EndoViT's figures, and an exact paired test.

A value is the mean over the seeds that both rows have. If a task scores no videos, the violins show frames. The test
always uses videos, since frames of the same video are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shared_components.core.card import Metric
from shared_components.core.paired_test import PairedTest, paired_test
from shared_components.experiments.comparison.plan import Versus
from shared_components.experiments.comparison.results import Comparison, Result, contest
from shared_components.reporting.figures import Panel
from shared_components.reporting.records import Group
from shared_components.reporting.tables import Table
from shared_components.reporting.violins import Pair, violins

LEVEL = 0.01
ALL = "all sites"
_paired_test = lru_cache(maxsize=256)(paired_test)  # figure and table show the same
Key = tuple[str, str, str]
"""Site, video and sample; of a whole video the sample is empty."""


@dataclass(frozen=True)
class Matched:
    """The values of the same videos or frames by two rows, and the means of their videos, which are tested."""

    drawn: Pair
    tested: Pair

    @property
    def test(self) -> PairedTest:
        """The paired test of the videos."""
        return _paired_test(*map(tuple, self.tested))


def matched(comparison: Comparison, metric: Metric, left: str, right: str, sites: Sequence[str]) -> Matched | None:
    """Pair the values of two rows at some sites; None where they have none in common."""
    rows = [{r.run.seed: _values(r, metric, sites) for r in comparison.of(label)} for label in (left, right)]
    seeds = [seed for seed in rows[0] if rows[0][seed] and rows[1].get(seed)]
    if not seeds:
        return None
    both = [_over_seeds([row[seed] for seed in seeds]) for row in rows]
    keys = [key for key in both[0] if key in both[1]]
    videos: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        videos.setdefault(key[:2], []).append(key)
    of_videos = [[statistics.fmean(side[key] for key in found) for found in videos.values()] for side in both]
    first, second = ([side[key] for key in keys] for side in both)
    return Matched((first, second), (of_videos[0], of_videos[1])) if keys else None


def _values(result: Result, metric: Metric, sites: Sequence[str]) -> dict[Key, float]:
    """Return a run's numbers by video and sample; what is not counted has none."""
    scored = (result.scores or {}).get("sites", {})
    return {
        (site, one["video"], one["sample"]): one["values"][metric.name]
        for site in sites
        for one in scored.get(site, {}).get("samples", [])
        if one["values"].get(metric.name) is not None
    }


def _over_seeds(found: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Return the means of what all seeds have."""
    return {key: statistics.fmean(one[key] for one in found) for key in found[0] if all(key in one for one in found)}


def metric_of(comparison: Comparison, group: Group, name: str = "") -> Metric | None:
    """Return the metric of this name, or the first, that videos or frames were scored by; None without any."""
    held = {
        name
        for result in comparison.results
        for site in group.sites
        for one in (result.scores or {}).get("sites", {}).get(site, {}).get("samples", [])[:1]
        for name in one["values"]
    }
    return next((m for m in group.metrics if m.name in held and name in ("", m.name)), None)


def versus(comparison: Comparison, group: Group) -> Iterator[tuple[Versus, Metric, dict[str, Matched]]]:
    """Yield the preset's pairs, or the best two rows, with their metric and each violin's matched values, by its name.

    A single pair has a violin of all sites and one of each.
    """
    first = metric_of(comparison, group)
    if first is None:
        return
    pairs = comparison.versus
    if not pairs and (two := contest(comparison, group, first) or contest(comparison, group, group.first)):
        pairs = (Versus.of(two.best, two.second),)
    for one in pairs:
        metric = metric_of(comparison, group, one.metric)
        if metric is None:
            continue
        asked = {name: (pair, group.sites) for name, pair in one.rows.items()}
        if len(one.rows) == 1 and len(group.sites) > 1:
            (pair,) = one.rows.values()
            asked = {ALL: (pair, group.sites), **{site: (pair, (site,)) for site in group.sites}}
        found = {name: matched(comparison, metric, *pair, sites) for name, (pair, sites) in asked.items()}
        if known := {name: values for name, values in found.items() if values is not None}:
            yield one, metric, known


def versus_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw the violins of all pairs."""
    charts = [
        violins(
            {name: values.drawn for name, values in found.items()},
            tested={name: values.test for name, values in found.items()},
            title=f"{one.models[0]} and {one.models[1]}",
            y_label=metric.plain_heading,
            models=one.models,
            level=LEVEL,
            higher_is_better=metric.higher_is_better,
        )
        for one, metric, found in versus(comparison, group)
    ]
    seeds = len({result.run.seed for result in comparison.results})
    of = f"means of {seeds} seeds" if seeds > 1 else "one seed"
    text = (
        f"{comparison.split.capitalize()} videos, or their frames where a task scores no videos; {of}. p of Wilcoxon's "
        "signed-rank test, exact, over n videos: frames of one are no repetitions; least: the smallest p of so many."
    )
    return Panel("Video by video", charts, [], 0, text)


def versus_table(comparison: Comparison, group: Group) -> Table | None:
    """Tabulate the paired tests of all pairs; None where no videos were scored."""
    rows = []
    for one, metric, found in versus(comparison, group):
        for name, values in found.items():
            test = values.test
            difference = metric.text(test.median) if math.isfinite(test.median) else ""
            numbers = str(len(values.tested[0])), difference, f"{test.p:.3g}", f"{test.least:.3g}"
            rows.append((" / ".join(one.models), name, metric.heading, *numbers))
    head = ("Left / right", "Of", "Metric", "Videos", "Median difference", "Wilcoxon p", "Least possible p")
    note = (
        "paired by video, each the mean over its frames and over the seeds that both rows have; exact, two-sided, "
        "equal pairs left out; not corrected for the number of tests; videos of one hospital say nothing of another"
    )
    title = "Video by video" + (f": {group.title}" if len(comparison.groups) > 1 else "")
    return Table(title, head, tuple(rows), 3, note) if rows else None
