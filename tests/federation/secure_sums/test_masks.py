"""Masks: the sum is exact whoever drops out, and what one site sends tells nothing."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from shared_components.federation.secure_sums.masks import Attempt, mask, stretch, take_off, unmask
from shared_components.federation.secure_sums.shares import join
from tests.federation.secure_sums.parties import make_attempt, make_keys, masked_by_all, open_sum, opened_by, vectors_of


def plain_sum(vectors, sites):
    """Add in Python's own integers."""
    return [sum(int(vectors[site][place]) for site in sites) % 2**64 for place in range(50)]


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("before", [0, 1, "most"])
@pytest.mark.parametrize("after", [0, "most"])
def test_the_sum_is_exact_whoever_drops_out_before_and_after_the_upload(count, before, after):
    attempt, keys, vectors = make_attempt(count), make_keys(count), vectors_of(count)
    spare = count - attempt.threshold
    gone = min(spare, spare if before == "most" else before)
    sent = list(attempt.sites[gone:])  # the first sites never upload
    masked = {site: mask(vectors[site].copy(), attempt, keys[site]) for site in sent}
    answering = sent[: attempt.threshold] if after == "most" else sent
    found = open_sum(attempt, keys, masked, answering)
    assert found[:50].tolist() == plain_sum(vectors, sent)


def test_every_pair_of_three_sites_opens_the_same_sum():
    attempt, keys, vectors = make_attempt(3), make_keys(3), vectors_of(3)
    masked = masked_by_all(attempt, keys, vectors)
    sums = [open_sum(attempt, keys, masked, pair) for pair in combinations(attempt.sites, 2)]
    assert all(np.array_equal(sums[0], other) for other in sums[1:])


@pytest.mark.parametrize("count", [2, 3])
def test_what_one_site_sends_is_uniform_and_unlike_what_it_would_hide(count):
    """Chi-square over the 256 values of a byte, at p = 0.001; the bare vector fails it, so the test can fail."""
    attempt, keys = make_attempt(count, threshold=2), make_keys(count)
    bare = np.arange(1 << 16, dtype=np.uint64)
    sent = mask(bare.copy(), attempt, keys["site-1"], own=bytes(range(32))).vector
    counts = [np.bincount(x.view(np.uint8), minlength=256) for x in (sent, bare)]
    assert chisquare(counts[0]).pvalue > 0.001
    assert chisquare(counts[1]).pvalue < 1e-9
    each = [np.bincount(sent.view(np.uint8)[place::8], minlength=256) for place in range(8)]
    assert min(chisquare(one).pvalue for one in each) > 0.001 / 8


def test_the_difference_of_two_attempts_of_one_vector_is_uniform_too():
    """Were a mask used twice, the difference would be zero."""
    keys, bare = make_keys(3), vectors_of(3, 1 << 16)["site-1"]
    first, second = (mask(bare.copy(), make_attempt(3, nonce=n), keys["site-1"]).vector for n in "ab")
    assert chisquare(np.bincount((first - second).view(np.uint8), minlength=256)).pvalue > 1e-6
    assert np.count_nonzero(first == second) == 0


def test_the_own_mask_differs_even_where_the_attempt_is_the_same():
    keys, bare = make_keys(3), vectors_of(3)["site-1"]
    first, second = (mask(bare.copy(), make_attempt(3), keys["site-1"]) for _ in range(2))
    assert first.hashes["site-1"] != second.hashes["site-1"]
    assert first.hashes["site-2"] == second.hashes["site-2"]
    assert not np.any(first.vector == second.vector)


def test_without_its_own_mask_a_late_vector_stays_hidden_though_its_pairwise_masks_were_opened():
    attempt, keys, vectors = make_attempt(3), make_keys(3), vectors_of(3, 1 << 16)
    masked = masked_by_all(attempt, keys, vectors)
    late = masked.pop("site-3")
    opened = opened_by(attempt, keys, masked, masked)
    bare = late.vector.copy()  # the server joins the pairwise secrets and takes them off the late vector
    for site in masked:
        secret = join({place + 1: opened[name][site][1] for place, name in enumerate(("site-1", "site-2"))})
        stretch(secret, bare, add=True)
    left = bare - vectors["site-3"]
    assert chisquare(np.bincount(left.view(np.uint8), minlength=256)).pvalue > 1e-6
    assert np.count_nonzero(left == 0) == 0


