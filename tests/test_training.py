"""The optimizer: one group as ever, and nothing that is fixed."""

import pytest
import torch
from torch import nn

from shared_components.bundle_config import Training, training_from
from shared_components.parts import freeze
from shared_components.training import make_optimizer, optimizer_tensors


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


def test_without_parts_it_is_adamw_over_all_parameters_to_the_bit():
    ours, plain = network(), network()
    optimizer = make_optimizer(ours, Training(learning_rate=0.1, weight_decay=0.5))
    by_hand = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.5)
    assert all(torch.equal(*pair) for pair in zip(steps(ours, optimizer), steps(plain, by_hand), strict=True))
    kept, theirs = optimizer_tensors(optimizer), optimizer_tensors(by_hand)
    assert list(kept) == list(theirs) and all(torch.equal(kept[n], theirs[n]) for n in kept)


def test_the_optimizer_holds_nothing_that_is_fixed():
    ours = network()
    freeze(ours, ["body"])
    before = [p.detach().clone() for p in ours.parameters()]
    optimizer = make_optimizer(ours, Training(learning_rate=0.1, weight_decay=0.5))
    after = steps(ours, optimizer)
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True] * 4 + [False] * 2
    assert optimizer.param_groups[0]["params"] == list(ours[2].parameters())


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"fixed": "encoder"}, "fixed is 'encoder'; write a list"),
        ({"fixed": 3}, "fixed is 3; write a list"),
    ],
)
def test_settings_that_are_no_parts_are_refused(values, sentence):
    with pytest.raises(ValueError, match=f"training: {sentence}"):
        training_from(values)


def test_settings_of_parts_are_read():
    assert training_from({"fixed": ["encoder"]}).fixed == ("encoder",)
    assert training_from({"fixed": None}) == Training()
