"""Masks, keys and shares: the sum is exact if sites drop out, and a single site's vector reveals nothing."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from shared_components.federation.secure_sums import masks
from shared_components.federation.secure_sums.keys import Keys, public_of, seal, unseal
from shared_components.federation.secure_sums.masks import PRIME, Attempt, join, mask, split, stretch, take_off, unmask

SECRET = bytes(range(32))


def private_of(number):
    return bytes([number + 1]) * 32


def named(count):
    return [f"site-{number + 1}" for number in range(count)]


def make_keys(count):
    public = {name: public_of(private_of(number)) for number, name in enumerate(named(count))}
    return {name: Keys(name, private_of(number), public) for number, name in enumerate(public)}


def make_attempt(count, *, threshold=None, nonce="a", round=0):
    """Return an attempt among all sites, by default with the least threshold."""
    return Attempt("job/run", round, nonce, tuple(named(count)), threshold or count // 2 + 1)


def vectors_of(count, length=1000):
    generator = np.random.default_rng(7)
    return {name: generator.integers(0, 2**64, length, dtype=np.uint64) for name in named(count)}


def masked_by_all(count, length=1000):
    """Return an attempt among all sites, their keys and vectors, and what they upload."""
    attempt, keys, vectors = make_attempt(count), make_keys(count), vectors_of(count, length)
    return attempt, keys, vectors, {s: mask(vectors[s].copy(), attempt, keys[s]) for s in attempt.sites}


def shares_for(site, masked):
    return {sender: sent.shares[site] for sender, sent in masked.items()}


def opened_by(attempt, keys, masked, answering):
    """Let some sites open their shares of the sum of all that is there."""
    return {site: unmask(attempt, keys[site], shares_for(site, masked)) for site in answering}


def open_sum(attempt, keys, masked, answering):
    return take_off(attempt, masked, opened_by(attempt, keys, masked, answering))


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
    total = open_sum(attempt, keys, masked, answering)
    assert total[:50].tolist() == plain_sum(vectors, sent)


def test_every_pair_of_three_opens_the_same_sum_and_masks_between_its_sites_stay_closed():
    attempt, keys, _, masked = masked_by_all(3)
    sums = [open_sum(attempt, keys, masked, pair) for pair in combinations(attempt.sites, 2)]
    assert all(np.array_equal(sums[0], other) for other in sums[1:])
    attempt, keys, _, masked = masked_by_all(5)
    whole = opened_by(attempt, keys, masked, ["site-1"])["site-1"]
    assert {site: len(rows) for site, rows in whole.items()} == dict.fromkeys(attempt.sites, 1)
    del masked["site-5"]
    four = opened_by(attempt, keys, masked, ["site-1"])["site-1"]
    assert {site: len(rows) for site, rows in four.items()} == dict.fromkeys(attempt.sites[:4], 2)


@pytest.mark.parametrize("count", [2, 3])
def test_what_one_site_sends_is_uniform_and_unlike_what_it_would_hide(count):
    """Chi-square over the 256 values of a byte, at p = 0.001; the bare vector fails it, so the test can fail."""
    attempt, keys = make_attempt(count, threshold=2), make_keys(count)
    bare = np.arange(1 << 16, dtype=np.uint64)
    sent = mask(bare.copy(), attempt, keys["site-1"], own=bytes(range(32))).vector
    counts = [np.bincount(x.view(np.uint8), minlength=256) for x in (sent, bare)]
    assert chisquare(counts[0]).pvalue > 0.001 and chisquare(counts[1]).pvalue < 1e-9
    each = [np.bincount(sent.view(np.uint8)[place::8], minlength=256) for place in range(8)]
    assert min(chisquare(one).pvalue for one in each) > 0.001 / 8


def test_an_attempt_with_another_nonce_or_own_mask_never_sends_the_same_vector():
    """Were a mask used twice, the difference would be zero."""
    keys, bare = make_keys(3), vectors_of(3, 1 << 16)["site-1"]
    first, second = (mask(bare.copy(), make_attempt(3, nonce=n), keys["site-1"]).vector for n in "ab")
    assert chisquare(np.bincount((first - second).view(np.uint8), minlength=256)).pvalue > 1e-6
    assert np.count_nonzero(first == second) == 0
    keys, bare = make_keys(3), vectors_of(3)["site-1"]
    first, second = (mask(bare.copy(), make_attempt(3), keys["site-1"]) for _ in range(2))
    assert first.hashes["site-1"] != second.hashes["site-1"]
    assert first.hashes["site-2"] == second.hashes["site-2"]
    assert not np.any(first.vector == second.vector)


def test_without_its_own_mask_a_late_vector_stays_hidden_though_its_pairwise_masks_were_opened():
    attempt, keys, vectors, masked = masked_by_all(3, 1 << 16)
    late = masked.pop("site-3")
    opened = opened_by(attempt, keys, masked, masked)
    bare = late.vector.copy()  # the server joins the pairwise secrets and takes them off the late vector
    for site in masked:
        secret = join({place + 1: opened[name][site][1] for place, name in enumerate(("site-1", "site-2"))})
        stretch(secret, bare, add=True)
    left = bare - vectors["site-3"]
    assert chisquare(np.bincount(left.view(np.uint8), minlength=256)).pvalue > 1e-6
    assert np.count_nonzero(left == 0) == 0


def test_a_site_refuses_sums_that_it_should_not_open():
    attempt, keys, _, masked = masked_by_all(5)
    sealed = shares_for("site-1", masked)
    with pytest.raises(ValueError, match="a sum of 2 sites; the threshold is 3"):
        unmask(attempt, keys["site-1"], {site: sealed[site] for site in ("site-1", "site-2")})
    with pytest.raises(ValueError, match="a sum without this site"):
        unmask(attempt, keys["site-1"], {site: sealed[site] for site in ("site-2", "site-3", "site-4")})
    with pytest.raises(ValueError, match="site-9 was not asked in round 1"):
        unmask(attempt, keys["site-1"], sealed | {"site-9": sealed["site-2"]})
    for other in (make_attempt(5, nonce="b"), make_attempt(5, round=1), make_attempt(5, threshold=4)):
        with pytest.raises(ValueError, match=r"the shares sealed by site-1 cannot be opened: .* another round"):
            unmask(other, keys["site-1"], sealed)
    flipped = sealed["site-2"][:-1] + bytes([sealed["site-2"][-1] ^ 1])
    for bad in (sealed["site-3"], flipped, masked["site-2"].shares["site-3"]):  # of another sender, changed, to another
        with pytest.raises(ValueError, match="the shares sealed by site-2 cannot be opened"):
            unmask(attempt, keys["site-1"], sealed | {"site-2": bad})


def test_one_wrong_share_is_passed_over_and_too_many_are_told():
    attempt, keys, vectors, masked = masked_by_all(5)
    opened = opened_by(attempt, keys, masked, attempt.sites)
    opened["site-2"]["site-4"][0] = bytes(33)
    assert take_off(attempt, masked, opened)[:50].tolist() == plain_sum(vectors, attempt.sites)
    for site in ("site-1", "site-3"):
        opened[site]["site-4"][0] = b"\xff" * 33
    with pytest.raises(ValueError, match="shares of a mask of site-4 do not fit together"):
        take_off(attempt, masked, opened)
    few = {site: opened[site] for site in ("site-1", "site-5")}
    with pytest.raises(ValueError, match="shares were opened by 2 sites; the threshold is 3"):
        take_off(attempt, masked, few)


def test_a_threshold_that_two_halves_could_reach_and_a_site_named_twice_are_refused():
    for count, threshold in ((4, 2), (4, 5), (3, 1), (2, 1)):
        with pytest.raises(ValueError, match=f"a secure sum of {count} sites needs a threshold above half"):
            make_attempt(count, threshold=threshold)
    with pytest.raises(ValueError, match="names a site twice"):
        Attempt("job/run", 0, "a", ("site-1", "site-1", "site-2"), 2)


def test_a_mask_is_chacha20_adds_modulo_2_to_the_64_and_does_not_repeat():
    """RFC 8439, A.1, test vector 1: key, nonce and counter are zero."""
    vector = np.array([0, 2**64 - 1], dtype=np.uint64)
    stretch(bytes(32), vector, add=True)
    stream = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28")
    first, second = (int.from_bytes(stream[start : start + 8], "little") for start in (0, 8))
    assert vector.tolist() == [first, (second - 1) % 2**64]
    stretch(bytes(32), vector, add=False)
    assert vector.tolist() == [0, 2**64 - 1]
    whole = np.zeros(300_000, dtype=np.uint64)
    stretch(b"k" * 32, whole, add=True)
    assert len(np.unique(whole)) == len(whole)


def test_public_keys_are_those_of_the_standard_and_two_sites_find_one_secret_per_purpose():
    """RFC 7748, 6.1: Bob's."""
    private = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert public_of(private).hex() == public
    keys = make_keys(3)
    first = keys["site-1"].secret("site-2", b"mask")
    assert first == keys["site-2"].secret("site-1", b"mask")
    others = [keys["site-1"].secret("site-2", b"shares"), keys["site-1"].secret("site-3", b"mask")]
    assert first not in others and others[0] != others[1]


