"""Network arguments that a job or a checkpoint's header may set."""

from collections.abc import Sequence
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from shared_components.core.bundle import load_bundle
from shared_components.networks.bundle_config import build_network, bundle_names, weightless
from shared_components.networks.network_arguments import arguments_of, chosen_arguments, differing
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.vit_dpt import VitDpt
from tests.networks.test_networks import NETWORKS

EVERY = {
    "temporal": False, "text": "prompt", "indicator": 5, "levels": [16], "window": 4, "receptive_fields": [8, 4],
    "kernels": [2, 1], "expansion": 3, "drop_path": 0, "dropout": 0.5,
}  # fmt: skip


def test_all_that_a_network_takes_may_be_chosen_but_for_its_outputs():
    assert sorted(arguments_of(PvtFpnClips)) == sorted(EVERY)
    assert chosen_arguments(EVERY, PvtFpnClips) == EVERY
    assert chosen_arguments({}, PvtFpnClips) == {}


def test_a_bundle_has_its_own_arguments_and_those_that_are_chosen():
    plain, changed = load_bundle("fedst"), load_bundle("fedst", network={"temporal": False, "window": 4})
    assert plain.chosen == {} and changed.chosen == {"temporal": False, "window": 4}
    assert changed.network == {**plain.network, "temporal": False, "window": 4}
    assert load_bundle("fedst").network == plain.network  # nothing is kept
    assert (changed.training, changed.tasks) == (plain.training, plain.tasks)
    network = weightless(changed.network, out_channels=3)
    assert not network.takes_clips and network.head.weight.shape[0] == 3


@pytest.mark.parametrize("network", NETWORKS.values())
def test_of_every_argument_the_kind_is_known(network):
    """An argument with an unknown type would accept any plain value."""
    targets = {load_bundle(name).network["_target_"].rpartition(".")[2] for name in bundle_names()}
    assert targets <= NETWORKS.keys()
    hints = get_type_hints(network.__init__)
    for name in arguments_of(network):
        listed = get_origin(hints[name]) is Sequence or isinstance(hints[name], UnionType)
        kind = get_args(hints[name])[0] if listed else hints[name]
        assert kind in (bool, int, float, str), name


