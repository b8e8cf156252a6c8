"""Clipped noise and its price, against formulas, statistics and an attack that tries to tell two data sets apart."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from shared_components.federation.privacy.gaussian import ORDERS, Privacy, clip_and_noise, epsilon, farthest, normal


def seeded(seed=0):
    return np.random.default_rng(seed).bytes


def pieces(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (40, 7), "b[0:3]": (3,), "c.bias": ()}
    drawn = {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**drawn, "norm.num_batches_tracked": torch.tensor(seed)}


def moved(received, sent):
    return {n: sent[n].double() - v.double() for n, v in received.items() if v.is_floating_point()}


def norm(changes):
    return math.sqrt(sum(float(change.square().sum()) for change in changes.values()))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_without_clip_and_noise_what_was_trained_is_sent_bit_by_bit(scale):
    received, trained = pieces(1), pieces(2, scale)
    sent, _ = clip_and_noise(received, trained, clip=math.inf, noise_multiplier=0)
    assert all(torch.equal(sent[name], trained[name]) for name in moved(received, sent))


def test_a_large_change_is_scaled_to_the_clip_and_a_small_one_stays():
    received = {"w": torch.tensor([1.0, 1.0]), "v": torch.zeros(1)}
    trained = {"w": torch.tensor([4.0, 1.0]), "v": torch.tensor([4.0])}
    sent, length = clip_and_noise(received, trained, clip=0.5, noise_multiplier=0)
    assert length == 5.0  # (3, 0, 4)
    torch.testing.assert_close(sent, {"w": torch.tensor([1.3, 1.0]), "v": torch.tensor([0.4])})
    received = {"w": torch.zeros(2)}
    sent, length = clip_and_noise(received, {"w": torch.tensor([0.3, 0.4])}, clip=1, noise_multiplier=0)
    assert length == pytest.approx(0.5) and torch.equal(sent["w"], torch.tensor([0.3, 0.4]))
    assert torch.equal(clip_and_noise(received, received, clip=1, noise_multiplier=0)[0]["w"], torch.zeros(2))


@pytest.mark.parametrize("scale", [1.0, 1e10, 1e30])
def test_no_change_is_larger_than_the_clip_however_far_the_training_went(scale):
    received, trained = pieces(1), pieces(2, scale)
    sent, _ = clip_and_noise(received, trained, clip=0.25, noise_multiplier=0)
    assert norm(moved(received, sent)) <= 0.25 * (1 + 1e-5)


def test_noise_leaves_no_variance_below_zero_and_is_drawn_anew_in_every_call():
    received = {"v": torch.zeros(1000), "w": torch.zeros(1000)}
    sent, _ = clip_and_noise(received, received, clip=1, noise_multiplier=1, random=seeded(), variances={"v"})
    assert float(sent["v"].min()) == 0 and float(sent["w"].min()) < -2
    received = {"w": torch.zeros(50)}
    first, second = (clip_and_noise(received, received, clip=1, noise_multiplier=1)[0]["w"] for _ in range(2))
    assert not bool((first == second).any())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_sent(bad):
    with pytest.raises(FloatingPointError, match="not finite"):
        clip_and_noise({"w": torch.zeros(2)}, {"w": torch.tensor([bad, 0.0])}, clip=1, noise_multiplier=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_shapes_and_dtypes_stay_integers_are_as_received_and_inputs_are_left_alone(dtype):
    received, trained = pieces(1), pieces(2)
    counted = clip_and_noise(received, trained, clip=0.1, noise_multiplier=1)[0]["norm.num_batches_tracked"]
    assert all(torch.equal(v, pieces(1)[n]) for n, v in received.items())
    assert all(torch.equal(v, pieces(2)[n]) for n, v in trained.items())
    assert counted.item() == 1 and counted.dtype == torch.int64
    received = {"w": torch.zeros(3, 5, dtype=dtype)}
    sent, _ = clip_and_noise(received, received, clip=1, noise_multiplier=1)
    assert sent["w"].shape == (3, 5) and sent["w"].dtype == dtype


def test_noise_has_the_standard_deviation_that_it_should():
    """With 200,001 numbers: mean and deviation within 5 standard errors, and Kolmogorov and Smirnov's test."""
    count, clip, multiplier = 200_001, 0.7, 1.3
    received = {"w": torch.zeros(count, dtype=torch.float64)}
    sent, _ = clip_and_noise(received, received, clip=clip, noise_multiplier=multiplier, random=seeded())
    noise, due = sent["w"].numpy(), clip * multiplier
    assert abs(noise.mean()) < 5 * due / math.sqrt(count)
    assert abs(noise.std() / due - 1) < 5 / math.sqrt(2 * count)
    assert stats.kstest(noise / due, "norm").pvalue > 0.01
    assert stats.kstest(noise / due * 1.02, "norm").pvalue < 0.01  # which would see 2 % more


