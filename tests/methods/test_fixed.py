"""Every method with a fixed encoder: it trains the rest, and neither moves nor sends what is fixed."""

from types import SimpleNamespace

import pytest
import torch

from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, cut, fixed_hash, partition_network
from shared_components.core.training import make_optimizer, train_step
from shared_components.methods.fedas import Alignment
from shared_components.methods.feddp import teachers
from shared_components.networks.bundle_config import Training, build_network, bundle_for, load_bundle
from shared_components.networks.parts import freeze
from tests.methods.test_methods import make_batch, make_context

OTHERWISE = {"mat_fl": "MIXED", "feddp": "LOCAL"}  # what they exchange or keep lies in the encoder alone


def role_in_the_encoder(method):
    """Return the role whose slices all lie in the encoder, if there is one."""
    with torch.device("meta"):
        network = build_network(load_bundle(bundle_for(method.name)).network)
    places = {(piece.role, piece.tensor.partition(".")[0]) for piece in partition_network(network, method.partition)}
    inside = {role for role, place in places if place == "encoder"} - {r for r, p in places if p != "encoder"}
    return next((role.upper() for role in inside), None)


def fixed_network(method):
    torch.manual_seed(0)
    network = build_network(load_bundle(bundle_for(method)).network)
    freeze(network, ["encoder"])
    return network


def refuses(name, role):
    with pytest.raises(ValueError, match=rf"all that the method makes {role} is fixed, encoder\."):
        partition_network(fixed_network(name), load_method(name).partition)


@pytest.mark.parametrize("name", sorted(set(method_names()) - set(OTHERWISE)))
def test_a_step_moves_all_but_the_fixed_encoder(name):
    """A new method may keep or exchange the encoder alone; then it is refused."""
    method, network = load_method(name), fixed_network(name)
    if role := role_in_the_encoder(method):
        return refuses(name, role)
    partition = partition_network(network, method.partition)
    start = {n: v.clone() for n, v in network.state_dict().items()}
    sent = cut(start, partition, Role.GLOBAL, Role.MIXED)
    assert not any(n.startswith("encoder.") for n in sent)
    context = make_context(received=sent, round=1, iterations=1)
    train_step(network, make_optimizer(network, Training()), method, make_batch(), context, partition)
    assert all(p.grad is None for n, p in network.named_parameters() if n.startswith("encoder."))
    after = network.state_dict()
    assert fixed_hash(after, partition) == fixed_hash(start, partition) != ""
    moved = {n.partition(".")[0] for n, v in after.items() if not torch.equal(v, start[n])}
    assert moved and "encoder" not in moved
    if method.local.measure:
        extras = method.local.measure(network, [make_batch()], context, partition)
        shared = cut(after, partition, Role.GLOBAL)
        for group, check in method.local.extras.items():
            check(extras[group], shared)


@pytest.mark.parametrize("name, role", OTHERWISE.items())
def test_a_method_of_which_the_fixed_part_leaves_nothing_is_refused(name, role):
    assert role_in_the_encoder(load_method(name)) == role
    refuses(name, role)


def test_fedas_aligns_no_base_that_is_fixed():
    network = fixed_network("fedas")
    freeze(network, ["decoder_global"])
    work = SimpleNamespace(network=network)  # no frames are asked for
    assert Alignment(0.1)._align(work, {"encoder.norm1.weight": torch.ones(32)}) == {}


def test_feddps_teachers_have_the_networks_own_fixed_part():
    network = fixed_network("feddp")
    partition = partition_network(network, load_method("feddp", fine_tune_from=2).partition)
    pieces = cut(network.state_dict(), partition, Role.MIXED)
    (teacher,) = teachers(network, {f"0/{name}": value + 1 for name, value in pieces.items()})
    for name, value in teacher.state_dict().items():
        assert torch.equal(value, network.state_dict()[name] + (0 if name.startswith("encoder.") else 1))
