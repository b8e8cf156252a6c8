"""torch's optimizers without torch._dynamo: the same numbers and states, and its import is not needed."""

import sys

import pytest
import torch

from shared_components.core import optimizers

CHOSEN = [("AdamW", {"weight_decay": 0.1}), ("SGD", {"momentum": 0.9, "weight_decay": 0.1})]


def stepped(kind, steps=3, **options):
    """Return the weights and the state after steps, a restored state in between."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
    optimizer = kind([weight], lr=0.1, **options)
    for step in range(steps):
        optimizer.zero_grad()
        (weight.square().sum() * (step + 1)).backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return weight.detach(), optimizer.state_dict()


@pytest.mark.parametrize("name, options", CHOSEN)
def test_numbers_and_states_are_torchs(name, options):
    ours, own = stepped(getattr(optimizers, name), **options)
    torchs, others = stepped(getattr(torch.optim, name), **options, **({"fused": True} if name == "AdamW" else {}))
    assert torch.equal(ours, torchs) and own["param_groups"] == others["param_groups"]
    assert own["state"][0].keys() == others["state"][0].keys()
    assert all(torch.equal(own["state"][0][key], value) for key, value in others["state"][0].items())


@pytest.mark.parametrize("name, options", CHOSEN)
def test_dynamo_is_not_imported_which_torchs_own_do(name, options, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it fails, wherever it stands

    stepped(getattr(optimizers, name), **options)
    with pytest.raises(ImportError, match="_dynamo"):
        stepped(getattr(torch.optim, name), **options)


def test_a_gradient_of_other_strides_moves_the_weight_that_it_is_of():
    """As `torch.autograd.grad` returns it of a transposed weight; torch's own fused step takes it for another's."""
    moved = []
    for kind, fused in ((optimizers.AdamW, {}), (torch.optim.AdamW, {"fused": False})):
        weight = torch.nn.Parameter(torch.zeros(2, 3))
        optimizer = kind([weight], lr=0.1, **fused)
        for _ in range(2):
            weight.grad = torch.tensor([[1.0, -1.0], [0.0, 1.0], [-1.0, 0.0]]).t()
            optimizer.step()
        moved.append(weight.detach())
    assert torch.allclose(*moved) and moved[0].sign().tolist() == [[-1, 0, 1], [1, -1, 0]]


def test_hooks_of_a_step_are_called():
    weight, called = torch.nn.Parameter(torch.ones(2)), []
    optimizer = optimizers.AdamW([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    weight.sum().backward()
    optimizer.step()
    assert called == ["before"] and weight.requires_grad
