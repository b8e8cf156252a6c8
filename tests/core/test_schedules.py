"""Learning rates by a step's place in all rounds, and steps of several batches' mean gradient."""

import math

import pytest
import torch
from torch import nn

from shared_components.core.bundle import load_bundle
from shared_components.core.method import Context, Term, load_method
from shared_components.core.partition import Role, everything, partition_network
from shared_components.core.schedules import UNSCHEDULED, multiple, pace_of, set_rates
from shared_components.core.training import make_optimizer, optimizer_tensors, restore_optimizer, train_step
from shared_components.core.training_settings import Training

COSINE = Training(learning_rate=0.5, schedule="cosine", warmup_rounds=1, least_learning_rate=0.1)


def by_mae(place, rounds):
    """The rate as MAE's code writes it, in epochs."""
    if place < 1:
        return 0.5 * place / 1
    return 0.1 + (0.5 - 0.1) * 0.5 * (1.0 + math.cos(math.pi * (place - 1) / (rounds - 1)))


@pytest.mark.parametrize("place", [0, 0.25, 0.999, 1, 1.5, 7, 14.9, 15])
def test_the_cosine_is_maes_after_a_warm_up_of_one_round(place):
    assert 0.5 * multiple(COSINE, place, 15) == pytest.approx(by_mae(place, 15), rel=1e-12)


def test_a_polynomial_falls_by_the_power_of_what_is_left():
    settings = Training(learning_rate=0.5, schedule="polynomial", warmup_rounds=1, least_learning_rate=0.1)
    expected = [0.0, 0.5, 0.1 + 0.4 * 0.5**0.9, 0.1]
    assert [0.5 * multiple(settings, place, 9) for place in (0, 1, 5, 9)] == pytest.approx(expected)


def test_sgd_takes_the_steps_of_its_formula_and_continues_after_a_restart():
    network, settings = nn.Linear(1, 1, bias=False), Training(optimizer="sgd", learning_rate=0.1, weight_decay=0.01)
    weight, buffer = network.weight.item(), 0.0
    optimizer = make_optimizer(network, settings)
    for step in range(4):
        if step == 2:
            kept = optimizer_tensors(optimizer)
            optimizer = make_optimizer(network, settings)
            restore_optimizer(optimizer, kept)
        network.weight.grad = torch.full((1, 1), 2.0)
        optimizer.step()
        buffer = 0.9 * buffer * (step > 0) + 2.0 + 0.01 * weight
        weight -= 0.1 * buffer
    assert network.weight.item() == pytest.approx(weight, rel=1e-6)


def test_a_schedule_starts_with_its_warm_up_also_if_that_takes_all_rounds():
    assert pace_of(Training(), round=3, rounds=9) is None
    pace = pace_of(Training(warmup_rounds=2), round=1, rounds=9)
    assert [pace(f) for f in (0, 0.5)] == [0.5, 0.75]
    assert pace_of(Training(warmup_rounds=2), round=2, rounds=9)(0) == 1.0
    assert multiple(Training(schedule="cosine", warmup_rounds=5), 3, 3) <= 1
    assert multiple(Training(schedule="cosine", learning_rate=0.0), 1, 3) == 1.0


def test_learning_rates_of_groups_are_multiples_by_the_place_in_the_round():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.4}])
    set_rates(optimizer, 0.5)
    set_rates(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.1]
    assert [group[UNSCHEDULED] for group in optimizer.param_groups] == [0.1, 0.4]
    settings = Training(warmup_rounds=1, learning_rate=0.1)
    network = linear()
    optimizer, context = make_optimizer(network, settings), context_of(settings, 4)
    for number in range(4):
        context.iteration = number
        a_step(optimizer, network, 1.0, context)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * number / 4)


@pytest.mark.parametrize("values, sentence", [
    ({"schedule": "linear"}, "schedule is 'linear'; use one of constant, cosine, polynomial"),
    ({"warmup_rounds": -1}, "warmup_rounds is -1; it is a number, at least 0"),
    ({"betas": [0.9]}, r"betas is \[0.9\]|betas is \(0.9,\)"),
    ({"betas": [0.9, 1.0]}, r"betas\[2\] is 1.0; it is a number, at least 0 and below 1"),
    ({"betas": 0.9}, "betas is 0.9"), ({"layer_decay": 0}, "layer_decay is 0; it is a number, above 0 and at most 1"),
    ({"decay_free": "yes"}, "decay_free is 'yes'; it is true or false"), ({"flips": 1}, "flips is 1; it is true or"),
    ({"precision": "fp16"}, "precision is 'fp16'; use one of float32, bf16, auto"),
    ({"accumulate": 0}, "accumulate is 0; it is a whole number, at least 1"),
    ({"least_learning_rate": 1}, "least_learning_rate 1 is above 0.0005"),
])  # fmt: skip
def test_a_wrong_value_is_refused_by_one_sentence(values, sentence):
    with pytest.raises(ValueError, match=f"^training: ({sentence})"):
        load_bundle("pvt_fpn", values)


def a_step(optimizer, network, value, context):
    def objective(network, batch, context):
        return [Term("loss", (network(batch["x"]) - value).square().sum())]

    method, partition = load_method("fedavg"), partition_network(network, everything(Role.GLOBAL))
    return train_step(network, optimizer, method, {"x": torch.tensor([[1.0, value]])}, context, partition, objective)


def context_of(settings, iterations):
    known = {"iterations": iterations, "accumulate": settings.accumulate}
    pace = pace_of(settings, round=0, rounds=2)
    return Context(round=0, task=None, generator=torch.Generator(), pace=pace, **known)


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 2)


def test_every_second_batch_is_a_step_of_both_gradients_and_what_is_left_over_is_dropped():
    settings = Training(accumulate=2, learning_rate=0.1)
    ours, plain = linear(), linear()
    optimizer, by_hand = make_optimizer(ours, settings), make_optimizer(plain, settings)
    context = context_of(settings, 5)
    for number in range(5):
        context.iteration = number
        before = ours.weight.detach().clone()
        a_step(optimizer, ours, number, context)
        assert torch.equal(before, ours.weight) == (number % 2 == 0)
    for pair in ((0, 1), (2, 3)):
        losses = [(plain(torch.tensor([[1.0, n]])) - n).square().sum() for n in pair]
        by_hand.zero_grad()
        (sum(losses) / 2).backward()
        by_hand.step()
    torch.testing.assert_close(ours.weight, plain.weight, rtol=1e-6, atol=1e-7)
    assert optimizer.state[ours.weight]["step"] == 2
