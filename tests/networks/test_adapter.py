"""Networks of other libraries: parts, outputs, supported methods, and refused networks."""

import copy
import json

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.core.method import load_method, method_names
from shared_components.core.partition import Role, partition_network
from shared_components.core.training import reason_for_misfit
from shared_components.networks.adapter import check_outputs, definition_of
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.networks.network_arguments import differing
from shared_components.networks.network_class import VARIABLE
from tests.federation.conftest import same
from tests.networks import own

NAMES = [name for name, found in vars(own).items() if isinstance(found, type)]
SECOND_PATH = {"fedas", "fedseg", "pfedsis"}
OTHERS = {"feddp": "query", "fedhca2": "'decoder'", "fedst": "one encoder's maps", "surgfed": "memory"}


def definition(name="Small", **arguments):
    return {"_target_": f"{own.HERE}.{name}", **arguments}


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.setenv(VARIABLE, ", ".join(f"{own.HERE}.{name}" for name in [*NAMES, "no_class"]))


def test_its_weights_and_names_are_those_of_the_class_itself():
    torch.manual_seed(3)
    plain = own.Small(num_classes=5, width=8)
    torch.manual_seed(3)
    network = build_network(definition(width=8), out_channels=5)
    assert type(network) is own.Small and same(network.state_dict(), plain.state_dict())
    after = torch.rand(1)
    torch.manual_seed(3)
    own.Small(num_classes=5, width=8)
    assert torch.equal(torch.rand(1), after), "looking for its last layers took random numbers"


def test_its_last_layers_are_what_follows_the_number_of_outputs():
    network = build_network(definition(), out_channels=3)
    assert network.parts == {"head": ("last",), "top": ("last",), "encoder": ("body",)}
    assert build_network(definition("Plain")).parts == {"head": ("last",), "top": ("last",)}  # it has an encoder
    assert copy.deepcopy(network).parts == network.parts
    assert network.with_classes(7).last.out_channels == 7
    assert weightless(definition(num_classes=6)).last.weight.is_meta


def test_what_a_class_declares_counts():
    network = build_network(definition("WithParts"))
    assert network.parts == {
        "head": ("last",), "top": ("body.1", "last"), "encoder": ("body",), "first": ("body.0",),
    }  # fmt: skip
    local = partition_network(network, load_method("fedper").partition).with_roles(Role.LOCAL)
    assert {name.rpartition(".")[0] for name in local} == {"body.1", "last"}
    with pytest.raises(ValueError, match=r"declares part 'top' as .*'neck'.*, which has no weights"):
        build_network(definition("WrongParts"))


def test_it_fits_all_methods_that_need_no_second_path_and_no_attention():
    network = build_network(definition())
    result = {name: reason_for_misfit(load_method(name), network) for name in method_names()}
    assert {name for name, why in result.items() if why} == SECOND_PATH | set(OTHERS)
    assert all("a network with a shared and a personal path" in result[name] for name in SECOND_PATH)
    assert all(word in result[name] for name, word in OTHERS.items())
    assert reason_for_misfit(load_method("fedhca2", decoders=[]), network) == ""
    plain = build_network(definition("Plain"))
    assert "Plain has no normalisation layers to keep at the site" in reason_for_misfit(load_method("fedbn"), plain)


@pytest.mark.parametrize("norm", ["BatchNorm2d", "InstanceNorm2d", "GroupNorm", "RMSNorm"])
def test_fedbn_keeps_normalisation_of_every_kind_that_has_tensors(norm):
    network = build_network(definition())
    layer = {
        "BatchNorm2d": torch.nn.BatchNorm2d(4), "InstanceNorm2d": torch.nn.InstanceNorm2d(4, affine=True),
        "GroupNorm": torch.nn.GroupNorm(2, 4), "RMSNorm": torch.nn.RMSNorm(4),
    }[norm]  # fmt: skip
    network.body[1] = layer
    local = partition_network(network, load_method("fedbn").partition).with_roles(Role.LOCAL)
    assert set(local) == {f"body.1.{name}" for name in layer.state_dict()} != set()


