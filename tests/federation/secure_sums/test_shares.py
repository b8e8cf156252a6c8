"""Shares of a secret, against values worked by hand and in exact fractions."""

from itertools import combinations

import pytest

from shared_components.federation.secure_sums import shares
from shared_components.federation.secure_sums.shares import PRIME, join, split

SECRET = bytes(range(32))


@pytest.mark.parametrize("threshold, count", [(1, 1), (2, 3), (3, 5), (5, 9)])
def test_any_threshold_of_shares_give_the_secret_back(threshold, count):
    made = split(SECRET, threshold=threshold, count=count)
    for chosen in combinations(range(count), threshold):
        assert join({place + 1: made[place] for place in chosen}) == SECRET


def test_a_line_through_two_points_by_hand(monkeypatch):
    """5 + 7x: the shares are 12, 19, 26."""
    monkeypatch.setattr(shares.secrets, "randbelow", lambda most: 7)
    made = split((5).to_bytes(32), threshold=2, count=3)
    assert [int.from_bytes(one) for one in made] == [12, 19, 26]
    assert int.from_bytes(join({1: made[0], 3: made[2]})) == 5


def test_one_share_less_fits_every_secret():
    """With T - 1 shares any secret has a polynomial through them: here another one is built and joined."""
    made = split(SECRET, threshold=3, count=5)
    known = {1: made[0], 2: made[1]}
    assert join(known) != SECRET
    other = int.from_bytes(b"\x01" * 32)
    x1, x2 = (int.from_bytes(known[place]) for place in (1, 2))
    # the parabola through (0, other), (1, x1), (2, x2), at 3: f(3) = f(0) - 3 f(1) + 3 f(2)
    third = (other - 3 * x1 + 3 * x2) % PRIME
    assert join({**known, 3: third.to_bytes(33)}) == b"\x01" * 32


def test_the_prime_is_one_above_all_secrets():
    assert PRIME > 2**256 and all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))
    largest = b"\xff" * 32
    assert join(dict(enumerate(split(largest, threshold=2, count=2), 1))) == largest


def test_wrong_lengths_thresholds_and_shares_are_refused():
    with pytest.raises(ValueError, match="a secret has 32 bytes, and this one 31"):
        split(SECRET[:31], threshold=1, count=1)
    for threshold in (0, 4):
        with pytest.raises(ValueError, match=f"threshold {threshold} is not from 1 to 3"):
            split(SECRET, threshold=threshold, count=3)
    with pytest.raises(ValueError, match="below the prime"):
        join({1: b"\xff" * 33})
    with pytest.raises(ValueError, match="no share"):
        join({})
