"""The optimizer: one group as ever, groups by part, nothing that is fixed; training that ends at the best score."""

import math
import re

import pytest
import torch
from torch import nn

from shared_components.core.best_checkpoint import EVERY, PATIENCE, train_to_best
from shared_components.core.bundle import load_bundle
from shared_components.core.card import Metric
from shared_components.core.training import make_optimizer, optimizer_tensors, restore_optimizer
from shared_components.core.training_settings import Training, training_from
from shared_components.federation.messages import Job
from shared_components.networks.parts import freeze


def network():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 1))
    made.parts = {"body": ("0", "1"), "head": ("2",)}
    return made


def steps(made, optimizer, count=3):
    for number in range(count):
        optimizer.zero_grad()
        made(torch.tensor([[1.0, number]])).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in made.parameters()]


def test_without_parts_it_is_adamw_over_all_parameters_to_the_bit_and_parts_have_their_own_rates():
    ours, plain = network(), network()
    optimizer = make_optimizer(ours, Training(learning_rate=0.1, weight_decay=0.5))
    by_hand = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.5, fused=True)
    assert all(torch.equal(*pair) for pair in zip(steps(ours, optimizer), steps(plain, by_hand), strict=True))
    kept, theirs = optimizer_tensors(optimizer), optimizer_tensors(by_hand)
    assert list(kept) == list(theirs) and all(torch.equal(kept[n], theirs[n]) for n in kept)
    settings = Training(learning_rate=0.1, weight_decay=0.0, learning_rates={"head": 0.001, "0": 0.0})
    ours = network()
    before = [p.detach().clone() for p in ours.parameters()]
    after = steps(ours, make_optimizer(ours, settings), count=1)
    moved = [float((a - b).abs().max()) for a, b in zip(before, after, strict=True)]
    # AdamW's first step is the learning rate times the sign of the gradient
    assert moved == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.001, 0.001], rel=1e-3)


def test_an_optimizer_goes_on_where_it_was_and_has_nothing_that_is_fixed():
    settings = Training(learning_rate=0.1, learning_rates={"head": 0.01})
    straight, resumed = network(), network()
    optimizer = make_optimizer(straight, settings)
    steps(straight, optimizer)
    resumed.load_state_dict(straight.state_dict())
    other = make_optimizer(resumed, settings)
    restore_optimizer(other, optimizer_tensors(optimizer))
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.01]
    pairs = zip(steps(straight, optimizer), steps(resumed, other), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    ours = network()
    freeze(ours, ["body"])
    before = [p.detach().clone() for p in ours.parameters()]
    optimizer = make_optimizer(ours, Training(learning_rate=0.1, weight_decay=0.5))
    after = steps(ours, optimizer)
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True] * 4 + [False] * 2
    assert optimizer.param_groups[0]["params"] == list(ours[2].parameters())


@pytest.mark.parametrize("values, sentence", [
    ({"fixed": "encoder"}, r"fixed is the text 'encoder'; write a list: \['encoder'\]"),
    ({"fixed": 3}, "fixed is 3; write a list"), ({"fixed": [3]}, r"fixed is \[3\]; write a list"),
    ({"learning_rates": 0.1}, "learning_rates is 0.1; write rates such as"),
    ({"learning_rates": {"head": float("nan")}}, "learning_rates.head is nan"),
    ({"learning_rates": {"head": float("inf")}}, "learning_rates.head is inf"),
    ({"learning_rates": {"head": -1}}, "learning_rates.head is -1"),
    ({"learning_rates": {"head": "fast"}}, "learning_rates.head is 'fast'"),
    ({"learning_rates": {"head": True}}, "learning_rates.head is True"),
])  # fmt: skip
def test_settings_that_are_no_parts_or_rates_are_refused(values, sentence):
    with pytest.raises(ValueError, match=f"training: {sentence}"):
        training_from(values)


@pytest.mark.parametrize("key, values, due", [
    ("learning_rate", [math.nan, math.inf, -1e-3, "5e-05", None, True], "a number, at least 0 and at most 1000.0"),
    ("colour", [math.nan, -0.1, 1.01, "0.5", None], "a number, at least 0 and at most 1"),
    ("weight_decay", [math.nan, -0.1, "0"], "a number, at least 0 and at most 1000.0"),
    ("iterations", [0, -1, 2.5, "10", None, False, math.nan], "a whole number, at least 1 and at most 10000000"),
    ("batch_size", [0, 2.5, 2.0], "a whole number, at least 1 and at most 65536"),
    ("height", [0, "96", 96.0], "a whole number, at least 1 and at most 16384"),
    ("width", [-32, [64]], "a whole number, at least 1 and at most 16384"),
    ("rounds", [0, 1.5], "a whole number, at least 1 and at most 1000000"),
    ("seed", [-1, 0.5, 2**63, None], "a whole number, at least 0 and at most 9223372036854775807"),
])  # fmt: skip
def test_a_setting_that_is_no_such_number_is_refused_when_it_is_read(key, values, due):
    for value in values:
        sentence = re.escape(f"training: {key} is {value!r}; it is {due}")
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            load_bundle("pvt_fpn", {key: value})
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            Job("a", "pvt_fpn", "fedavg", training={key: value}).open_bundle()


