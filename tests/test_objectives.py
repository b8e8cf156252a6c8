"""Gradient routing: each loss term reaches its own slices and no others (PFedSIS, Algorithm 1)."""

import torch
from torch import nn

from shared_components.method import Term
from shared_components.objectives import route_gradients
from shared_components.partition import Role, Slice, everything, partition_network


def halves(network):
    return lambda name, tensor, module: (Slice(Role.GLOBAL, 0, 1), Slice(Role.MIXED, 1, 2))


def term_values(network):
    x = torch.tensor([[1.0, 2.0]])
    y = network(x)  # (1, 2)
    return y.sum(), (y * torch.tensor([3.0, 5.0])).sum(), (y * torch.tensor([7.0, 11.0])).sum()


def test_each_term_reaches_its_own_rows_worked_by_hand():
    network = nn.Linear(2, 2, bias=False)
    both, mixed, shared = term_values(network)
    terms = [Term("a", both), Term("b", mixed, Role.MIXED), Term("c", shared, Role.GLOBAL)]
    route_gradients(terms, network, partition_network(network, halves))
    # row 0 (GLOBAL): (1 + 7) * x; row 1 (MIXED): (1 + 5) * x
    assert torch.equal(network.weight.grad, torch.tensor([[8.0, 16.0], [6.0, 12.0]]))


def test_a_single_shared_term_is_plain_backward():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    route_gradients(
        [Term("a", network(torch.ones(1, 2)).square().sum())],
        network,
        partition_network(network, everything(Role.GLOBAL)),
    )
    routed = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network(torch.ones(1, 2)).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(routed, network.parameters(), strict=True))


def test_roles_without_terms_of_their_own_share_one_pass(monkeypatch):
    calls = []
    original = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or original(*a, **k))
    network = nn.Linear(2, 2, bias=False)
    both, mixed, _ = term_values(network)
    route_gradients([Term("a", both)], network, partition_network(network, halves))
    assert len(calls) == 1
    both, mixed, shared = term_values(network)
    terms = [Term("a", both), Term("b", mixed, Role.MIXED), Term("c", shared, Role.GLOBAL)]
    route_gradients(terms, network, partition_network(network, halves))
    assert len(calls) == 3


def test_gradients_of_an_earlier_step_do_not_linger():
    network = nn.Linear(2, 2, bias=False)
    network.weight.grad = torch.full((2, 2), 100.0)
    both, *_ = term_values(network)
    route_gradients([Term("a", both)], network, partition_network(network, halves))
    assert torch.equal(network.weight.grad, torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