def test_keys_that_are_not_ones_own_are_twice_there_or_are_none_are_refused():
    public = {name: public_of(private_of(n)) for n, name in enumerate(named(3))}
    with pytest.raises(ValueError, match="a key for site-1 that is not its own"):
        Keys("site-1", private_of(1), public)
    with pytest.raises(ValueError, match="the same key for two sites"):
        Keys("site-1", private_of(0), public | {"site-3": public["site-2"]})
    with pytest.raises(ValueError, match="the key of site-2 is invalid"):
        Keys("site-1", private_of(0), public | {"site-2": bytes(32)}).secret("site-2", b"mask")


def test_sealed_content_is_read_with_its_key_and_about_its_matter_alone():
    key = b"k" * 32
    sealed = seal(key, b"share", b"round 1")
    assert unseal(key, sealed, b"round 1") == b"share" and b"share" not in sealed
    assert seal(key, b"share", b"round 1") != sealed
    others = [(b"j" * 32, sealed, b"round 1"), (key, sealed, b"round 2"), (key, sealed[:-1], b"round 1")]
    for wrong in (*others, (key, b"", b"")):
        with pytest.raises(ValueError, match="changed on its way, or is of another round"):
            unseal(*wrong)


@pytest.mark.parametrize("threshold, count", [(1, 1), (2, 3), (3, 5), (5, 9)])
def test_any_threshold_of_shares_give_the_secret_back(threshold, count):
    made = split(SECRET, threshold=threshold, count=count)
    for chosen in combinations(range(count), threshold):
        assert join({place + 1: made[place] for place in chosen}) == SECRET


def test_a_line_through_two_points_by_hand(monkeypatch):
    """5 + 7x: the shares are 12, 19, 26."""
    monkeypatch.setattr(masks.secrets, "randbelow", lambda most: 7)
    made = split((5).to_bytes(32), threshold=2, count=3)
    assert [int.from_bytes(one) for one in made] == [12, 19, 26]
    assert int.from_bytes(join({1: made[0], 3: made[2]})) == 5


def test_one_share_less_fits_every_secret_and_the_prime_is_above_all():
    """With T - 1 shares any secret has a polynomial through them: here one for another secret is built and joined."""
    made = split(SECRET, threshold=3, count=5)
    known = {1: made[0], 2: made[1]}
    assert join(known) != SECRET
    other = int.from_bytes(b"\x01" * 32)
    x1, x2 = (int.from_bytes(known[place]) for place in (1, 2))
    # the parabola through (0, other), (1, x1), (2, x2), at 3: f(3) = f(0) - 3 f(1) + 3 f(2)
    third = (other - 3 * x1 + 3 * x2) % PRIME
    assert join({**known, 3: third.to_bytes(33)}) == b"\x01" * 32
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