def test_numbers_are_independent_and_finite_at_the_extremes_of_the_bits():
    drawn = normal(100_000, seeded(3)).numpy()
    first, second = drawn[:50_000], drawn[50_000:]
    for other in (second, np.roll(first, 1), second**2 - 1):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(50_000)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 5 / math.sqrt(50_000)
    for byte in (b"\x00", b"\xff"):
        assert bool(torch.isfinite(normal(6, lambda count, byte=byte: byte * count)).all())
    assert float(normal(2, lambda count: b"\x00" * count)[0]) == pytest.approx(8.66, abs=0.01)


def test_an_update_goes_no_farther_than_the_server_is_told():
    privacy = Privacy(clip=0.5, noise_multiplier=2.0)
    received = {"w": torch.zeros(100, dtype=torch.float64)}
    trained = {"w": received["w"] + 9}
    for seed in range(50):
        sent, _ = clip_and_noise(received, trained, clip=0.5, noise_multiplier=2.0, random=seeded(seed))
        assert norm(moved(received, sent)) < farthest(privacy, 100) < 20


SETTINGS = [
    (z, rounds, delta) for z in (0.1, 0.5, 1.0, 4.0, 20.0, 300.0) for rounds in (1, 8, 200) for delta in (1e-3, 1e-7)
]


def by_hand(z, rounds, delta, alpha):
    """Mironov 2017 at a sensitivity of 2C and noise of zC, and Balle et al. 2020, Theorem 21."""
    divergence = rounds * alpha * (2 / z) ** 2 / 2
    return divergence + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)


def exact(z, rounds, delta):
    """Balle and Wang 2018, Theorem 8: the least epsilon of a Gaussian mechanism; several make a stronger mechanism."""
    mu = 2 * math.sqrt(rounds) / z

    def excess(eps):
        second = math.exp(eps + stats.norm.logcdf(-eps / mu - mu / 2))
        return stats.norm.cdf(mu / 2 - eps / mu) - second - delta

    return optimize.brentq(excess, 0, mu * mu + 60 * mu + 60) if excess(0) > 0 else 0.0


@pytest.mark.parametrize("z, rounds, delta", SETTINGS)
def test_epsilon_is_the_formulas_and_never_below_the_exact_one(z, rounds, delta):
    price = epsilon({z: rounds}, delta)
    least = max(0.0, min(by_hand(z, rounds, delta, float(alpha)) for alpha in ORDERS))
    assert price == pytest.approx(least, rel=1e-6, abs=1e-6)
    options = {"bounds": (-12, 14), "method": "bounded", "options": {"xatol": 1e-9}}
    best = optimize.minimize_scalar(lambda x: by_hand(z, rounds, delta, 1 + math.exp(x)), **options)
    assert max(0.0, best.fun) - 1e-9 <= price <= max(0.0, best.fun) * 1.0004 + 1e-6
    least = exact(z, rounds, delta)
    assert least <= price * (1 + 1e-9) + 1e-9 and price <= 1.35 * least + 0.1


def test_rounds_with_different_noise_add_up():
    assert epsilon({2.0: 3, 4.0: 4}, 1e-5) == pytest.approx(epsilon({2.0: 4}, 1e-5))  # four of 4 are one of 2
    assert epsilon({}, 1e-5) == epsilon({1.0: 0}, 1e-5) == 0
    assert epsilon({1.0: 5}, 1e-5) > epsilon({1.0: 4}, 1e-5) > epsilon({2.0: 4}, 1e-5) > 0


def audited(z, *, trials, confidence=0.999):
    """Return the epsilon at delta 0.01 that an attacker proves from one update, trained on either of two data sets.

    The worst two: their updates are opposite and both clipped. The threshold is chosen on other trials than the bound,
    which is Clopper and Pearson's of both kinds of error.
    """
    received, canary = {"w": torch.zeros(5)}, torch.tensor([3.0, 0, 4.0, 0, 0])

    def seen(sign, seed):
        random = seeded(seed)
        options = {"clip": 1, "noise_multiplier": z, "random": random}
        sent = [clip_and_noise(received, {"w": sign * canary}, **options)[0]["w"] for _ in range(trials)]
        return (torch.stack(sent) @ (canary / 5)).numpy()

    threshold = np.quantile(seen(-1, 0), 0.99)
    false, true = int((seen(-1, 1) > threshold).sum()), int((seen(1, 2) > threshold).sum())
    false_most = stats.beta.ppf(confidence, false + 1, trials - false)
    true_least = stats.beta.ppf(1 - confidence, true, trials - true + 1)
    return math.log((true_least - 0.01) / false_most)


def test_an_audit_proves_no_more_than_is_claimed_and_no_less_than_a_sensitivity_of_the_clip_would():
    """Were updates of two data sets at most C apart, noise of 1 C would cost less than what the attack proves."""
    proved, claimed = audited(1.0, trials=3000), epsilon({1.0: 1}, 0.01)
    assert 2.7 < proved <= claimed
    assert epsilon({2.0: 1}, 0.01) < proved  # what a sensitivity of C instead of 2C would claim
