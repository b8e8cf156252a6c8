"""PFedSIS: the partition of GPD, the routing of Algorithm 1, sensitivity, the server's two steps."""

from functools import partial

import pytest
import torch

from shared_components.core import losses as loss
from shared_components.core.method import Models, Profile, Update, load_method
from shared_components.core.objectives import route_gradients
from shared_components.core.partition import Role, cut, partition_network
from shared_components.networks.pvt_fpn import PvtFpn
from tests.methods.toys import card, frames
from tests.methods.toys import context as context_of

build = partial(load_method, "pfedsis")
ROWS = {1: 32, 2: 64, 3: 160, 4: 256}
HEADS = {1: 1, 2: 2, 3: 5, 4: 8}
KEPT = {"retain_graph": True, "allow_unused": True}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return PvtFpn(out_channels=4, appearance_head=True, dropout=0.0, drop_path=0.0)


MEANS = torch.rand(3, 3, generator=torch.Generator().manual_seed(5))


def context():
    return context_of(site=1, items={"style": [[mean.tolist(), [0.2] * 3] for mean in MEANS]})


def batch():
    return frames((32, 64), seed=3)


def rows(partition, tensor, role):
    return [(p.start, p.stop) for p in partition if p.tensor == tensor and p.role is role]


def test_personal_rows_weights_and_layers_are_the_published_ones(network):
    partition = partition_network(network, build().partition)
    for stage, width in ROWS.items():
        name, half = f"encoder.block{stage}.0.attn", width // 2
        assert rows(partition, f"{name}.q.weight", Role.GLOBAL) == [(0, half)]
        assert rows(partition, f"{name}.q.bias", Role.MIXED) == [(half, width)]
        # rows are [K_global, K_personal, V_global, V_personal]
        assert rows(partition, f"{name}.kv.weight", Role.GLOBAL) == [(0, half), (width, width + half)]
        assert rows(partition, f"{name}.kv.weight", Role.MIXED) == [(half, width), (width + half, 2 * width)]
        assert rows(partition, f"{name}.proj.weight", Role.GLOBAL) == [(None, None)]
    pieces, state = partition_network(network, build().partition), network.state_dict()
    counts = [sum(piece.view(state).numel() for piece in pieces if piece.role is r) for r in (Role.GLOBAL, Role.MIXED)]
    assert counts == [4_810_340, 1_981_575]
    layers = partition_network(network, build().partition).mixed_layers
    assert len(layers) == 14
    assert [name for name in layers if name.startswith("encoder")] == [f"encoder.block{i}" for i in (1, 2, 3, 4)]
    partition = partition_network(network, build(head_aligned=True).partition)
    for stage, width in ROWS.items():
        head = width // HEADS[stage]
        cuts = rows(partition, f"encoder.block{stage}.0.attn.q.weight", Role.MIXED)
        assert cuts == ([((HEADS[stage] - HEADS[stage] // 2) * head, width)] if HEADS[stage] > 1 else [])


@pytest.mark.parametrize("personal", ["decoder", "q", "k", "v"])
def test_each_part_can_be_personal_alone(network, personal):
    """Table IV; without APE personal weights are LOCAL."""
    partition = partition_network(network, build(personal=[personal], ape=False).partition)
    local = {p.tensor for p in partition if p.role is Role.LOCAL} - {"head_appearance.weight", "head_appearance.bias"}
    kinds = {"q": ".attn.q.", "k": ".attn.kv.", "v": ".attn.kv."}
    if personal == "decoder":
        assert local and all(name.startswith(("decoder_personal", "head_personal")) for name in local)
    else:
        assert local and all(kinds[personal] in name for name in local)
    if personal in "kv":
        width, half = 64, 32
        expected = [(half, width)] if personal == "k" else [(width + half, 2 * width)]
        assert rows(partition, "encoder.block2.0.attn.kv.weight", Role.LOCAL) == expected


def test_routing_of_algorithm_1_on_the_real_network(network):
    """Three separate backward passes with masks, against the two passes of the method."""
    network.eval()
    method = build()
    partition = partition_network(network, method.partition)
    route_gradients(method.local.objective(network, batch(), context()), network, partition)
    routed = {name: p.grad.clone() for name, p in network.named_parameters()}

    parts = network.forward_parts(batch()["image"])
    weights = loss.sample_style_weights(2, 3, context().generator)
    styled = loss.mix_style(batch()["image"], MEANS, torch.full((3, 3), 0.2), 1, weights)
    losses = {
        "seg": loss.segmentation_loss(parts["pred"], batch()["label"]),
        "ar": loss.appearance_loss(parts["restored"], batch()["image"]),
        "csc": loss.consistency_loss(network.forward_parts(styled)["global"], batch()["label"]),
    }
    parameters = dict(network.named_parameters())
    grads = {
        key: dict(zip(parameters, torch.autograd.grad(value, [*parameters.values()], **KEPT), strict=True))
        for key, value in losses.items()
    }
    for piece in partition:
        own = "csc" if piece.role is Role.GLOBAL else "ar"
        zero = {piece.tensor: torch.zeros_like(parameters[piece.tensor])}
        expected = sum(piece.view(zero if grads[k][piece.tensor] is None else grads[k]) for k in ("seg", own))
        torch.testing.assert_close(piece.view(routed), expected, atol=1e-6, rtol=1e-4)


def test_without_ape_sge_and_personal_parts_it_is_fedavg_with_the_tasks_loss(network):
    terms = build(ape=False, sge=False).local.objective(network, batch(), context())
    assert [(t.name, t.role) for t in terms] == [("segmentation", None)]
    ours, fedavg = build(personal=[], ape=False, sge=False), load_method("fedavg")
    tensors = [p for p in partition_network(network, ours.partition) if not p.tensor.startswith("head_appearance")]
    assert all(p.role is Role.GLOBAL for p in tensors)
    results = [aggregate(m, network, partition_network(network, fedavg.partition))[-1].models for m in (ours, fedavg)]
    assert all(torch.equal(results[0].shared[n], value) for n, value in results[1].shared.items())


def test_as_released_adds_four_halved_terms_that_reach_everything(network):
    terms = build(mode="as_released").local.objective(network, batch(), context())
    assert [t.name for t in terms] == ["segmentation", "appearance", "segmentation_mixed", "appearance_mixed"]
    assert all(t.role is None for t in terms)
    network.eval()
    plain = loss.segmentation_loss(network(batch()["image"]), batch()["label"]) / 2
    torch.testing.assert_close(build(mode="as_released").local.objective(network, batch(), context())[0].value, plain)


def test_cross_style_distorts_only_its_share_and_needs_styles(network, monkeypatch):
    seen = []
    original = PvtFpn.forward_global
    monkeypatch.setattr(PvtFpn, "forward_global", lambda self, x: seen.append(len(x)) or original(self, x))
    build(cross_style_share=0.5).local.objective(network, batch(), context())
    assert seen == [1]
    given = context()
    given.items = {}
    with pytest.raises(ValueError, match="publish 'style'"):
        build().local.objective(network, batch(), given)


def test_sensitivity_equals_a_loop_over_images(network):
    """Eq. (13): mean over images of the absolute gradient of the mean square of the global logits."""
    network.train()
    partition = partition_network(network, build().partition)
    found = build().local.measure(network, [batch()], context(), partition)["sensitivity"]
    assert network.training and list(found) == list(partition.with_roles(Role.GLOBAL))
    network.eval()
    parameter = network.encoder.block3[0].attn.q.weight
    grads = []
    for image in batch()["image"]:
        energy = network.forward_parts(image[None])["global"].pow(2).mean()
        grads.append(torch.autograd.grad(energy, parameter)[0].abs())
    mean = (sum(grads) / 2)[:80]
    torch.testing.assert_close(found["encoder.block3.0.attn.q.weight[0:80]"], mean, atol=1e-7, rtol=1e-3)


def two_sites(network, partition):
    initial = cut(network.state_dict(), partition, Role.GLOBAL, Role.MIXED)
    shared = {n: initial[n] for n in partition.with_roles(Role.GLOBAL)}
    mixed = {n: initial[n] for n in partition.with_roles(Role.MIXED)}
    torch.manual_seed(4)
    updates = [
        Update(s, 0, {n: v + torch.randn_like(v) * 0.1 for n, v in initial.items()},
               {"sensitivity": {n: torch.rand_like(v) for n, v in shared.items()}}, samples=k)
        for s, k in (("a", 10), ("b", 30))
    ]  # fmt: skip
    return Models(shared, {"a": dict(mixed), "b": dict(mixed)}), updates


def aggregate(method, network, partition):
    """Return two sites' updates, the first state of the server, and its aggregation."""
    models, updates = two_sites(network, partition)
    aggregator = method.server.aggregator
    state = aggregator.init(partition, models, [Profile(u.site, u.samples, card("x", "y")) for u in updates])
    return updates, state, aggregator.apply(state, partition, models, updates)


def test_every_personal_layer_is_the_reported_mixture_and_sites_have_hypernetworks_of_their_own_that_learn(network):
    partition = partition_network(network, build().partition)
    updates, state, result = aggregate(build(), network, partition)
    assert set(result.report["entropy"]) == {"hypernetwork", "sensitivity", "sensitivity_relative"}
    for layer, names in partition.mixed_layers.items():
        share = result.report["mixing"]["b"][layer]
        assert sum(share.values()) == pytest.approx(1, abs=1e-6)
        expected = sum(share[u.site] * u.pieces[names[0]] for u in updates)
        torch.testing.assert_close(result.models.mixed["b"][names[0]], expected, atol=1e-5, rtol=1e-4)
    assert not torch.equal(state["hypernetwork/a/embedding"], state["hypernetwork/b/embedding"])
    assert not torch.equal(state["hypernetwork/a/embedding"], result.state["hypernetwork/a/embedding"])
