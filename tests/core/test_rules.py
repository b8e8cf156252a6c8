"""The shared rule by top-level modules."""

import pytest
from torch import nn

from shared_components.core.partition import Role, partition_network
from shared_components.core.rules import modules


def test_only_whole_top_level_names_count():
    network = nn.ModuleDict({"head": nn.Linear(1, 1), "head_two": nn.Linear(1, 1), "body": nn.Linear(1, 1)})
    partition = partition_network(network, modules(["head"], inside=Role.MIXED, outside=Role.LOCAL))
    assert set(partition.with_roles(Role.MIXED)) == {"head.weight", "head.bias"}
    assert len(partition.with_roles(Role.LOCAL)) == 4


def test_a_rule_that_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match="names no module"):
        modules([])


@pytest.fixture
def network():
    network = nn.Sequential()
    network.add_module("body", nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    network.add_module("head", nn.Linear(1, 1))
    network.parts = {"last": ("body.1", "head")}
    return network


def test_a_part_or_the_path_of_a_module_at_any_depth_will_do(network):
    for names in (["last"], ["body.1", "head"]):
        local = partition_network(network, modules(names)).with_roles(Role.LOCAL)
        assert list(local) == ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]


def test_a_name_that_matches_nothing_is_refused_where_the_network_is_known(network):
    rule = modules(["head", "haed"], what="fedper: personal")
    with pytest.raises(ValueError, match=r"fedper: personal names 'haed', .*did you mean 'head'"):
        partition_network(network, rule)


def test_a_plain_text_is_no_list_of_names():
    with pytest.raises(ValueError, match="fedper: personal is the text 'head'"):
        modules("head", what="fedper: personal")
