"""Gradient routing: each loss term reaches its own slices and no others (PFedSIS, Algorithm 1)."""

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from shared_components.core.method import GraphCut, Term
from shared_components.core.objectives import route_gradients, squared_distance
from shared_components.core.partition import Role, Slice, everything, partition_network
from shared_components.networks.parts import freeze
from tests.methods.toys import context


def halves(network):
    return lambda name, tensor, module: (Slice(Role.GLOBAL, 0, 1), Slice(Role.MIXED, 1, 2))


@pytest.fixture
def passes(monkeypatch):
    """Return the backward passes, which are counted."""
    counted = Mock(wraps=torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "grad", counted)
    return counted


def term_values(network):
    y = network(torch.tensor([[1.0, 2.0]]))  # (1, 2)
    return y.sum(), (y * torch.tensor([3.0, 5.0])).sum(), (y * torch.tensor([7.0, 11.0])).sum()


def test_each_term_reaches_its_own_rows_worked_by_hand_also_with_equal_names(passes):
    network = nn.Linear(2, 2, bias=False)
    both, mixed, shared = term_values(network)
    terms = [Term("a", both), Term("b", mixed, Role.MIXED), Term("c", shared, Role.GLOBAL)]
    route_gradients(terms, network, partition_network(network, halves))
    # row 0 (GLOBAL): (1 + 7) * x; row 1 (MIXED): (1 + 5) * x
    assert torch.equal(network.weight.grad, torch.tensor([[8.0, 16.0], [6.0, 12.0]])) and passes.call_count == 2
    network = nn.Linear(2, 2, bias=False)
    _, mixed, shared = term_values(network)
    terms = [Term("a", mixed, Role.MIXED), Term("a", shared, Role.GLOBAL)]
    route_gradients(terms, network, partition_network(network, halves))
    assert torch.equal(network.weight.grad, torch.tensor([[7.0, 14.0], [5.0, 10.0]]))


def test_a_single_term_is_plain_backward_in_one_pass_without_earlier_gradients(passes):
    network = nn.Linear(2, 2, bias=False)
    network.weight.grad = torch.full((2, 2), 100.0)
    both, *_ = term_values(network)
    route_gradients([Term("a", both)], network, partition_network(network, halves))
    assert torch.equal(network.weight.grad, torch.tensor([[1.0, 2.0], [1.0, 2.0]])) and passes.call_count == 1
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    terms = [Term("a", network(torch.ones(1, 2)).square().sum())]
    route_gradients(terms, network, partition_network(network, everything(Role.GLOBAL)))
    routed = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network(torch.ones(1, 2)).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(routed, network.parameters(), strict=True))


def scales(*values):
    """Layers that multiply by one number each: y = x a b c."""
    network = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in values))
    for layer, value in zip(network, values, strict=True):
        nn.init.constant_(layer.weight, value)
    return network


def gradients(network):
    return [None if p.grad is None else p.grad.item() for p in network.parameters()]


def test_a_frozen_parameter_gets_no_gradient_and_has_no_distance():
    network = scales(2.0, 3.0, 5.0)
    freeze(network, ["1"])
    value = network(torch.ones(1, 1)).sum()
    route_gradients([Term("a", value)], network, partition_network(network, everything(Role.GLOBAL)))
    assert gradients(network) == [15.0, None, 6.0]
    network = scales(2.0, 3.0)
    freeze(network, ["0"])
    assert squared_distance(network, context(received={"1.weight": torch.tensor([[7.0]])})) == 16.0


def test_a_seam_behind_which_nothing_trains_is_where_the_way_ends():
    for fixed, expected in (([], [15.0, 10.0, 6.0]), (["0"], [None, 10.0, 6.0])):
        network = scales(2.0, 3.0, 5.0)
        freeze(network, fixed)
        seam = GraphCut.cut(network[0](torch.ones(1, 1)))
        terms = [Term("a", network[2](network[1](seam.twin)).sum(), cuts=(seam,))]
        route_gradients(terms, network, partition_network(network, everything(Role.GLOBAL)))
        assert gradients(network) == expected


def test_a_term_reaches_its_role_and_parts_and_an_unknown_part_is_refused(passes):
    network = scales(2.0, 3.0, 5.0)
    network.parts = {"body": ("0", "1"), "head": ("2",)}
    y = network(torch.ones(1, 1)).sum()  # 30; its gradients are 15, 10 and 6
    terms = [Term("all", y), Term("body", 10 * y, parts=("body",)), Term("ends", 100 * y, parts=("0", "head"))]
    route_gradients(terms, network, partition_network(network, everything(Role.GLOBAL)))
    assert gradients(network) == [15.0 * 111, 10.0 * 11, 6.0 * 101]
    assert passes.call_count == 3  # of three sets of terms
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in network:
        nn.init.eye_(layer.weight)
    y = network(torch.tensor([[1.0, 2.0]])).sum()
    terms = [Term("a", y, Role.MIXED, parts=("1",))]
    route_gradients(terms, network, partition_network(network, halves))
    assert network[0].weight.grad is None
    assert torch.equal(network[1].weight.grad, torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    network = scales(2.0)
    terms = [Term("contrast", network(torch.ones(1, 1)).sum(), parts=("encoder",))]
    with pytest.raises(ValueError, match="term contrast: parts names 'encoder', which is no part"):
        route_gradients(terms, network, partition_network(network, everything(Role.GLOBAL)))
