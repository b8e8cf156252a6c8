"""Compute bootstrap intervals of test scores over videos.

The cluster bootstrap draws whole videos with all their frames, because frames of a video are not independent
(Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 3.8). The intervals do not cover other
hospitals or other training runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared_components.reporting.records import RecordError, score

RESAMPLES, LEVEL, FEWEST_VIDEOS = 2_000, 0.95, 3
_ROUNDED = 1e-4  # tolerance for six-digit values of a CSV file, relative to the larger of 1 and the score


@dataclass(frozen=True)
class Measured:
    """Sum and number of a site's scores of a metric, by video and output.

    ``sums`` and ``counts`` are (videos, outputs); there is one output if the task has none or scores whole videos.
    """

    videos: tuple[str, ...]
    sums: np.ndarray
    counts: np.ndarray

    def scores(self, drawn: np.ndarray) -> np.ndarray:
        """Return the site's score of each draw of video numbers, (..., n) to (...); NaN without scores."""
        sums, counts = self.sums[drawn].sum(-2), self.counts[drawn].sum(-2)
        known = counts > 0
        means = np.divide(sums, counts, out=np.zeros(sums.shape), where=known)  # mean over frames, then over outputs
        outputs = known.sum(-1)
        return np.divide(means.sum(-1), outputs, out=np.full(outputs.shape, np.nan), where=outputs > 0)

    def draws(self, place: int) -> np.ndarray:
        """Return bootstrap draws (RESAMPLES, n) of n videos; `place` is the seed, so all models share the draws."""
        n = len(self.videos)
        return np.random.default_rng(place).integers(n, size=(RESAMPLES, n))


def measured(record: Mapping[str, Any], metric: str) -> Measured | None:
    """Read an evaluation's rows, or return None if their mean over frames and outputs is not the record's score."""
    rows = [row for row in record.get("rows", ()) if row.get(metric)]
    videos = tuple(dict.fromkeys(row["video"] for row in rows))
    outputs = list(dict.fromkeys(row.get("class", "") for row in rows))
    sums, counts = np.zeros((2, len(videos), len(outputs)))
    for row in rows:
        cell = videos.index(row["video"]), outputs.index(row.get("class", ""))
        sums[cell] += _number(row[metric], metric)
        counts[cell] += 1
    site, value = Measured(videos, sums, counts), score(record, metric)
    same = rows and abs(site.scores(np.arange(len(videos))) - value) <= _ROUNDED * max(1.0, abs(value))
    return site if same else None


def _number(text: str, metric: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecordError(
            f"a row of an evaluation has {metric} {text!r:.80}, which is not a number; evaluate the model again"
        ) from None


@dataclass(frozen=True)
class Spread:
    """Interval of a score: quantiles over `drawn` videos, or the lowest and highest video."""

    low: float = math.nan
    high: float = math.nan
    drawn: bool = False

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def of_site(site: Measured | None, place: int) -> Spread:
    """Return a site's bootstrap interval with probability `LEVEL`; two videos give their range, one gives none."""
    if site is None or len(site.videos) < 2:
        return Spread()
    if len(site.videos) < FEWEST_VIDEOS:
        each = site.scores(np.arange(len(site.videos))[:, None])
        return Spread(float(each.min()), float(each.max()))
    return _percentiles(site.scores(site.draws(place)))


def of_mean(sites: Sequence[Measured | None], less: Sequence[Measured | None] = ()) -> Spread:
    """Return the interval of the mean over sites; videos are drawn separately at each site.

    With ``less``, another model at the same sites, it is the interval of the difference of both means on the same
    draws. It is unknown if a site has fewer than `FEWEST_VIDEOS` videos, or if the models' videos differ.
    """
    if not sites or any(one is None or len(one.videos) < FEWEST_VIDEOS for one in sites):
        return Spread()
    means = np.mean([one.scores(one.draws(place)) for place, one in enumerate(sites) if one], axis=0)
    if less:
        pairs = list(zip(sites, less, strict=True))
        if any(one is None or other is None or one.videos != other.videos for one, other in pairs):
            return Spread()
        means = means - np.mean([one.scores(one.draws(place)) for place, one in enumerate(less) if one], axis=0)
    return _percentiles(means)


def _percentiles(values: np.ndarray) -> Spread:
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread()
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Spread(float(low), float(high), drawn=True)
