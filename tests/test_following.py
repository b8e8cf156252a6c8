"""The program that measures how SurgFed's weights follow objects without the selection of channels."""

import pytest
import torch

from evidence.following import first_and_later
from shared_components.core.bundle import load_bundle
from shared_components.networks.bundle_config import build_network
from shared_components.weights.pretraining.tracks import NETWORK


def test_the_first_frame_and_the_mean_of_the_later_ones_are_told_apart():
    assert first_and_later({NETWORK: [0.5, 0.2, 0.4], "objects": [1, 1, 1]}) == pytest.approx((0.5, 0.3))


@pytest.mark.slow
def test_a_network_whose_selection_is_taken_away_is_the_one_without_text():
    torch.manual_seed(0)
    network = build_network(load_bundle("surgfed").network).eval()
    plain = build_network(load_bundle("surgfed", network={"text": "none"}).network).eval()
    plain.load_state_dict({name: value for name, value in network.state_dict().items() if name in plain.state_dict()})
    clip = torch.rand(1, 2, 3, 64, 64)
    with torch.no_grad():
        selected, network.selection = network(clip), None
        assert torch.equal(network(clip), plain(clip)) and not torch.equal(selected, plain(clip))
