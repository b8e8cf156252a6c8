"""TorchScript of every bundle's network: equal outputs, or an error that the card mentions."""

import pytest
import torch

from shared_components.core.bundle import load_bundle
from shared_components.networks.bundle_config import build_network, bundle_names, bundles_folder

FOLLOWS_BOXES = ["surgfed"]
COMMAND = "python -m monai.bundle ckpt_export"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def network_of(bundle):
    torch.manual_seed(0)
    return build_network(load_bundle(bundle).network).eval()


def inputs(network):
    """Return images of the positions' size, images of another size, and a clip."""
    result = [torch.rand(2, 3, 64, 64), torch.rand(1, 3, 64, 96)]
    return [*result, torch.rand(1, 4, 3, 64, 64)] if getattr(network, "takes_clips", False) else result


@pytest.mark.parametrize("bundle", [name for name in bundle_names() if name not in FOLLOWS_BOXES])
def test_a_bundles_network_becomes_a_torchscript_that_gives_equal_outputs(bundle):
    network = network_of(bundle)
    exported = torch.jit.script(network)
    with torch.no_grad():
        assert all(torch.equal(exported(image), network(image)) for image in inputs(network))
    assert network.state_dict().keys() <= exported.state_dict().keys()


def test_hidden_patches_are_restored_alike_by_a_torchscript_and_wrong_ones_refused():
    network = network_of("fl_endovit")
    exported = torch.jit.script(network)
    hidden = torch.zeros(2, 64, 64, dtype=torch.bool)
    hidden[:, :16, 8:40] = True
    image = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(exported(image, hidden), network(image, hidden))
    hidden[0, 56:, 56:] = True
    for one, error in ((network, ValueError), (exported, torch.jit.Error)):
        with pytest.raises(error, match=r"have 8 to 9 hidden patches"):
            one(image, hidden)


@pytest.mark.parametrize("bundle", FOLLOWS_BOXES)
def test_a_network_that_follows_boxes_says_that_it_is_not_exported(bundle):
    with pytest.raises(ValueError, match="has a memory across frames and cannot be exported to TorchScript; use"):
        torch.jit.script(network_of(bundle))


def test_the_guide_of_bundles_has_the_command_of_the_export_and_names_the_exceptions():
    export = (bundles_folder() / "README.md").read_text().partition("### Export")[2].partition("\n## ")[0]
    assert COMMAND in export and [name for name in bundle_names() if f"`{name}`" in export] == FOLLOWS_BOXES
    cards = {name: (bundles_folder() / name / "docs" / "README.md").read_text() for name in bundle_names()}
    assert [name for name, text in cards.items() if "exclude_verify_torchscript_list" in text] == FOLLOWS_BOXES
