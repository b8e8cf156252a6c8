"""Roles of slices: cutting, pasting, covering."""

import pytest
import torch
from torch import nn

from shared_components.partition import (
    Partition,
    Role,
    Slice,
    cut,
    everything,
    partition_network,
    paste,
)


def halves(network):
    return in_halves


def in_halves(name, tensor, module):
    if isinstance(module, nn.Linear) and tensor.dim() == 2:
        return Slice(Role.GLOBAL, 0, 1), Slice(Role.MIXED, 1, 3, layer="a"), Slice(Role.LOCAL, 3, 4)
    return (Slice(Role.LOCAL),)


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))


def test_cut_returns_the_rows_of_the_named_roles_only(network):
    pieces = cut(network.state_dict(), partition_network(network, halves), Role.GLOBAL, Role.MIXED)
    assert list(pieces) == ["0.weight[0:1]", "0.weight[1:3]"]
    assert torch.equal(pieces["0.weight[1:3]"], network[0].weight[1:3])


def test_cut_pieces_share_no_memory_with_the_network(network):
    pieces = cut(network.state_dict(), partition_network(network, everything(Role.GLOBAL)), Role.GLOBAL)
    before = pieces["0.weight"].clone()
    with torch.no_grad():
        network[0].weight.add_(1)
    assert torch.equal(pieces["0.weight"], before)


def test_buffers_are_part_of_the_state(network):
    assert "1.running_mean" in partition_network(network, everything(Role.GLOBAL)).with_roles(Role.GLOBAL)


def test_paste_after_cut_is_identity_and_leaves_the_rest(network):
    partition = partition_network(network, halves)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    pieces = cut(network.state_dict(), partition, Role.MIXED)
    paste({name: value + 1 for name, value in pieces.items()}, partition, network.state_dict())
    assert torch.equal(network[0].weight[1:3], before["0.weight"][1:3] + 1)
    assert torch.equal(network[0].weight[0], before["0.weight"][0])
    paste(pieces, partition, network.state_dict())
    assert all(torch.equal(network.state_dict()[name], value) for name, value in before.items())


def test_paste_refuses_unknown_names_and_shapes(network):
    partition = partition_network(network, halves)
    with pytest.raises(KeyError, match=r"0\.weight\[0:2\]"):
        paste({"0.weight[0:2]": torch.zeros(2, 2)}, partition, network.state_dict())
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        paste({"0.weight[0:1]": torch.zeros(2, 2)}, partition, network.state_dict())


@pytest.mark.parametrize("rows", [[(0, 2)], [(0, 2), (3, 4)], [(0, 3), (2, 4)], [(0, 5)], [(0, 4), (4, 4)]])
def test_slices_that_do_not_cover_all_rows_once_are_refused(network, rows):
    def rule(name, tensor, module):
        return [Slice(Role.GLOBAL, a, b) for a, b in rows] if name == "0.weight" else (Slice(Role.GLOBAL),)

    with pytest.raises(ValueError, match="do not cover rows 0:4"):
        partition_network(network, lambda network: rule)


def test_partition_survives_json(network):
    partition = partition_network(network, halves)
    assert Partition.from_json(partition.to_json()) == partition
    assert partition.mixed_layers == {"a": ["0.weight[1:3]"]}