@pytest.mark.parametrize(("given", "sentence"), [
    ([("temporal", False)], r"the value is \[\('temporal', False\)\]; write arguments of PvtFpnClips as 'name"),
    ("temporal", "network: the value is 'temporal'; write"), ([], r"network: the value is \[\]; write"),
    (False, "network: the value is False; write"),
    ({"temporl": False}, "unknown argument 'temporl'; did you mean 'temporal'. PvtFpnClips takes temporal, text,"),
    ({"self": 1}, "unknown argument 'self'; "), ({"args": [1]}, "unknown argument 'args'; "),
    ({"_target_": "os.system"}, "'_target_' is set by the bundle and cannot be chosen; PvtFpnClips takes"),
    ({"_args_": [1]}, "'_args_' is set by the bundle"), ({"__class__": 1}, "'__class__' is set by the bundle"),
    ({"_requires_": "$print(1)"}, "'_requires_' is set by the bundle"), ({1: 2}, "1 is set by the bundle"),
    ({"out_channels": 7}, "out_channels is set by the site's task and its classes; remove it"),
    ({"text": "$open('/etc/passwd').read()"}, "text is the expression .*; write a plain value"),
    ({"text": "@training"}, "text is the expression '@training'"), ({"text": "%train.yaml"}, "text is the expression"),
    ({"levels": ["$16"]}, "levels is the expression '.16'"),
    ({"text": {"a": 1}}, r"text is \{'a': 1\}; write a text, a finite number, true, false, null, or a list of"),
    ({"levels": [[16]]}, r"levels is \[\[16\]\]; write a text"),
    ({"levels": (16, 32)}, r"levels is \(16, 32\); write a text"), ({"text": b"none"}, "text is b'none'; write a text"),
    ({"dropout": float("nan")}, "dropout is nan; write"), ({"dropout": float("inf")}, "dropout is inf; write"),
    ({"indicator": 10**400}, "indicator is a whole number of over 80 digits; write"),
    ({"kernels": [7, float("nan")]}, r"kernels is \[7, nan\]; write"),
    ({"temporal": "false"}, "temporal is 'false'; it is true or false"),
    ({"temporal": 0}, "temporal is 0; it is true or false"),
    ({"temporal": None}, "temporal is None; it is true or false"),
    ({"indicator": True}, "indicator is True; it is a whole number"),
    ({"indicator": "384"}, "indicator is '384'; it is a whole number"),
    ({"indicator": 384.0}, "indicator is 384.0; it is a whole number"),
    ({"dropout": False}, "dropout is False; it is a finite number"), ({"text": 1}, "text is 1; it is a text"),
    ({"text": ["none"]}, r"text is \['none'\]; it is a text"),
    ({"levels": 16}, "levels is 16; it is a list, of which each is a whole number"),
    ({"levels": "16"}, "levels is '16'; it is a list, of which each is a whole number"),
    ({"levels": [True]}, r"levels is \[True\]; it is a list"),
    ({"levels": ["16"]}, r"levels is \['16'\]; it is a list"),
])  # fmt: skip
def test_what_cannot_be_chosen_is_refused_by_name(given, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        load_bundle("fedst", network=given)
    assert "\n" not in str(error.value) and str(error.value).startswith("network: ")


@pytest.mark.parametrize(("given", "sentence"), [
    ({"text": "clip"}, "text is 'clip'; use one of none, prompt, selection"),
    ({"levels": []}, "give one or more of 4, 8, 16, 32"), ({"levels": [16, 16]}, "each once"),
    ({"levels": [2]}, r"levels are \[2\]"),
    ({"indicator": -1}, "indicator is .*whole number, at least 1"), ({"window": 0}, "window is 0"),
    ({"expansion": 0}, "expansion is 0; give a positive whole number"),
    ({"drop_path": 1.0}, "drop_path is 1.0; give a probability of at least 0 and below 1"),
    ({"drop_path": -0.5}, "drop_path is -"), ({"dropout": 5.0}, "dropout probability has to be between 0 and 1"),
    ({"indicator": 10**30}, "PvtFpnClips cannot be built with .*'indicator': 10+"),
])  # fmt: skip
def test_what_is_out_of_range_the_network_refuses_when_it_is_built(given, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        weightless(load_bundle("fedst", network=given).network)
    assert "\n" not in str(error.value)
    for width in (0, -4, 6):
        with pytest.raises(ValueError, match=f"Tiny: width is {width}; give a positive multiple of 4"):
            build_network({"_target_": "shared_components.networks.tiny.Tiny", "width": width})


def test_a_class_without_such_names_has_none_to_choose():
    class Fixed(PvtFpn):
        def __init__(self, *arguments, out_channels=4, **more):
            super().__init__(out_channels=out_channels)

    assert arguments_of(Fixed) == []
    with pytest.raises(ValueError, match="unknown argument 'dropout'"):
        chosen_arguments({"dropout": 0.5}, Fixed)


def test_what_a_network_was_made_with_is_told_from_what_its_bundles_was():
    own = weightless(load_bundle("fedst").network)
    assert differing(weightless(load_bundle("fedst").network, out_channels=9), own) == {}
    chosen = {"temporal": False, "text": "none", "kernels": [7, 4, 2, 1], "receptive_fields": [49, 16, 10, 7]}
    other = weightless(load_bundle("fedst", network=chosen).network)
    assert differing(other, own) == {name: chosen[name] for name in chosen if name != "kernels"}
    assert differing(weightless(load_bundle("pvt_fpn").network), own) == {}


def test_an_argument_that_may_be_null_is_that_or_of_its_kind():
    for arguments in ({"features": None}, {"features": 64}):
        assert chosen_arguments(arguments, VitDpt) == arguments
    with pytest.raises(ValueError, match="network: features is 'wide'; it is a whole number or null"):
        chosen_arguments({"features": "wide"}, VitDpt)


class Drawing(TorchDispatchMode):
    """Note which operations draw numbers."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen |= {function.overloadpacket.__name__} & {"normal_", "uniform_"}
        return function(*args, **(kwargs or {}))


def test_a_network_without_memory_draws_no_numbers_for_which_torch_would_import_its_compiler():
    definition = load_bundle("pfedsis").network
    with Drawing() as without:
        shapes = {name: value.shape for name, value in weightless(definition).state_dict().items()}
    with Drawing() as usual:
        network = build_network(definition)
    assert (without.seen, usual.seen) == (set(), {"normal_", "uniform_"})
    assert shapes == {name: value.shape for name, value in network.state_dict().items()}
