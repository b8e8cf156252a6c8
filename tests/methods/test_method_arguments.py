"""Every method refuses wrong arguments when it is built, and names that match nothing where the network is known."""

import importlib
import inspect
import re
from types import UnionType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.networks.pvt_fpn import PvtFpn

NUMBERS = ("int", "float", "int | NoneType", "float | NoneType")


def bare_type(kind):
    """Return the name of a declared type without its range and items, such as "int | NoneType"."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(bare_type, get_args(kind)))
    if get_origin(kind) is Annotated:
        return bare_type(get_args(kind)[0])
    return (get_origin(kind) or kind).__name__


def declared():
    """Yield method, argument and type of every argument of all methods."""
    for method in method_names():
        build = importlib.import_module(f"shared_components.methods.{method}").build
        kinds = get_type_hints(build, include_extras=True)
        for name, parameter in inspect.signature(build).parameters.items():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{method} {name}"
            yield method, name, bare_type(kinds[name])


def arguments(*kinds):
    return [(method, name) for method, name, kind in declared() if kind in kinds]


def refuses(method, name, value):
    with pytest.raises(ValueError, match=rf"^{method}: {name} is {re.escape(repr(value))}"):
        load_method(method, **{name: value})


def test_every_argument_is_of_a_checked_kind_and_every_number_has_its_range():
    known = {kind for kinds in REFUSED for kind in kinds}
    for method, name, kind in declared():
        assert kind in known, f"{method} {name}: {kind}"
    assert len(arguments(*NUMBERS)) > 40
    assert sorted((method, name) for method, name, _, _ in RANGES) == sorted(arguments(*NUMBERS))
    torch.Generator().manual_seed((2**32 - 1) * 1_000_003 + 1000)  # largest seed of a hypernetwork


REFUSED = {  # by kinds of argument
    tuple(NUMBERS): [float("nan"), float("inf"), float("-inf"), "1", "", True, False, [1]],
    ("int", "float"): [None],
    ("int", "int | NoneType"): [2.0],
    ("bool",): ["false", 0, 1, None],
    ("Literal",): ["nonsense", None, 1],
    ("Sequence",): ["encoder", None, [1]],
    ("Sequence | NoneType",): ["encoder", [1]],
    ("Mapping | NoneType",): [3, "mean", [1]],
}


@pytest.mark.parametrize("method, name, values", [(*a, v) for kinds, v in REFUSED.items() for a in arguments(*kinds)])
def test_values_of_another_kind_are_refused(method, name, values):
    for value in values:
        refuses(method, name, value)


@pytest.mark.parametrize("method, name, value, words", [
    ("fedas", "personal", [], "write at least one name"), ("fedbn", "norms", [], "one or more of batch, layer"),
    ("fedbn", "norms", ["spectral"], "spectral"), ("fedhca2", "encoder", [], "write at least one name"),
    ("fedper", "personal", [], "write at least one name"), ("mat_fl", "shared", [], "write at least one name"),
    ("pfedsis", "personal", ["queries"], "queries"), ("pfedsis", "personal", ["q"], "add 'decoder'"),
])  # fmt: skip
def test_lists_that_are_empty_or_hold_unknown_names_are_refused(method, name, value, words):
    with pytest.raises(ValueError, match=words):
        load_method(method, **{name: value})


# values in a range (its ends among them), values out of it, and the arguments with this range
TABLE = [
    ([0, 0.9], [-0.1, 1], "cd2_pfed.personal_share fedavgm.momentum fedhca2.conflict fedhca2.momentum"),
    ([0, 5.0], [-0.1], "cd2_pfed.strength"),
    ([1], [0], "cd2_pfed.ramp_rounds fedseg.anchors fedseg.prototype_images fedst.batches"),
    ([0], [-1, -1e-9],
    "ditto.strength fedas.alignment_rate feddp.strength fedhca2.hyper_rate fedhca2.weight_decay "
    "fedld.margin fedprox.mu fedsam.rho fedsam.eta fedseg.weight fedst.pretraining "
    "fedst.descriptor_weight fedst.representation_weight krum.faults multi_krum.faults "
    "pfedla.hypernetwork_rate pfedsis.hypernetwork_rate qfedavg.q surgfed.hyper_rate trimmed_mean.trim"),
    ([1e-06, 2], [0], "fedadam.learning_rate"), ([0, 0.99], [-0.1, 1], "fedadam.beta_1 fedadam.beta_2 fedst.average"),
    ([1e-09], [0], "fedadam.tau"), ([0.1, 1], [0, 1.1], "fedas.largest_weight fedld.keep"),
    ([0.1], [0], "fedavgm.learning_rate"), ([None, 1], [0], "feddp.fine_tune_from qfedavg.loss_images"),
    ([0, 1], [-0.1, 1.1], "fedhca2.alpha fedhca2.beta fedld.decay fedst.descriptor_rate surgfed.psi"),
    ([0.01, 0.99], [0, 1], "fedrep.head_share"), ([0.01], [0, -0.07], "fedseg.temperature"),
    ([0.1], [0, -1], "fedst.rate fedst.pretraining_rate"), ([0, 2**64], [-1], "fedst.seed"),
    ([1], [0, -1], "mat_fl.clusters pfedsis.sensitivity_images"), ([0], [-0.1], "mat_fl.threshold"),
    ([None, 0.01, 0.99, 1, 9], [0, -0.5, 1.0, 1.5, 2.0], "multi_krum.keep"), ([None, 0.1], [0, -1], "norm_bound.times"),
    ([0, 2**32 - 1], [-1, 2**32], "pfedla.seed pfedsis.seed"), ([0.01], [0, -1], "pfedsis.sensitivity_temperature"),
    ([0.01, 1], [0, 1.1], "pfedsis.cross_style_share"), ([None, 0], [-1], "surgfed.weight_decay"),
    ([0, 2**63 - 1], [-1, 2**63], "surgfed.seed"), ([0.001], [0], "qfedavg.learning_rate"),
]  # fmt: skip
RANGES = [(*name.split("."), *values) for *values, names in TABLE for name in names.split()]


@pytest.mark.parametrize("method, name, inside, outside", RANGES)
def test_ranges_end_where_they_should(method, name, inside, outside):
    for value in inside:
        load_method(method, **{name: value})
    for value in outside:
        refuses(method, name, value)


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


NAMED = (
    "fedper personal, fedrep personal, fedas personal, fedst personal, mat_fl shared, fedhca2 encoder, "
    "fedhca2 decoders, fedavg personal, fedprox personal, fedavg_cluster personal"
)


@pytest.mark.parametrize("method, argument", [pair.split() for pair in NAMED.split(", ")])
def test_a_mistyped_name_is_refused(network, method, argument):
    rule = load_method(method, **{argument: ["head_global", "decodr_personal"]}).partition
    with pytest.raises(ValueError, match=f"{method}: {argument} names 'decodr_personal', .*mean 'decoder_personal'"):
        partition_network(network, rule)


TOP, DECODERS = {"decoder_personal", "head_personal", "head_global"}, {"decoder_global", "decoder_personal"}
HEADS, SHARED = {"head_global", "head_personal"}, {"encoder", "decoder_global"}
TWO = {"decoder_personal", "head_global"}


@pytest.mark.parametrize("method, arguments, roles", [
    ("fedper", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}),
    ("fedper", {"personal": ["decoder", "head"]}, {Role.LOCAL: DECODERS | HEADS, Role.GLOBAL: {"encoder"}}),
    ("fedper", {"personal": sorted(TWO)}, {Role.LOCAL: TWO, Role.GLOBAL: SHARED | {"head_personal"}}),
    ("fedrep", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}), ("fedas", {}, {Role.LOCAL: TOP, Role.GLOBAL: SHARED}),
    ("fedavg", {"personal": ["head"]}, {Role.LOCAL: HEADS, Role.GLOBAL: DECODERS | {"encoder"}}),
    ("fedprox", {"personal": ["head"]}, {Role.LOCAL: HEADS, Role.GLOBAL: DECODERS | {"encoder"}}),
    ("fedavg_cluster", {"personal": ["head"]}, {Role.LOCAL: HEADS, Role.MIXED: DECODERS | {"encoder"}}),
    ("mat_fl", {}, {Role.MIXED: {"encoder"}, Role.LOCAL: DECODERS | HEADS}),
    ("fedhca2", {}, {Role.MIXED: {"encoder"} | DECODERS, Role.LOCAL: HEADS}),
])  # fmt: skip
def test_parts_and_modules_have_the_roles_of_the_paper(network, method, arguments, roles):
    partition = partition_network(network, load_method(method, **arguments).partition)
    assert {r: {p.tensor.partition(".")[0] for p in partition if p.role is r} for r in partition.roles} == roles


def test_fedas_and_fedhca2_refuse_a_module_on_both_sides(network):
    with pytest.raises(ValueError, match="fedas: personal contains decoder_global, whose features are aligned"):
        partition_network(network, load_method("fedas", personal=["decoder"]).partition)
    rule = load_method("fedhca2", encoder=["encoder.block1"], decoders=["decoder_global", "encoder.block2"]).partition
    layers = partition_network(network, rule).mixed_layers
    assert all(name.startswith("encoder.block1.") for name in layers["encoder"])
    assert layers["encoder.block2.0.attn.q"] == [f"encoder.block2.0.attn.q.{n}" for n in ("weight", "bias")]
    rule = load_method("fedhca2", encoder=["encoder"], decoders=["encoder.block2"]).partition
    with pytest.raises(ValueError, match=r"fedhca2: encoder\.block2 is in 'encoder' and in 'decoders'"):
        partition_network(network, rule)


def of_norms(network, norms):
    return partition_network(network, load_method("fedbn", norms=norms).partition)


@pytest.mark.parametrize("norms", [["batch"], ["layer", "batch"]])
def test_fedbn_refuses_kinds_of_layers_that_the_network_has_not(network, norms):
    """A layer without anything to keep does not count."""
    with pytest.raises(ValueError, match=r"fedbn: PvtFpn has no batch layers .* are: layer, group"):
        of_norms(network, norms)
    with pytest.raises(ValueError, match="has no layer layers"):
        of_norms(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False)), ["layer"])


@pytest.mark.parametrize("method, arguments, sentence", [
    ("feddp", {}, "feddp: Plain has no query projections"),
    ("feddp", {"fine_tune_from": 2}, "feddp: Plain has no query projections"),
    ("pfedsis", {"ape": False, "personal": ["q"]}, "pfedsis: personal contains 'q', but Plain has no"),
    ("pfedsis", {"ape": False, "personal": ["v"]}, "pfedsis: personal contains 'v', but Plain has no"),
    ("pfedsis", {"personal": ["decoder"]}, "pfedsis: personal contains 'decoder', but Plain has no"),
    ("fedas", {}, "fedas names 'decoder_global', which is no part"),
    ("fedst", {}, "fedst: personal names 'queries', but Plain has no part 'queries'"),
    ("surgfed", {}, "surgfed: aggregated names '.*', which is no part and no module of Plain"),
])  # fmt: skip
def test_a_network_without_what_a_method_names_is_refused(method, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        partition_network(Plain(), load_method(method, **arguments).partition)


@pytest.mark.parametrize("method", ["cd2_pfed", "pfedla"])
def test_methods_that_need_a_head_refuse_a_network_that_names_none(method):
    network = Plain()
    del network.parts["head"]
    with pytest.raises(ValueError, match=f"{method} names 'head', which is no part and no module of Plain"):
        partition_network(network, load_method(method).partition)


@pytest.mark.parametrize(
    "method", sorted(set(method_names()) - {"fedbn", "feddp", "pfedsis", "fedas", "fedst", "surgfed"})
)
def test_every_other_method_works_by_parts_on_a_network_of_other_modules(method):
    partition = partition_network(Plain(), load_method(method).partition)
    assert {piece.tensor for piece in partition} == set(Plain().state_dict())
