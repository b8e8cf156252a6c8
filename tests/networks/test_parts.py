"""Parts: names, errors, frozen parts, and learning rates."""

import copy

import pytest
import torch
from torch import nn

from shared_components.networks import parts
from shared_components.networks.parts import by_learning_rate, fixed_tensors, freeze, inside, resolve, shared_paths


class Toy(nn.Module):
    """An encoder of two blocks with norms, a head, and a table of numbers."""

    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
        self.block2 = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.head = nn.Linear(2, 1)
        self.register_buffer("table", torch.ones(3))
        self.parts = {"encoder": ("block1", "block2"), "classifier": ("head",), "odd": ("tail",), "none": ()}


@pytest.mark.parametrize("names, paths", [
    (["encoder"], {"block1", "block2"}), (["encoder", "head"], {"block1", "block2", "head"}),
    (("block1.0", "classifier"), {"block1.0", "head"}), ({"head.bias", "table"}, {"head.bias", "table"}),
])  # fmt: skip
def test_a_name_is_a_part_or_a_path_of_a_module_or_tensor(names, paths):
    assert resolve(Toy(), names) == paths


@pytest.mark.parametrize("names, sentence", [
    ("head", r"fedper: personal is the text 'head'; write a list: \['head'\]"),
    ([], "fedper: personal names no module; name at least one"), (None, "fedper: personal is None; write a list"),
    ([["head"]], "write a list of names"),
    (["encodr"], "'encodr', which is no part and no module of Toy; did you mean 'encoder'. It has encoder, "),
    (["zzz"], "no module of Toy; it has encoder, classifier"),
    (["block2.1"], "'block2.1', which is no part"),  # dropout holds no weights
    (["bloc"], "did you mean"),  # no prefixes of names
    ([""], "names ''"), (["odd"], "Toy declares part 'odd' as .*tail"), (["none"], "Toy declares part 'none'"),
])  # fmt: skip
def test_what_matches_nothing_is_refused_with_what_there_is(names, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve(Toy(), names, "fedper: personal")


def test_a_network_without_parts_has_its_modules():
    network = nn.Sequential(nn.Linear(1, 1))
    assert parts.parts_of(network) == {} and resolve(network, ["0"]) == {"0"}
    with pytest.raises(ValueError, match="'head', which is no part and no module of Sequential; it has 0"):
        resolve(network, ["head"])


def test_only_whole_names_count():
    assert inside("head.weight", ["head"]) and inside("head", ["head"]) and not inside("head_two.weight", ["head"])
    assert shared_paths(["a", "b.c"], ["a.x", "b"]) == ["a.x", "b.c"] and not shared_paths(["a"], ["ab"])


def test_a_frozen_part_has_no_gradient_and_its_buffers_are_fixed_in_copies_too():
    network = Toy()
    freeze(network, [])
    assert not fixed_tensors(network)
    freeze(network, ["encoder", "table"])
    encoder = {f"block1.0.{n}" for n in ("weight", "bias")} | {f"block2.0.{n}" for n in ("weight", "bias")}
    assert {n for n, p in network.named_parameters() if not p.requires_grad} == encoder
    statistics = {f"block1.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}
    assert fixed_tensors(network) == fixed_tensors(copy.deepcopy(network)) == encoder | statistics | {"table"}


def test_what_the_network_froze_itself_is_fixed_with_its_statistics():
    network = Toy()
    network.block1.requires_grad_(False)
    assert set(fixed_tensors(network)) == {n for n in network.state_dict() if "block1" in n}
    other = Toy()
    other.head.weight.requires_grad_(False)  # half of a layer; statistics elsewhere go on
    assert fixed_tensors(other) == {"head.weight"}


def test_parameters_are_sorted_by_the_rate_of_their_part():
    network = Toy()
    groups = by_learning_rate(network, {"head": 0.5, "block2": 0.0})
    expected = [(None, list(network.block1.parameters())), (0.5, [network.head.weight, network.head.bias])]
    expected.append((0.0, [network.block2[0].weight, network.block2[0].bias]))
    for (rate, result), (wanted, parameters) in zip(groups, expected, strict=True):
        assert rate == wanted and all(a is b for a, b in zip(result, parameters, strict=True))
    assert [rate for rate, _ in by_learning_rate(network, {"encoder": 1.0, "head": 2.0})] == [1.0, 2.0]


@pytest.mark.parametrize("rates, sentence", [
    ({"encodr": 1.0}, r"training\.learning_rates names 'encodr'"),
    ({"encoder": 1.0, "block1.0": 2.0}, r"block1\.0 and encoder both contain block1\.0"),
    ({"block2.0": 1.0, "encoder": 2.0}, r"encoder and block2\.0 both contain block2\.0"),
    ({"table": 1.0}, "table has no trained parameters"),
])  # fmt: skip
def test_rates_of_unknown_overlapping_or_untrained_parts_are_refused(rates, sentence):
    with pytest.raises(ValueError, match=sentence):
        by_learning_rate(Toy(), rates)


def test_unknown_frozen_parts_and_a_network_of_which_nothing_trains_are_refused():
    network = Toy()
    with pytest.raises(ValueError, match=r"training\.fixed names 'encodr'.* did you mean 'encoder'"):
        freeze(network, ["encodr"])
    with pytest.raises(ValueError, match=r"training\.fixed is the text 'encoder'"):
        freeze(network, "encoder")
    freeze(network, ["encoder", "head"])
    with pytest.raises(ValueError, match="no parameters are left to train"):
        by_learning_rate(network, {})
