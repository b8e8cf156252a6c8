"""FedST: what a site's steps move in the whole network."""

import copy

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method
from shared_components.networks.bundle_config import build_network
from tests.core.serq_rounds import CLASSES, server_round
from tests.federation.conftest import narrow  # noqa: F401

SIZE = (64, 64)


@pytest.fixture
def network():
    torch.manual_seed(4)
    made = build_network(load_bundle("fedst").network, out_channels=len(CLASSES))
    made.set_indicator(torch.nn.functional.normalize(torch.randn(384), dim=0))
    return made


def of_parts(network, *parts):
    """Return the names of the parameters that lie in parts of the network."""
    paths = [f"{path}." for part in parts for path in network.parts[part]]
    return {name for name, _ in network.named_parameters() if name.startswith(tuple(paths))}


def moved(before, network):
    return {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}


def driven(network):
    """Return the names of the parameters whose last gradient is not nothing."""
    return {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}


def test_a_sites_steps_move_every_part_that_the_paper_trains_and_the_text_stays(network):
    """The layers over time begin as identity: in the first step what ends their branches has a gradient alone."""
    work = server_round(network, load_method("fedst").partition, frames=4, size=SIZE)
    work.method = load_method("fedst")
    parameters = {name for name, _ in network.named_parameters()}
    before = copy.deepcopy(network.state_dict())
    losses = work.train(iterations=1)
    ends = {n for n in of_parts(network, "temporal") if ".proj." in n or ".fc2." in n}
    assert len(ends) == 2 * 4  # two levels; weight and bias of two layers
    assert driven(network) == parameters - of_parts(network, "temporal") | ends
    work.train(iterations=1)
    assert driven(network) == moved(before, network) == parameters
    assert set(before) - parameters == {"indicator"}
    assert parameters == of_parts(network, "encoder", "decoder", "head", "temporal", "selection")
    assert of_parts(network, "queries") and of_parts(network, "temporal_queries")
    assert set(losses) == {"segmentation"}
