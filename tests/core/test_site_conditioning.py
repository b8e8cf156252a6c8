"""What a method may tell a site's network: of the site, and only where it stays."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shared_components.core.method import SiteFacts, load_method
from shared_components.core.partition import Role, Slice, partition_network
from shared_components.core.site_conditioning import condition_on_site, is_name
from shared_components.data.site import SiteError
from tests.changed_method import changed

SITE = SimpleNamespace(path=Path("/data/a/site.yaml"), text="porcine", text_vectors=Path("/v"), text_encoder=None)
KNOWN = {"dataset": "scared", "task": "depth", "classes": ()}
vars(SITE).update(KNOWN)


class Told(nn.Module):
    """One trained layer, which is GLOBAL, and a buffer, which is LOCAL."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("indicator", torch.zeros(2))
        self.partition = partition_network(
            self, lambda network: lambda name, *_: [Slice(Role.LOCAL if name == "indicator" else Role.GLOBAL)]
        )


def run(tell, *, network=None, again=False):
    network = network or Told()
    method = changed(load_method("fedavg"), local_condition_on_site=tell)
    return condition_on_site(method, network, network.partition, SITE, name="ward", number=2, count=4, again=again)


def refused(words, tell, **options):
    with pytest.raises(SiteError, match=rf"^site ward, /data/a/site\.yaml: {words}") as error:
        run(tell, **options)
    assert "\n" not in str(error.value)


def saying(values, name="an encoder"):
    def tell(network, facts):
        network.indicator.copy_(torch.tensor(values))
        return name

    return tell


def test_the_method_receives_the_facts_of_the_site_and_returns_the_encoder():
    network = Told()
    assert run(None, network=network) == "" and not network.indicator.any()
    heard = []
    network = Told()

    def tell(given, facts):
        heard.append((given, facts))
        return "clip 0"

    assert run(tell, network=network) == "clip 0"
    assert heard == [(network, SiteFacts("porcine", 2, 4, Path("/v"), None, **KNOWN))]


def test_only_refusals_of_a_site_become_site_errors():
    def tell(network, facts):
        raise ValueError("has no vector of 'porcine'")

    refused("has no vector of 'porcine'$", tell)
    with pytest.raises(ZeroDivisionError):
        run(lambda network, facts: 1 / 0)


@pytest.mark.parametrize("name", [None, 1, True, b"clip", "a" * 101, "two\nlines", "clip\n", "näme"])
def test_a_name_that_is_none_is_refused(name):
    assert not is_name(name)
    refused("fedavg names the encoder ", saying([1.0, 0.0], name))


@pytest.mark.parametrize("name", ["", "one_hot", "sentence " + "f" * 64, "a" * 100])
def test_short_printable_texts_are_names(name):
    assert is_name(name) and run(saying([1.0, 0.0], name)) == name


def test_only_local_pieces_may_change_also_of_a_diverged_network():
    def tell(network, facts):
        with torch.no_grad():
            network.layer.weight[0, 1] += 1e-6
        return ""

    refused("fedavg writes the site's text into layer.weight, which is not LOCAL", tell)
    network = Told()
    with torch.no_grad():
        network.layer.bias.fill_(float("nan"))
    assert run(saying([1.0, 0.0]), network=network) == "an encoder"


@pytest.mark.parametrize("change, kept", [(0.0, True), (1e-5, True), (1e-2, False)])
def test_a_network_that_was_told_before_is_told_the_same_up_to_the_last_bits(change, kept):
    network = Told()
    run(saying([0.6, 0.8]), network=network)
    if kept:
        run(saying([0.6 + change, 0.8]), network=network, again=True)
    else:
        refused(
            "text, text_vectors or text_encoder have changed", saying([0.6 + change, 0.8]), network=network, again=True
        )
        run(saying([0.6 + change, 0.8]), network=network)
