"""Compare two models on the same videos or seeds with the exact Wilcoxon signed-rank test.

A few pairs can never be significant: the smallest possible two-sided p is 0.125 for 4 pairs, 0.0625 for 5 and 0.0078
for 8. Do not test bootstrap samples as pairs: their number is arbitrary, so p would be arbitrary too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_PAIRS = 2_000  # the time of the exact distribution grows with the cube of the number of pairs


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired test."""

    pairs: int  # number of pairs with a difference, which are tested
    equal: int  # number of pairs without a difference, which are left out
    p: float  # two-sided; 1 if no pair differs
    least: float  # smallest possible p for this number of pairs
    median: float  # of all differences, first minus second; NaN without pairs

    def possible(self, level: float) -> bool:
        return self.least < level

    def text(self, level: float) -> str:
        """Return p and its smallest possible value: ``p 0.125 (minimum 0.125, 4 pairs: cannot be below 0.01)``."""
        cannot = "" if self.possible(level) else f": cannot be below {level:g}"
        return f"p {_short(self.p)} (minimum {_short(self.least)}, {self.pairs} pairs{cannot})"


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Test whether paired values (N,) differ, by Wilcoxon's signed-rank test (Biometrics Bulletin 1, 1945).

    Pairs with NaN and equal pairs are left out. Differences of equal size have the mean of their ranks. p is exact: the
    fraction of all 2^N sign choices for which the rank sum is at least as far from the centre. Raises ValueError if the
    lengths differ, or there are more than `MOST_PAIRS` pairs.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values are not pairs; give values of both models per video")
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[~np.isnan(differences)]
    if len(differences) > MOST_PAIRS:
        raise ValueError(f"{len(differences)} pairs are more than {MOST_PAIRS}; average them by video first")
    unequal = differences[differences != 0]
    n, median = len(unequal), float(np.median(differences)) if len(differences) else math.nan
    p = _exact(unequal) if n else 1.0
    return PairedTest(n, len(differences) - n, p, 2.0 ** (1 - n) if n else 1.0, median)


def _exact(differences: np.ndarray) -> float:
    """Return the two-sided p value of nonzero differences (N,)."""
    # twice the rank of each size (first + last rank of equal sizes), so that mean ranks are whole numbers
    _, group, counts = np.unique(np.abs(differences), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[group]
    chances = np.ones(1)  # probability of each sum of doubled ranks under random signs
    for rank in doubled:
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    above = int(doubled[differences > 0].sum())
    far = min(above, int(doubled.sum()) - above)
    return min(1.0, 2 * float(chances[: far + 1].sum()))


def _short(p: float) -> str:
    return f"{p:.2g}" if p < 0.001 else f"{p:.4f}".rstrip("0").rstrip(".")
