"""The shared rule by top-level modules."""

import pytest
from torch import nn

from shared_components.partition import Role, partition_network
from shared_components.rules import modules


def test_only_whole_top_level_names_count():
    network = nn.ModuleDict({"head": nn.Linear(1, 1), "head_two": nn.Linear(1, 1), "body": nn.Linear(1, 1)})
    partition = partition_network(network, modules(["head"], inside=Role.MIXED, outside=Role.LOCAL))
    assert set(partition.with_roles(Role.MIXED)) == {"head.weight", "head.bias"}
    assert len(partition.with_roles(Role.LOCAL)) == 4


def test_a_rule_that_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match="no module is named"):
        modules([])
