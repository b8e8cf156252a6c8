"""FedST: what a site's step and each of the server's three steps move in the whole network, and what none does."""

import copy

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method
from shared_components.core.partition import Role, partition_network
from shared_components.networks.bundle_config import build_network
from tests.core.serq_rounds import CLASSES, Round, before_of, server_round
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


class Watched(Round):
    """A server's round that notes what each of its trainings moves, in the network trained and in the shared one."""

    def train(self, objective=None, *, network=None, **known):
        trained = network or self.network
        before = [copy.deepcopy(one.state_dict()) for one in (trained, self.network)]
        losses = super().train(objective, network=network, **known)
        entry = (before, moved(before[0], trained), driven(trained), moved(before[1], self.network))
        self.seen.append(entry)
        self.copy = self.copy or trained  # the first that is trained
        self.copies.append({name: value.clone() for name, value in self.copy.state_dict().items()})
        return losses


@pytest.fixture
def watched(network):
    """Return a round of SERQ with one batch of each kind, and what its trainings moved."""
    method = load_method("fedst", batches=1, pretraining=1)
    work = server_round(network, method.partition, size=SIZE)
    work.__class__, work.seen, work.copy, work.copies = Watched, [], None, []
    start = copy.deepcopy(network.state_dict())
    method.server.update(work, before_of(work))
    return work, start


def test_eq_10_moves_nothing_and_eq_12_only_shared_parts_that_frames_pass(watched, network):
    work, start = watched
    (of_copy, of_shared), *_ = work.seen[0]
    assert all(torch.equal(value, of_shared[name]) for name, value in start.items())
    assert all(torch.equal(value, of_copy[name]) for name, value in start.items())
    assert set(of_copy) == set(start)
    work, start = watched
    _, in_shared, gradients, _ = work.seen[2]
    shared = of_parts(network, "encoder", "decoder", "head") - of_parts(network, "queries")
    assert in_shared == gradients == shared
    partition = partition_network(network, load_method("fedst").partition)
    assert shared < set(partition.with_roles(Role.GLOBAL))
    assert set(partition.with_roles(Role.GLOBAL)) - shared == of_parts(network, "temporal")
    for name in (*partition.with_roles(Role.LOCAL), *of_parts(network, "temporal")):
        assert torch.equal(network.state_dict()[name], start[name]), name
    assert len(work.seen) == 3
    assert all(torch.equal(value, work.copies[2][name]) for name, value in work.copies[1].items())


@pytest.mark.parametrize("number", [0, 1], ids=["pretraining", "Eq. (11)"])
def test_pretraining_and_eq_11_move_what_frames_pass_in_the_copy_alone(watched, network, number):
    """All roles of it: the queries too, which are the server's own."""
    work, _ = watched
    frames = of_parts(network, "encoder", "decoder", "head")
    _, in_copy, gradients, in_shared = work.seen[number]
    assert in_copy == gradients == frames >= of_parts(network, "queries") and not in_shared
