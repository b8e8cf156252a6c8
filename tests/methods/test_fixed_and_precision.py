"""Every method with a fixed encoder, and in bfloat16: what moves, what is sent, and what is refused."""

import math
from types import SimpleNamespace

import pytest
import torch

from shared_components.common import machine
from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, cut, fixed_hash, partition_network
from shared_components.core.training import make_context as context_of
from shared_components.core.training import make_optimizer, train_step
from shared_components.core.training_settings import Training
from shared_components.methods.fedas import Alignment
from shared_components.methods.feddp import teachers
from shared_components.networks.bundle_config import build_network, bundle_for, weightless
from shared_components.networks.parts import freeze
from tests.federation.conftest import TINY, make_job, narrow  # noqa: F401
from tests.methods.test_methods import built, make_batch, make_context, sent  # noqa: F401
from tests.methods.toys import SEGMENTATION


def role_in_the_encoder(method):
    """Return the role whose slices all lie in the encoder, if there is one."""
    network = weightless(load_bundle(bundle_for(method.name)).network)
    places = {(piece.role, piece.tensor.partition(".")[0]) for piece in partition_network(network, method.partition)}
    inside = {role for role, place in places if place == "encoder"} - {r for r, p in places if p != "encoder"}
    return next((role.upper() for role in inside), None)


def fixed_network(method):
    torch.manual_seed(0)
    network = build_network(load_bundle(bundle_for(method)).network)
    freeze(network, ["encoder"])
    return network


@pytest.mark.parametrize("name", method_names())
def test_a_step_moves_all_but_the_fixed_encoder(name):
    """A method that exchanges or keeps the encoder alone is refused."""
    method, network = load_method(name), fixed_network(name)
    if role := role_in_the_encoder(method):
        with pytest.raises(ValueError, match=rf"all {role} tensors of the method are fixed, such as encoder\."):
            partition_network(network, method.partition)
        return
    partition = partition_network(network, method.partition)
    start = {n: v.clone() for n, v in network.state_dict().items()}
    pieces = sent(network, partition)
    assert not any(n.startswith("encoder.") for n in pieces)
    context = make_context(received=pieces, round=1, iterations=1)
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


def test_a_fixed_base_is_not_aligned_and_teachers_have_the_networks_fixed_part():
    network = fixed_network("fedas")
    freeze(network, ["decoder_global"])
    work = SimpleNamespace(network=network)  # no frames are asked for
    assert Alignment(0.1)._align(work, {"encoder.norm1.weight": torch.ones(32)}) == {}
    network = fixed_network("feddp")
    partition = partition_network(network, load_method("feddp", fine_tune_from=2).partition)
    pieces = cut(network.state_dict(), partition, Role.MIXED)
    (teacher,) = teachers(network, {f"0/{name}": value + 1 for name, value in pieces.items()})
    for name, value in teacher.state_dict().items():
        assert torch.equal(value, network.state_dict()[name] + (0 if name.startswith("encoder.") else 1))


def in_context(precision):
    return context_of(Training(precision=precision), SEGMENTATION, round=0, rounds=1, site=0).precision


@pytest.mark.parametrize(("fast", "precision"), [(True, "bf16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_machine_computes_in_it(monkeypatch, fast, precision):
    monkeypatch.setattr(machine, "fast_bf16", lambda where: fast)
    assert in_context("auto") == precision and in_context("float32") == "float32"


def test_every_methods_gradients_point_the_same_way_in_both_precisions(built):  # noqa: F811
    method, network, partition = built
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    found = {}
    for precision in ("float32", "bf16"):
        network.load_state_dict(before)
        torch.manual_seed(0)
        context = make_context(received=sent(network, partition), precision=precision)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
        losses = train_step(network, optimizer, method, make_batch(), context, partition)
        assert all(math.isfinite(value) for value in losses.values())
        found[precision] = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    assert found["float32"].keys() == found["bf16"].keys()
    assert all(g.dtype == torch.float32 and torch.isfinite(g).all() for g in found["bf16"].values())
    a, b = (torch.cat([g.flatten() for g in gradients.values()]) for gradients in found.values())
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.97 and not torch.equal(a, b)


@pytest.mark.slow
def test_a_federation_of_pfedsis_in_bfloat16_is_finite_and_sends_float32(federate, tmp_path):
    jobs = {p: make_job(training={**TINY, "precision": p}) for p in ("float32", "bf16")}
    plain, mixed = (federate(job, folder=tmp_path / precision) for precision, job in jobs.items())
    plain.enrol()
    mixed.enrol()
    losses = []
    for _ in range(2):
        replies = mixed.replies()
        groups = [g for reply in replies.values() for g in (reply.pieces, *reply.groups.values())]
        tensors = [value for group in groups for value in group.values()]
        assert all(value.dtype == torch.float32 and torch.isfinite(value).all() for value in tensors)
        losses.append(replies["site-1"].header["loss"])
        assert all(math.isfinite(value) for value in losses[-1].values())
        mixed.send(replies)
    assert mixed.server.state.round == 2
    assert losses[0] != plain.replies(names=["site-1"])["site-1"].header["loss"]
