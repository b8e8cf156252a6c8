"""Names and kinds that match nothing of a network are refused where it is known, before anything is sent."""

import pytest
import torch
from torch import nn

from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.networks.pvt_fpn import PvtFpn


@pytest.fixture(scope="module")
def network():
    with torch.device("meta"):
        return PvtFpn()


class Plain(nn.Module):
    """An encoder without attention or norms, and one decoder; no second path."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.classifier = (nn.Conv2d(1, 1, 1) for _ in range(3))
        self.parts = {"encoder": ("encoder",), "decoder": ("decoder",), "head": ("classifier",)}
        self.parts["top"] = ("classifier",)


WITH_NAMES = [
    ("fedper", "personal"),
    ("fedrep", "personal"),
    ("fedas", "personal"),
    ("fedst", "personal"),
    ("mat_fl", "shared"),
    ("fedhca2", "encoder"),
    ("fedhca2", "decoders"),
]


@pytest.mark.parametrize("method, argument", WITH_NAMES)
def test_a_mistyped_name_is_refused(network, method, argument):
    rule = load_method(method, **{argument: ["head_global", "decodr_personal"]}).partition
    sentence = f"{method}: {argument} names 'decodr_personal', .*did you mean 'decoder_personal'"
    with pytest.raises(ValueError, match=sentence):
        partition_network(network, rule)


TOP, DECODERS = {"decoder_personal", "head_personal", "head_global"}, {"decoder_global", "decoder_personal"}
HEADS, SHARED = {"head_global", "head_personal"}, {"encoder", "decoder_global"}


@pytest.mark.parametrize(
    "method, arguments, roles",
    [
        ("fedper", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}),
        ("fedper", {"personal": ["decoder", "head"]}, {Role.LOCAL: DECODERS | HEADS, Role.GLOBAL: {"encoder"}}),
        (
            "fedper",
            {"personal": ["decoder_personal", "head_global"]},
            {Role.LOCAL: {"decoder_personal", "head_global"}, Role.GLOBAL: SHARED | {"head_personal"}},
        ),
        ("fedrep", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}),
        ("fedas", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}),
        ("mat_fl", {}, {Role.MIXED: {"encoder"}, Role.LOCAL: DECODERS | HEADS}),
        ("fedhca2", {}, {Role.MIXED: {"encoder"} | DECODERS, Role.LOCAL: HEADS}),
    ],
)
def test_parts_and_modules_have_the_roles_of_the_paper(network, method, arguments, roles):
    partition = partition_network(network, load_method(method, **arguments).partition)
    assert {r: {p.tensor.partition(".")[0] for p in partition if p.role is r} for r in partition.roles} == roles


def test_fedas_aligns_no_part_of_the_head(network):
    with pytest.raises(ValueError, match="fedas: personal holds decoder_global, whose features are aligned"):
        partition_network(network, load_method("fedas", personal=["decoder"]).partition)


def test_fedhca2_takes_any_encoder_and_refuses_a_module_in_both(network):
    rule = load_method("fedhca2", encoder=["encoder.block1"], decoders=["decoder_global", "encoder.block2"]).partition
    partition = partition_network(network, rule)
    layers = partition.mixed_layers
    assert all(name.startswith("encoder.block1.") for name in layers["encoder"])
    assert layers["encoder.block2.0.attn.q"] == [f"encoder.block2.0.attn.q.{n}" for n in ("weight", "bias")]
    rule = load_method("fedhca2", encoder=["encoder"], decoders=["encoder.block2"]).partition
    with pytest.raises(ValueError, match=r"fedhca2: encoder\.block2 lies in encoder and in decoders"):
        partition_network(network, rule)


@pytest.mark.parametrize("norms, missing", [(["batch"], "batch"), (["layer", "batch"], "batch")])
def test_fedbn_refuses_kinds_of_layers_that_the_network_has_not(network, norms, missing):
    with pytest.raises(ValueError, match=f"fedbn: PvtFpn has no {missing} layers .* it has layer, group"):
        partition_network(network, load_method("fedbn", norms=norms).partition)


def test_fedbn_keeps_all_kinds_that_there_are_and_refuses_where_there_is_none(network):
    asked, default = (
        partition_network(network, load_method("fedbn", norms=norms).partition) for norms in (["layer", "group"], None)
    )
    assert asked == default and default.roles == {Role.LOCAL, Role.GLOBAL}
    with pytest.raises(ValueError, match=r"fedbn: Plain has no normalisation layers .* none of any kind"):
        partition_network(Plain(), load_method("fedbn").partition)


def test_a_norm_without_anything_to_keep_does_not_count():
    network = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False))
    with pytest.raises(ValueError, match="has no layer layers"):
        partition_network(network, load_method("fedbn", norms=["layer"]).partition)


@pytest.mark.parametrize(
    "method, arguments, sentence",
    [
        ("feddp", {}, "feddp: Plain has no queries in its encoder"),
        ("feddp", {"fine_tune_from": 2}, "feddp: Plain has no queries in its encoder"),
        ("pfedsis", {"ape": False, "personal": ["q"]}, "pfedsis: personal names 'q', and Plain has no"),
        ("pfedsis", {"ape": False, "personal": ["v"]}, "pfedsis: personal names 'v', and Plain has no"),
        ("pfedsis", {"personal": ["decoder"]}, "pfedsis: personal names 'decoder', and Plain has no"),
        ("fedas", {}, "fedas names 'decoder_global', which is no part"),
        ("fedst", {}, "fedst: personal names 'queries', and Plain declares no part 'queries'"),
    ],
)
def test_a_network_without_what_a_method_names_is_refused(method, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        partition_network(Plain(), load_method(method, **arguments).partition)


@pytest.mark.parametrize("method", ["cd2_pfed", "pfedla"])
def test_methods_that_need_a_head_refuse_a_network_that_names_none(method):
    network = Plain()
    del network.parts["head"]
    with pytest.raises(ValueError, match=f"{method} names 'head', which is no part and no module of Plain"):
        partition_network(network, load_method(method).partition)


@pytest.mark.parametrize("method", sorted(set(method_names()) - {"fedbn", "feddp", "pfedsis", "fedas", "fedst"}))
def test_every_other_method_works_by_parts_on_a_network_of_other_modules(method):
    partition = partition_network(Plain(), load_method(method).partition)
    assert {piece.tensor for piece in partition} == set(Plain().state_dict())
