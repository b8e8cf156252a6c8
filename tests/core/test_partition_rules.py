"""What rules keep at home: by modules, and FedST's tensor by tensor and row by row; Tables 5 and 6."""

import re

import pytest
import torch

from shared_components.core.partition import Role, cut, partition_network
from shared_components.core.partition_rules import representation
from shared_components.networks.pvt_fpn_clips import PvtFpnClips

CHANNELS, BLOCKS = (32, 64, 160, 256), 2
ATTENTION = {stage: f"encoder.block{stage}" for stage in (1, 2, 3, 4)}
SELECTION = {f"selection.{level}.gate.{kind}" for level in (16, 32) for kind in ("weight", "bias")}
ALWAYS = {"indicator"}
MEGABYTE = 2**20
SHAPED = {"levels": [16, 32], "window": 4, "receptive_fields": [8, 4], "kernels": [2, 1]}


def meta(**arguments):
    """Return a network that has shapes and no memory."""
    with torch.device("meta"):
        return PvtFpnClips(**(SHAPED | arguments))


@pytest.fixture(scope="module")
def network():
    return meta()


def of(network, *personal, **options):
    return partition_network(network, representation(list(personal), **options))


def local(network, *personal, **options):
    return set(of(network, *personal, **options).with_roles(Role.LOCAL))


def of_attention(layer, rows=""):
    """Name a layer of every attention of the encoder, weight and bias; rows as a function of the channels."""
    return {
        f"{ATTENTION[stage]}.{block}.attn.{layer}.{kind}{rows and rows(channels)}"
        for stage, channels in enumerate(CHANNELS, start=1)
        for block in range(BLOCKS)
        for kind in ("weight", "bias")
    }


QUERIES = of_attention("q")
KEYS = of_attention("kv", lambda c: f"[0:{c}]")
VALUES = of_attention("kv", lambda c: f"[{c}:{2 * c}]")
DECODER_QUERIES = {f"temporal.{level}.q.{kind}" for level in (16, 32) for kind in ("weight", "bias")}


def named(network, *beginnings):
    return {name for name in network.state_dict() if name.split(".")[0] in beginnings}


def norms(network):
    """Return the tensors of the encoder's layers that are called a norm, of which no other kind of layer is."""
    return {n for n in network.state_dict() if re.fullmatch(r"encoder\..*\bnorm\d?\.(weight|bias)", n)}


@pytest.mark.parametrize("personal, expected", [
    (["queries"], lambda n: QUERIES), (["keys"], lambda n: KEYS), (["values"], lambda n: VALUES),
    (["keys", "values"], lambda n: of_attention("kv")), (["values", "queries"], lambda n: VALUES | QUERIES),
    (["norms"], norms), (["decoder_queries"], lambda n: DECODER_QUERIES),
    (["queries", "decoder_queries"], lambda n: QUERIES | DECODER_QUERIES),
    (["decoder"], lambda n: named(n, "decoder", "head")), (["temporal"], lambda n: named(n, "temporal")),
    ([], lambda n: set()), (["all"], lambda n: set(n.state_dict()) - SELECTION - ALWAYS),
    (["encoder", "keys"], lambda n: named(n, "encoder")),
    (["encoder.block1.0.attn.q"], lambda n: {q for q in QUERIES if "block1.0" in q}),
])  # fmt: skip
def test_what_is_named_stays_and_all_else_is_shared(network, personal, expected):
    partition = of(network, *personal)
    stays = expected(network) | SELECTION | ALWAYS
    assert set(partition.with_roles(Role.LOCAL)) == stays and partition.roles <= {Role.LOCAL, Role.GLOBAL}
    cut_in_two = {name.partition("[")[0] for name in stays if "[" in name}
    rest = set(network.state_dict()) - {name.partition("[")[0] for name in stays}
    assert set(partition.with_roles(Role.GLOBAL)) == rest | ({*KEYS, *VALUES} - stays if cut_in_two else set())


def test_queries_are_the_default_and_all_is_all(network):
    assert list(partition_network(network, representation())) == list(of(network, "queries"))
    assert local(network, "all", selection=False) == set(network.state_dict())
    assert local(meta(text="none"), "queries") == QUERIES


@pytest.mark.parametrize("personal", [[], ["queries"], ["keys"], ["decoder"]])
def test_the_selection_is_shared_where_the_switch_says_so_and_the_text_never_is(network, personal):
    kept = local(network, *personal)
    assert local(network, *personal, selection=False) == kept - SELECTION and "indicator" in kept - SELECTION


def test_key_rows_come_before_value_rows():
    """A map of ones through keys alone tells which rows the attention takes for keys."""
    network = PvtFpnClips(temporal=False, text="none")
    state = network.state_dict()
    name = "encoder.block1.0.attn.kv.weight"
    assert torch.equal(cut(state, of(network, "keys"), Role.LOCAL)[f"{name}[0:32]"], state[name][:32])
    assert torch.equal(cut(state, of(network, "values"), Role.LOCAL)[f"{name}[32:64]"], state[name][32:])
    attention = network.encoder.block1[0].attn.eval()
    image = torch.rand(1, 8, 8, 32)
    with torch.no_grad():
        before = attention(image)
        attention.kv.bias[:32] += 3  # one number more for all keys changes no softmax
        assert torch.allclose(attention(image), before, atol=1e-5)
        attention.kv.bias[32:] += 3
        assert not torch.allclose(attention(image), before, atol=1e-1)


ENCODER, PAST, DECODER = 3_409_760, 248_740 + 619_168, 1_755_904 + 128 * 4 + 4  # see test_pvt_fpn_clips


def megabytes(network, *personal, **options):
    shared = of(network, *personal, **options).with_roles(Role.GLOBAL).values()
    state = network.state_dict()
    return sum(piece.view(state).numel() * state[piece.tensor].element_size() for piece in shared) / MEGABYTE


def test_the_megabytes_that_travel_are_near_those_of_the_paper():
    with torch.device("meta"):
        network = PvtFpnClips()
    shared = ENCODER - sum(BLOCKS * (c + 1) * c for c in CHANNELS) + PAST
    assert megabytes(network, "queries") == 4 * (shared + DECODER) / MEGABYTE == pytest.approx(22.28, abs=0.005)
    assert megabytes(network, "queries", "decoder") == 4 * shared / MEGABYTE == pytest.approx(15.58, abs=0.005)
    selection = sum((c + 384 + 1) * c for c in (160, 256))
    assert megabytes(network, selection=False) == 4 * (ENCODER + PAST + DECODER + selection) / MEGABYTE
    with torch.device("meta"):
        plain = PvtFpnClips(temporal=False, text="none")
    assert megabytes(plain) == 4 * 5_166_180 / MEGABYTE == pytest.approx(19.71, abs=0.005)
    assert megabytes(plain, "queries", "decoder") == pytest.approx(12.27, abs=0.005)


@pytest.mark.parametrize("name", ["temporal", "decoder_queries"])
def test_a_part_that_this_network_lacks_is_refused_by_its_name(name):
    words = rf"^fedst: personal names '{name}', but PvtFpnClips has no part 'temporal.*; its parts are encoder, "
    with pytest.raises(ValueError, match=words):
        of(meta(temporal=False), "queries", name)


def test_a_name_that_matches_nothing_is_refused_with_what_there_is(network):
    words = r"^fedst: personal names 'querys', .*did you mean 'queries'.*fedst: personal also takes queries, norms"
    with pytest.raises(ValueError, match=words):
        of(network, "querys")
    with pytest.raises(ValueError, match=r"^other: kept names ''"):
        partition_network(network, representation([""], what="other: kept"))
