"""Compare two models on the same videos or seeds: Wilcoxon's signed-rank test, exact, and the least p it can have.

A few pairs cannot be significant whatever they are: the least two-sided p is 0.125 of 4 pairs, 0.0625 of 5, 0.0078 of
8. Differences of bootstrap samples are no pairs: their number is chosen, and so would p be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_PAIRS = 2_000  # the exact distribution takes pairs cubed


@dataclass(frozen=True)
class PairedTest:
    """A result.

    Attributes:
        pairs: That differ, on which the test is.
        equal: Pairs without a difference, which are left out.
        p: Two-sided; 1 where no pair differs.
        least: The smallest p that so many pairs can have, all of one sign.
        median: Of the differences, first minus second, equal pairs included; NaN without pairs.
    """

    pairs: int
    equal: int
    p: float
    least: float
    median: float

    def possible(self, level: float) -> bool:
        """Return whether so many pairs can be significant at all."""
        return self.least < level

    def text(self, level: float) -> str:
        """Write p with the least possible one: ``p 0.125 (least possible 0.125, 4 pairs: cannot be below 0.01)``."""
        cannot = "" if self.possible(level) else f": cannot be below {level:g}"
        return f"p {_short(self.p)} (least possible {_short(self.least)}, {self.pairs} pairs{cannot})"


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Test whether paired values (N,) differ, by Wilcoxon's signed-rank test (Biometrics Bulletin 1, 1945).

    Pairs with NaN and equal pairs are left out, differences of equal size share the mean of their ranks, and p is
    exact: the share of all 2^N choices of signs whose sum of ranks is as far from the middle or further.

    Raises:
        ValueError: The two differ in length, or there are more than `MOST_PAIRS`.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs; give both models' values of each video")
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[~np.isnan(differences)]
    if len(differences) > MOST_PAIRS:
        raise ValueError(f"{len(differences)} pairs are more than {MOST_PAIRS}; average them by video first")
    unequal = differences[differences != 0]
    n, median = len(unequal), float(np.median(differences)) if len(differences) else math.nan
    p = _exact(unequal) if n else 1.0
    return PairedTest(n, len(differences) - n, p, 2.0 ** (1 - n) if n else 1.0, median)


def _exact(differences: np.ndarray) -> float:
    """Return the two-sided p of differences (N,), none of them 0."""
    doubled = _doubled_ranks(np.abs(differences))
    chances = np.ones(1)  # of each sum of doubled ranks, as signs are tossed
    for rank in doubled:
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    above = int(doubled[differences > 0].sum())
    far = min(above, int(doubled.sum()) - above)
    return min(1.0, 2 * float(chances[: far + 1].sum()))


def _doubled_ranks(sizes: np.ndarray) -> np.ndarray:
    """Return twice the rank of each size, whole numbers also where equal sizes share their mean."""
    _, of_each, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[of_each]  # first + last rank of each group


def _short(p: float) -> str:
    return f"{p:.2g}" if p < 0.001 else f"{p:.4f}".rstrip("0").rstrip(".")
