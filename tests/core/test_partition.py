"""Roles of slices: cutting, pasting, covering."""

import hashlib

import pytest
import torch
from torch import nn

from shared_components.core.partition import (
    Partition,
    Role,
    Slice,
    cut,
    everything,
    fixed_hash,
    partition_network,
    paste,
    train_mode,
)
from shared_components.networks.parts import freeze


def halves(network):
    return in_halves


def in_halves(name, tensor, module):
    if isinstance(module, nn.Linear) and tensor.dim() == 2:
        return Slice(Role.GLOBAL, 0, 1), Slice(Role.MIXED, 1, 3, layer="a"), Slice(Role.LOCAL, 3, 4)
    return (Slice(Role.LOCAL),)


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))


def test_cut_returns_copies_of_the_rows_of_the_named_roles_and_buffers(network):
    pieces = cut(network.state_dict(), partition_network(network, halves), Role.GLOBAL, Role.MIXED)
    assert list(pieces) == ["0.weight[0:1]", "0.weight[1:3]"]
    assert torch.equal(pieces["0.weight[1:3]"], network[0].weight[1:3])
    pieces = cut(network.state_dict(), partition_network(network, everything(Role.GLOBAL)), Role.GLOBAL)
    before = pieces["0.weight"].clone()
    with torch.no_grad():
        network[0].weight.add_(1)
    assert torch.equal(pieces["0.weight"], before)
    assert "1.running_mean" in partition_network(network, everything(Role.GLOBAL)).with_roles(Role.GLOBAL)


def test_paste_after_cut_is_identity_and_refuses_unknown_names_and_shapes(network):
    partition = partition_network(network, halves)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    pieces = cut(network.state_dict(), partition, Role.MIXED)
    paste({name: value + 1 for name, value in pieces.items()}, partition, network.state_dict())
    assert torch.equal(network[0].weight[1:3], before["0.weight"][1:3] + 1)
    assert torch.equal(network[0].weight[0], before["0.weight"][0])
    paste(pieces, partition, network.state_dict())
    assert all(torch.equal(network.state_dict()[name], value) for name, value in before.items())
    with pytest.raises(KeyError, match=r"0\.weight\[0:2\]"):
        paste({"0.weight[0:2]": torch.zeros(2, 2)}, partition, network.state_dict())
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        paste({"0.weight[0:1]": torch.zeros(2, 2)}, partition, network.state_dict())


@pytest.mark.parametrize("rows", [[(0, 2)], [(0, 2), (3, 4)], [(0, 3), (2, 4)], [(0, 5)], [(0, 4), (4, 4)]])
def test_slices_that_do_not_cover_all_rows_once_are_refused(network, rows):
    def rule(name, tensor, module):
        return [Slice(Role.GLOBAL, a, b) for a, b in rows] if name == "0.weight" else (Slice(Role.GLOBAL),)

    with pytest.raises(ValueError, match="must cover each of the rows 0:4"):
        partition_network(network, lambda network: rule)


def test_partition_survives_json(network):
    partition = partition_network(network, halves)
    assert Partition.from_json(partition.to_json()) == partition
    assert partition.mixed_layers == {"a": ["0.weight[1:3]"]}


class Frozen(nn.Module):
    """Norm and dropout in an encoder, a head, and a dropout between them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


def frozen():
    torch.manual_seed(0)
    network = Frozen()
    freeze(network, ["encoder"])
    return network, partition_network(network, everything(Role.GLOBAL))


def test_a_fixed_part_is_fixed_whatever_the_rule_says_and_is_not_cut_for_the_wire():
    network, partition = frozen()
    for piece in partition:
        assert (piece.role is Role.FIXED) == piece.tensor.startswith("encoder.")
    assert all(name.startswith("head.") for name in cut(network.state_dict(), partition, Role.GLOBAL))
    assert "encoder.1.running_mean" in partition.with_roles(Role.FIXED)
    assert Partition.from_json(partition.to_json()) == partition


def test_a_part_is_fixed_whole_where_a_rule_has_slices(network):
    freeze(network, ["0"])
    with pytest.raises(ValueError, match=r"all GLOBAL tensors of the method are fixed, such as 0\.weight"):
        partition_network(network, halves)  # whose GLOBAL and MIXED rows lie in 0.weight
    partition = partition_network(network, lambda network: lambda name, tensor, module: (Slice(Role.LOCAL),))
    assert list(partition.with_roles(Role.FIXED)) == ["0.weight", "0.bias"]


def test_training_leaves_a_fixed_parts_statistics_and_dropout_alone():
    network, partition = frozen()
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [7.0, 1.0]])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.eval()
    still = network.encoder(x)
    train_mode(network, partition)
    assert network.training and network.dropout.training and network.head.training
    assert torch.equal(network.encoder(x), still)
    network.head(network.encoder(x))
    changed = {n for n, v in network.state_dict().items() if not torch.equal(v, before[n])}
    assert changed == {"head.1.running_mean", "head.1.running_var", "head.1.num_batches_tracked"}


def test_without_fixed_parts_all_is_in_training_mode_and_there_is_no_hash(network):
    network.eval()
    train_mode(network, partition_network(network, everything(Role.GLOBAL)))
    assert all(module.training for module in network.modules())
    assert fixed_hash(network.state_dict(), partition_network(network, everything(Role.GLOBAL))) == ""


def test_the_hash_of_what_is_fixed_is_of_names_dtypes_shapes_and_bytes():
    network, partition = frozen()
    expected = hashlib.sha256()
    for name, value in network.state_dict().items():
        if name.startswith("encoder."):
            expected.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            expected.update(value.numpy().tobytes())
    found = fixed_hash(network.state_dict(), partition)
    assert found == expected.hexdigest()
    with torch.no_grad():
        network.head[0].weight.add_(1)
        assert fixed_hash(network.state_dict(), partition) == found
        network.encoder[0].weight[0, 0] = torch.nextafter(network.encoder[0].weight[0, 0], torch.tensor(9.0))
    assert fixed_hash(network.state_dict(), partition) != found
    halved = {name: value.bfloat16() for name, value in network.state_dict().items()}
    assert len(fixed_hash(halved, partition)) == 64