def test_masks_of_sites_that_are_in_the_sum_stay_closed():
    attempt, keys, vectors = make_attempt(5), make_keys(5), vectors_of(5)
    masked = masked_by_all(attempt, keys, vectors)
    whole = opened_by(attempt, keys, masked, ["site-1"])["site-1"]
    assert {site: len(rows) for site, rows in whole.items()} == dict.fromkeys(attempt.sites, 1)
    del masked["site-5"]
    four = opened_by(attempt, keys, masked, ["site-1"])["site-1"]
    assert {site: len(rows) for site, rows in four.items()} == dict.fromkeys(attempt.sites[:4], 2)


def test_a_site_refuses_sums_that_it_should_not_open():
    attempt, keys, vectors = make_attempt(5), make_keys(5), vectors_of(5)
    masked = masked_by_all(attempt, keys, vectors)
    sealed = {sender: sent.shares["site-1"] for sender, sent in masked.items()}
    with pytest.raises(ValueError, match="a sum of 2 sites; the threshold is 3"):
        unmask(attempt, keys["site-1"], {site: sealed[site] for site in ("site-1", "site-2")})
    with pytest.raises(ValueError, match="a sum without this site"):
        unmask(attempt, keys["site-1"], {site: sealed[site] for site in ("site-2", "site-3", "site-4")})
    with pytest.raises(ValueError, match="site-9 was not asked in round 1"):
        unmask(attempt, keys["site-1"], sealed | {"site-9": sealed["site-2"]})
    for other in (make_attempt(5, nonce="b"), make_attempt(5, round=1), make_attempt(5, threshold=4)):
        with pytest.raises(ValueError, match=r"what site-1 has sealed cannot be opened: .* another round"):
            unmask(other, keys["site-1"], sealed)
    with pytest.raises(ValueError, match="what site-2 has sealed cannot be opened"):
        unmask(attempt, keys["site-1"], sealed | {"site-2": sealed["site-3"]})
    flipped = sealed["site-2"][:-1] + bytes([sealed["site-2"][-1] ^ 1])
    with pytest.raises(ValueError, match="what site-2 has sealed cannot be opened"):
        unmask(attempt, keys["site-1"], sealed | {"site-2": flipped})


def test_the_server_cannot_read_a_sealed_share_of_another_site():
    attempt, keys, vectors = make_attempt(3), make_keys(3), vectors_of(3)
    masked = masked_by_all(attempt, keys, vectors)
    with pytest.raises(ValueError, match="cannot be opened"):
        unmask(attempt, keys["site-2"], {sender: sent.shares["site-1"] for sender, sent in masked.items()})


def test_one_wrong_share_is_passed_over_and_too_many_are_told():
    attempt, keys, vectors = make_attempt(5), make_keys(5), vectors_of(5)
    masked = masked_by_all(attempt, keys, vectors)
    opened = opened_by(attempt, keys, masked, attempt.sites)
    opened["site-2"]["site-4"][0] = bytes(33)
    assert take_off(attempt, masked, opened)[:50].tolist() == plain_sum(vectors, attempt.sites)
    for site in ("site-1", "site-3"):
        opened[site]["site-4"][0] = b"\xff" * 33
    with pytest.raises(ValueError, match="shares of a mask of site-4 do not fit together"):
        take_off(attempt, masked, opened)
    few = {site: opened[site] for site in ("site-1", "site-5")}
    with pytest.raises(ValueError, match="2 sites have opened their shares; the threshold is 3"):
        take_off(attempt, masked, few)


@pytest.mark.parametrize("count, threshold", [(4, 2), (4, 5), (3, 1), (2, 1)])
def test_a_threshold_that_two_halves_could_reach_is_refused(count, threshold):
    with pytest.raises(ValueError, match=f"a secure sum of {count} sites needs a threshold above half"):
        make_attempt(count, threshold=threshold)


def test_a_site_named_twice_is_refused():
    with pytest.raises(ValueError, match="names a site twice"):
        Attempt("job/run", 0, "a", ("site-1", "site-1", "site-2"), 2)


def test_a_mask_is_chacha20_and_adds_modulo_2_to_the_64():
    """RFC 8439, A.1, test vector 1: key, nonce and counter are zero."""
    vector = np.array([0, 2**64 - 1], dtype=np.uint64)
    stretch(bytes(32), vector, add=True)
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28")
    first, second = (int.from_bytes(stream[start : start + 8], "little") for start in (0, 8))
    assert vector.tolist() == [first, (second - 1) % 2**64]
    stretch(bytes(32), vector, add=False)
    assert vector.tolist() == [0, 2**64 - 1]


def test_a_long_mask_does_not_begin_anew_where_it_is_made_in_stretches():
    whole = np.zeros(300_000, dtype=np.uint64)
    stretch(b"k" * 32, whole, add=True)
    assert len(np.unique(whole)) == len(whole)
