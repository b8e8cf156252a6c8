"""Fused decoders: the logits of the decoders that they are made of, by fewer multiplications."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from shared_components.networks.fused_fpn import fuse, upsampled_kernel
from shared_components.networks.pvt_fpn import PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny


def test_a_kernel_of_ones_counts_how_often_a_pixel_is_copied_under_it():
    """Enlarged twice, a row lies under three kernel rows: once before and after itself, twice on each of its own."""
    rows = torch.tensor([1.0, 2, 2, 1])
    assert torch.equal(upsampled_kernel(torch.ones(1, 1, 3, 3), 2)[0, 0], torch.outer(rows, rows))


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_transposed_convolution_is_that_of_the_enlarged_map(factor):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 4, 5).double(), torch.randn(6, 3, 3, 3).double()
    due = F.conv2d(F.interpolate(x, scale_factor=factor, mode="nearest"), weight, padding=1)
    found = F.conv_transpose2d(x, upsampled_kernel(weight, factor), stride=factor, padding=1)
    torch.testing.assert_close(found, due)


@pytest.mark.parametrize("kind", [PvtFpn, PvtFpnClips])
def test_a_fused_network_has_the_logits_that_it_had_before(kind):
    """Norms and biases are not those of the beginning, which are 1 and 0."""
    torch.manual_seed(0)
    network = kind(out_channels=5)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    image = torch.rand(2, 3, 96, 64)
    with torch.no_grad():
        before = network.eval()(image)
    assert fuse(network.train()) is network and not network.training
    found = network(image)
    torch.testing.assert_close(found, before, rtol=1e-4, atol=1e-5)
    assert not found.requires_grad


def test_a_fused_network_multiplies_half_as_often():
    network, counts = PvtFpn().eval(), []
    for prepare in (nn.Identity(), fuse):
        network = prepare(network)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(torch.rand(1, 3, 64, 96))
        counts.append(counter.get_total_flops())
    assert 0.45 < counts[1] / counts[0] < 0.55


def test_a_network_without_such_decoders_stays_as_it_is():
    network = Tiny()
    before = list(network.named_modules())
    assert fuse(network) is network and network.training and list(network.named_modules()) == before
