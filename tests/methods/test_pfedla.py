"""pFedLA: 21 layers, the size of a hypernetwork, the mixture and the direction of a step, in plain loops."""

from functools import partial

import pytest
import torch

from shared_components.core.aggregators import hypernetwork
from shared_components.core.method import Models, Update, load_method
from shared_components.core.partition import Partition, Piece, Role, partition_network
from shared_components.networks.pvt_fpn import PvtFpn
from tests.methods.toys import names, own_models, profiles, tensor, trained

build = partial(load_method, "pfedla")
LAYERS = {"a": ["w", "b"], "c": ["v"]}
TOY = Partition(tuple(Piece(n, Role.MIXED, layer=layer) for layer, group in LAYERS.items() for n in group))
SIZES = {"w": 3, "b": 1, "v": 2}


@pytest.fixture(scope="module")
def network():
    return PvtFpn(out_channels=4)


def toy(count=3, seed=0, moved=0.3):
    """Sites start from weights of their own and send others."""
    generator = torch.Generator().manual_seed(seed)

    def draw(scale=moved):
        return {n: scale * torch.randn(size, generator=generator) for n, size in SIZES.items()}

    models = own_models(partial(draw, 1.0), count)
    return models, trained(models, draw)


def run(method, models, sent, state=None):
    if state is None:
        state = method.server.aggregator.init(TOY, models, profiles(len(models.mixed)))
    return state, method.server.aggregator.apply(state, TOY, models, sent)


def test_all_is_mixed_in_21_layers_and_hypernetworks_have_the_published_size(network):
    partition = partition_network(network, build().partition)
    layers = partition.mixed_layers
    assert partition.roles == {Role.MIXED} and len(layers) == 21
    assert sum(map(len, layers.values())) == len(network.state_dict())
    assert list(layers)[:4] == [f"encoder.stage{i}" for i in (1, 2, 3, 4)]
    stage = {name.split(".")[1] for name in layers["encoder.stage2"]}
    assert stage == {"patch_embed2", "block2", "norm2"}
    assert {name.split(".")[0] for name in layers["heads"]} == {"head_global", "head_personal"}
    for decoder in ("decoder_global", "decoder_personal"):
        blocks = [f"{decoder}.{kind}.{i}" for kind in ("lateral", "segmentation") for i in range(4)]
        assert [name for name in layers if name.startswith(decoder)] == blocks
    method = build()
    partition = partition_network(network, method.partition)
    models = Models({}, {site: dict(network.state_dict()) for site in names(3)})
    state = method.server.aggregator.init(partition, models, profiles(3))
    own = {n: v for n, v in state.items() if n.startswith("hypernetwork/site-1/")}
    assert sum(v.numel() for n, v in own.items() if not n.endswith("embedding")) == 36_663
    assert all(name.startswith(("hypernetwork/", "personal/")) for name in state)


def shares_by_hand(state, site, count):
    """The hypernetwork in plain loops over numbers."""
    own = {n.split("/")[-1]: v.tolist() for n, v in state.items() if n.startswith(f"hypernetwork/{site}/")}

    def layer(rows, bias, inputs):
        sums = [sum(a * b for a, b in zip(row, inputs, strict=True)) for row in rows]
        return [max(0.0, value + b) for value, b in zip(sums, bias, strict=True)]

    hidden = own["embedding"]
    for i in range(3):
        hidden = layer(own[f"hidden.{i}.weight"], own[f"hidden.{i}.bias"], hidden)
    found = []
    for rows, bias in zip(own["output.weight"], own["output.bias"], strict=True):
        outputs = layer(rows, bias, hidden)
        total = sum(outputs)
        found.append([value / total if total else 1 / count for value in outputs])
    return found


@pytest.mark.parametrize("mode", ["corrected", "as_released"])
def test_every_weight_is_the_reported_mixture_and_its_shares_equal_plain_loops(mode):
    models, sent = toy()
    _, result = run(build(mode=mode), models, sent)
    for site, layers in result.report["mixing"].items():
        by_hand = shares_by_hand(result.state, site, 3)
        for (layer, share), expected_shares in zip(layers.items(), by_hand, strict=True):
            assert list(share.values()) == pytest.approx(expected_shares, abs=1e-5)
            assert sum(share.values()) == pytest.approx(1, abs=1e-6) and min(share.values()) >= 0
            for name in LAYERS[layer]:
                for i, found in enumerate(result.models.mixed[site][name].tolist()):
                    expected = sum(share[u.site] * float(u.pieces[name][i]) for u in sent)
                    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode, better", [("corrected", True), ("as_released", False)])
def test_a_step_moves_the_mixture_towards_what_was_learned_or_as_released_away(mode, better):
    models, _ = toy()
    # each site keeps the direction of its start, so that its own layer has the largest product
    sent = [Update(s, 0, {n: 1.2 * v for n, v in models.mixed[s].items()}) for s in models.mixed]
    reached = []
    for rate in (0.0, 1e-3):
        _, result = run(build(mode=mode, hypernetwork_rate=rate), models, sent)
        change = {n: u - models.mixed["site-1"][n] for n, u in sent[0].pieces.items()}
        reached.append(sum(float((result.models.mixed["site-1"][n] * change[n]).sum()) for n in SIZES))
    assert (reached[1] > reached[0]) is better


def test_a_rate_of_zero_leaves_the_hypernetworks_and_identical_sites_get_their_own_back():
    models, sent = toy()
    same = [Update(u.site, 0, sent[0].pieces) for u in sent]
    state, result = run(build(hypernetwork_rate=0.0), models, same)
    assert all(torch.equal(v, result.state[n]) for n, v in state.items() if n.startswith("hypernetwork/"))
    for own in result.models.mixed.values():
        torch.testing.assert_close(own, sent[0].pieces)


def test_an_absent_site_counts_with_its_last_weights_and_its_hypernetwork_rests():
    models, sent = toy()
    state, result = run(build(), models, sent[:2])
    assert torch.equal(state["hypernetwork/site-3/embedding"], result.state["hypernetwork/site-3/embedding"])
    share = result.report["mixing"]["site-3"]["c"]
    lasts = [sent[0].pieces["v"], sent[1].pieces["v"], models.mixed["site-3"]["v"]]
    expected = sum(w * v for w, v in zip(share.values(), lasts, strict=True))
    torch.testing.assert_close(result.models.mixed["site-3"]["v"], expected)


def test_float64_and_counters_have_no_part_in_a_layers_products():
    models = own_models(lambda: {n: tensor([1.0] * k) for n, k in SIZES.items()}, 2)
    _, result = run(build(), models, trained(models, lambda: dict.fromkeys(SIZES, 1)))
    assert all(v.dtype is torch.float64 for v in result.models.mixed["site-1"].values())
    here = {"w": torch.tensor([2.0, 3.0]), "n": torch.tensor(52)}
    after = {"w": torch.tensor([2.5, 2.0]), "n": torch.tensor(78)}
    assert hypernetwork.layer_products({"layer": ["w", "n"]}, [here], [(after, here)]).tolist() == [[[-2.0]]]