def test_settings_of_parts_are_read_and_what_is_no_section_is_refused():
    settings = training_from({"fixed": ["encoder"], "learning_rates": {"head": 0}})
    assert settings.fixed == ("encoder",) and settings.learning_rates == {"head": 0}
    assert training_from({"fixed": None, "learning_rates": None}) == Training()
    with pytest.raises(ValueError, match=r"^training: it is \[3\]; write its settings as 'name: value'$"):
        load_bundle("pvt_fpn", [3])


DICE, RMSE = Metric("dice", "Dice", True), Metric("rmse", "RMSE", False)


def trained(*scores, budget=1000, metric=DICE, **options):
    """Return how the training went, and the number of steps that the weights left have had."""
    network, given = nn.Linear(1, 1, bias=False), iter(scores)
    network.weight.data.zero_()

    def train(steps):
        network.weight.data += steps
        return {"loss": float(network.weight.detach())}  # a mean that tells one stretch from another

    found = train_to_best(network, train, lambda: next(given), metric=metric, budget=budget, **options)
    return found, int(network.weight)


def test_the_best_weights_are_kept_by_the_metrics_direction():
    found, steps = trained(0.1, 0.2, 0.5, 0.4, 0.5, 0.3, 0.2)
    assert (steps, found.steps) == (2 * EVERY, (2 + PATIENCE) * EVERY)
    assert (found.before, found.best) == (0.1, 0.5)
    found, steps = trained(0.9, 0.2, 0.5, 0.4, 0.5)
    assert (steps, found.steps, found.best) == (0, PATIENCE * EVERY, 0.9)
    _, steps = trained(5.0, 4.0, 6.0, 4.5, 7.0, 4.0, metric=RMSE)
    assert steps == EVERY
    _, steps = trained(math.nan, 0.1, math.nan, math.nan, math.nan, math.nan)
    assert steps == EVERY


@pytest.mark.parametrize(("accumulate", "stretch"), [(1, 25), (10, 20), (30, 30), (7, 28)])
def test_no_batch_of_a_step_is_left_over_at_a_validation(accumulate, stretch):
    _, steps = trained(0.1, 0.2, 0.1, 0.1, 0.1, 0.1, accumulate=accumulate)
    assert steps == stretch and stretch % accumulate == 0


def test_budget_patience_or_somebody_end_training():
    found, steps = trained(0.1, 0.2, 0.3, budget=EVERY + 5)
    assert steps == found.steps == EVERY + 5
    assert found.losses == {"loss": pytest.approx((EVERY * EVERY + 5 * (EVERY + 5)) / (EVERY + 5))}
    found, steps = trained(*[None] * 9, budget=7 * EVERY)
    assert (steps, found.steps, found.before, found.best) == (7 * EVERY, 7 * EVERY, None, None)
    found, steps = trained(0.4, budget=0)
    assert (steps, found.steps, found.losses) == (0, 0, {})
    found, steps = trained(0.1, 0.3, 0.2, 0.3, 0.9, every=10, patience=2)
    assert (found.steps, found.best, steps) == (30, 0.3, 10)
    asked = iter([False, True])
    found, steps = trained(0.1, 0.2, every=10, stop=lambda: next(asked))
    assert (found.steps, steps) == (10, 10)


def test_epochs_are_steps_by_the_samples_of_a_site_which_repeats_or_shrinks_a_batch_that_it_cannot_fill():
    settings = training_from({"epochs": 3, "batch_size": 4})
    assert settings.for_samples(10).iterations == 8  # 30 samples in batches of 4
    assert settings.for_samples(1).iterations == 1 and settings.for_samples(10).epochs == 0
    plain = training_from({"iterations": 7})
    assert plain.for_samples(10) is plain
    sizes = [
        (settings.batch_size, settings.iterations)
        for few in ("repeat", "shrink")
        for settings in [Training(batch_size=4, epochs=2, few_samples=few).for_samples(3)]
    ]
    assert sizes == [(4, 2), (3, 2)]
    assert Training(batch_size=4, few_samples="shrink").for_samples(3).batch_size == 3
    refusing = Training(batch_size=4, few_samples="refuse")
    assert refusing.for_samples(4) is refusing
    with pytest.raises(ValueError, match="has 3 training samples, fewer than a batch of 4, and few_samples is"):
        refusing.for_samples(3)


def test_iterations_of_a_job_replace_its_bundles_epochs_unless_it_names_both():
    assert load_bundle("surgfed").training.epochs == 3
    assert load_bundle("surgfed", {"iterations": 5}).training.for_samples(100).iterations == 5
    assert load_bundle("surgfed", {"epochs": 1, "batch_size": 1}).training.for_samples(100).iterations == 100
    with pytest.raises(ValueError, match="iterations 20 has no effect, since epochs is 1; write epochs: 0"):
        load_bundle("pvt_fpn", {"epochs": 1, "iterations": 20})
    assert load_bundle("pvt_fpn", {"epochs": 0, "iterations": 20}).training.iterations == 20
