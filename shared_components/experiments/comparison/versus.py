"""Compare two rows video by video: split violins as in FL-EndoViT's figures, and an exact paired test.

Values are means over the seeds that both rows have. If a task scores no videos, the violins show frames. The test
always uses videos, since frames of the same video are not independent.
"""

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
_paired_test = lru_cache(maxsize=256)(paired_test)  # chart and table show the same tests
Key = tuple[str, str, str]
"""Site, video and sample; the sample is empty for a whole video."""


@dataclass(frozen=True)
class Matched:
    """Values of two rows for the same videos or frames, and the means per video, which are tested."""

    drawn: Pair
    tested: Pair

    @property
    def test(self) -> PairedTest:
        return _paired_test(*map(tuple, self.tested))


def matched(comparison: Comparison, metric: Metric, left: str, right: str, sites: Sequence[str]) -> Matched | None:
    """Pair the values of two rows at some sites; return None without common seeds or videos."""
    rows = [{r.run.seed: _values(r, metric, sites) for r in comparison.of(label)} for label in (left, right)]
    seeds = [seed for seed in rows[0] if rows[0][seed] and rows[1].get(seed)]
    if not seeds:
        return None
    both = [_mean_over_seeds([row[seed] for seed in seeds]) for row in rows]
    keys = [key for key in both[0] if key in both[1]]
    videos: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        videos.setdefault(key[:2], []).append(key)
    of_videos = [[statistics.fmean(side[key] for key in frames) for frames in videos.values()] for side in both]
    first, second = ([side[key] for key in keys] for side in both)
    return Matched((first, second), (of_videos[0], of_videos[1])) if keys else None


def _samples(result: Result, site: str) -> list[Mapping]:
    return (result.scores or {}).get("sites", {}).get(site, {}).get("samples", [])


def _values(result: Result, metric: Metric, sites: Sequence[str]) -> dict[Key, float]:
    return {
        (site, sample["video"], sample["sample"]): sample["values"][metric.name]
        for site in sites
        for sample in _samples(result, site)
        if sample["values"].get(metric.name) is not None
    }


def _mean_over_seeds(by_seed: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    common = [key for key in by_seed[0] if all(key in values for values in by_seed)]
    return {key: statistics.fmean(values[key] for values in by_seed) for key in common}


def _metric(comparison: Comparison, group: Group, name: str = "") -> Metric | None:
    """Return the named metric, by default the first, if it has scores per video or frame; else None."""
    scored = {
        key
        for result in comparison.results
        for site in group.sites
        for sample in _samples(result, site)[:1]
        for key in sample["values"]
    }
    return next((m for m in group.metrics if m.name in scored and name in ("", m.name)), None)


def versus(comparison: Comparison, group: Group) -> Iterator[tuple[Versus, Metric, dict[str, Matched]]]:
    """Yield the preset's comparisons, by default the best two rows, with metric and matched values per violin.

    A single pair has a violin of all sites and one per site.
    """
    first = _metric(comparison, group)
    if first is None:
        return
    comparisons = comparison.versus
    if not comparisons and (two := contest(comparison, group, first) or contest(comparison, group, group.first)):
        comparisons = (Versus.of(two.best, two.second),)
    for one in comparisons:
        metric = _metric(comparison, group, one.metric)
        if metric is None:
            continue
        violin_rows = {name: (pair, group.sites) for name, pair in one.rows.items()}
        if len(one.rows) == 1 and len(group.sites) > 1:
            (pair,) = one.rows.values()
            violin_rows = {ALL: (pair, group.sites), **{site: (pair, (site,)) for site in group.sites}}
        values = {name: matched(comparison, metric, *pair, sites) for name, (pair, sites) in violin_rows.items()}
        if known := {name: pair for name, pair in values.items() if pair is not None}:
            yield one, metric, known


def versus_panel(comparison: Comparison, group: Group) -> Panel:
    """Draw the violins of all comparisons."""
    charts = []
    for one, metric, by_name in versus(comparison, group):
        drawn, tested = ({name: getattr(pair, key) for name, pair in by_name.items()} for key in ("drawn", "test"))
        charts.append(violins(
            drawn, tested=tested, title=" and ".join(one.models), y_label=metric.plain_heading, models=one.models,
            level=LEVEL, higher_is_better=metric.higher_is_better,
        ))  # fmt: skip
    seeds = len({result.run.seed for result in comparison.results})
    text = (
        f"{comparison.split.capitalize()} videos, or frames if a task scores no videos. "
        f"{f'Means of {seeds} seeds' if seeds > 1 else 'One seed'}. p: exact Wilcoxon signed-rank test over n videos; "
        "frames of a video are not independent. least: the smallest possible p for n videos."
    )
    return Panel("Video by video", charts, [], 0, text)


def versus_table(comparison: Comparison, group: Group) -> Table | None:
    """Tabulate the paired tests of all comparisons; return None if no videos were scored."""
    rows = []
    for one, metric, by_name in versus(comparison, group):
        for name, pair in by_name.items():
            test = pair.test
            difference = metric.text(test.median) if math.isfinite(test.median) else ""
            numbers = str(len(pair.tested[0])), difference, f"{test.p:.3g}", f"{test.least:.3g}"
            rows.append((" / ".join(one.models), name, metric.heading, *numbers))
    head = ("Left / right", "Of", "Metric", "Videos", "Median difference", "Wilcoxon p", "Least possible p")
    note = (
        "Exact two-sided test, paired by video. A video's value is the mean over its frames and over the seeds that "
        "both rows have. Equal pairs are left out, and p is not corrected for the number of tests. The test does not "
        "generalise to other hospitals"
    )
    title = "Video by video" + (f": {group.title}" if len(comparison.groups) > 1 else "")
    return Table(title, head, tuple(rows), 3, note) if rows else None