@pytest.mark.parametrize(("name", "sentence"), [
    ("Nothing", "Nothing has no parameters to train"),
    ("Twice", "Twice has one tensor under the names last.weight and again.weight"),
    ("Lazy", "Lazy: the size of last.weight is unknown"),
    ("Unheard", "num_classes of Unheard does not change the size of a last layer"),
    ("Endless", "Endless takes none of out_channels, num_classes, n_classes, classes"),
    ("Missing", "tests.networks.own.Missing cannot be imported .*install its package, or add its folder"),
    ("Strides", r"Strides has the attribute stride \(2, 2\); here it is a number of pixels: rename it"),
    ("Modules", "Modules has a module or a list named parts, a name with another meaning here; rename it"),
    ("no_class", "tests.networks.own.no_class is not a subclass of torch.nn.Module"),
])  # fmt: skip
def test_a_network_that_cannot_take_part_is_refused_when_it_is_built(name, sentence, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{own.HERE}.{name}")
    with pytest.raises(ValueError, match=f"^network_def: .*{sentence}") as error:
        build_network(definition(name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "size", "sentence"), [
    ("Halved", (16, 24), r"returns \[2, 3, 8, 12\] in training for frames \[2, 3, 16, 24\].* reads \[2, 3, 16, 24"),
    ("Listed", (16, 24), "returns a list in training, but a task reads one tensor .*deep supervision"),
    ("Eights", (20, 30), "does not take frames .*; set training.height: 16 and training.width: 32"),
    ("Grey", (16, 24), "does not take frames .*MONAI's networks with spatial_dims: 2 and in_channels: 3"),
    ("Soft", (16, 24), "returns probabilities in training, but a task reads logits; remove its softmax"),
])  # fmt: skip
def test_outputs_that_a_task_could_not_use_are_refused_with_the_remedy(name, size, sentence):
    network = build_network(definition(name), out_channels=3)
    with pytest.raises(ValueError, match=f"^network_def: {name} {sentence}") as error:
        check_outputs(network, channels=3, size=size)
    assert "\n" not in str(error.value)


def test_another_number_of_outputs_than_the_tasks_is_refused_and_a_look_changes_nothing():
    network = build_network(definition(), out_channels=3)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(1)
    check_outputs(network, channels=3, size=(16, 24))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after) and network.training
    assert same(before, network.state_dict())
    with pytest.raises(ValueError, match=r"returns \[2, 3, 16, 24\] .* the task reads \[2, 4, 16, 24\]"):
        check_outputs(network, channels=4, size=(16, 24))


def test_a_networks_description_makes_it_again():
    network = build_network(definition(width=8, num_classes=3))
    message = json.loads(json.dumps(definition_of(network)))
    assert message == {"class": f"{own.HERE}.Small", "width": 8} == differing(network, network)
    bundle = load_bundle("pvt_fpn", network=message)
    assert bundle.chosen == message and bundle.network == definition(width=8)
    again = build_network(bundle.network, out_channels=3)
    assert {n: v.shape for n, v in again.state_dict().items()} == {n: v.shape for n, v in network.state_dict().items()}
    assert definition_of(build_network(load_bundle("pvt_fpn").network)) == {}


@pytest.mark.parametrize(("given", "sentence"), [
    ({"num_classes": 3}, "num_classes is set by the site's task"),
    ({"wide": 3}, "unknown argument 'wide'; did you mean 'width'"),
    ({"width": "4"}, "width is '4'; it is a whole number"), ({"width": ["$exit()"]}, "width is the expression"),
    ({"width": {"_target_": "os.system"}}, "width has the key '_target_', which names code"),
    ({"width": {"a": float("nan")}}, "width is .*; write a text, a finite number"),
    ({"_target_": "os.system"}, "'_target_' is set by the bundle"),
])  # fmt: skip
def test_its_arguments_are_checked_as_those_of_ours(given, sentence):
    with pytest.raises(ValueError, match=f"^network: {sentence}"):
        load_bundle("pvt_fpn", network={"class": f"{own.HERE}.Small", **given})
