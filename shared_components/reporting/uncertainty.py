"""How far a test score could have come out otherwise with other videos: whole videos drawn again, frames and all.

Frames of one video show one scene, so that they are no repetitions of each other: the bootstrap is one of clusters
(Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 3.8). It says nothing of other hospitals, nor
of another training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared_components.reporting.records import RecordError, score

RESAMPLES, LEVEL, FEWEST_VIDEOS = 2_000, 0.95, 3
_ROUNDED = 1e-4  # by which a score may differ from the same of a CSV's six digits, relative to 1 or the score


@dataclass(frozen=True)
class Measured:
    """One site's test frames by one metric: by video and output the sum and the count of what was scored.

    ``sums`` and ``counts`` are (videos, outputs); a task without outputs, or with numbers of whole videos, has one.
    """

    videos: tuple[str, ...]
    sums: np.ndarray
    counts: np.ndarray

    def scores(self, drawn: np.ndarray) -> np.ndarray:
        """Return the site's score of each draw of video numbers, (..., n) to (...); NaN where nothing is scored."""
        sums, counts = self.sums[drawn].sum(-2), self.counts[drawn].sum(-2)
        known = counts > 0
        means = np.divide(sums, counts, out=np.zeros(sums.shape), where=known)  # over frames, then over outputs
        outputs = known.sum(-1)
        return np.divide(means.sum(-1), outputs, out=np.full(outputs.shape, np.nan), where=outputs > 0)

    def draws(self, place: int) -> np.ndarray:
        """Return `RESAMPLES` draws, as many videos each as there are; the same for all models of a site's place."""
        n = len(self.videos)
        return np.random.default_rng(place).integers(n, size=(RESAMPLES, n))


def measured(record: Mapping[str, Any], metric: str) -> Measured | None:
    """Read an evaluation's rows; None where the record's score is not the mean of them over frames and outputs.

    ``record["rows"]`` are those of metrics.csv or, where there is one, of videos.csv, see `records.load_evaluations`.
    """
    rows = [row for row in record.get("rows", ()) if row.get(metric)]
    videos = tuple(dict.fromkeys(row["video"] for row in rows))
    outputs = list(dict.fromkeys(row.get("class", "") for row in rows))
    sums, counts = np.zeros((2, len(videos), len(outputs)))
    for row in rows:
        cell = videos.index(row["video"]), outputs.index(row.get("class", ""))
        sums[cell] += _number(row[metric], metric)
        counts[cell] += 1
    found, value = Measured(videos, sums, counts), score(record, metric)
    if not rows or not abs(found.scores(np.arange(len(videos))) - value) <= _ROUNDED * max(1.0, abs(value)):
        return None
    return found


def _number(text: str, metric: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecordError(
            f"a row of an evaluation has {metric} {text!r:.80}, which is no number; evaluate again"
        ) from None


@dataclass(frozen=True)
class Spread:
    """Two ends between which a score lies, and what they are of: draws of videos, or the lowest and the highest."""

    low: float = math.nan
    high: float = math.nan
    drawn: bool = False

    @property
    def known(self) -> bool:
        """Whether there are two ends."""
        return not math.isnan(self.low)


def of_site(found: Measured | None, place: int) -> Spread:
    """Return the interval of `LEVEL` over draws of a site's videos; of two videos both values, of one nothing."""
    if found is None or len(found.videos) < 2:
        return Spread()
    if len(found.videos) < FEWEST_VIDEOS:
        each = found.scores(np.arange(len(found.videos))[:, None])
        return Spread(float(each.min()), float(each.max()))
    return _percentiles(found.scores(found.draws(place)))


def of_mean(sites: Sequence[Measured | None], less: Sequence[Measured | None] = ()) -> Spread:
    """Return the interval of the mean over these sites, in which each site's videos are drawn for themselves.

    With ``less``, another model's at the same sites, of the difference of both means on the same draws. Nothing where
    a site has fewer than `FEWEST_VIDEOS` videos, or the two were not scored on the same ones.
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
