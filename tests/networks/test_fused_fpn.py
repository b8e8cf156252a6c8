"""Fused decoders: the same logits with fewer multiplications."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shared_components.networks import pvt_fpn
from shared_components.networks.fused_fpn import fuse
from shared_components.networks.pvt_fpn import FpnDecoder, PvtFpn
from shared_components.networks.pvt_fpn_clips import PvtFpnClips
from shared_components.networks.tiny import Tiny


def test_merged_convolutions_give_a_decoder_the_map_and_the_gradients_that_it_has_without(monkeypatch):
    torch.manual_seed(0)
    decoder = FpnDecoder((2, 3, 4, 5), dropout=0.0).double()
    for parameter in decoder.parameters():  # norms and biases are not those of the beginning, which are 1 and 0
        nn.init.normal_(parameter, std=0.3)
    maps = [torch.randn(2, width, 16 >> i, 24 >> i).double().requires_grad_() for i, width in enumerate((2, 3, 4, 5))]
    weight = torch.randn(2, 128, 16, 24).double()
    result = []
    for pixels in (2 * 16 * 24 + 1, 2 * 16 * 24):
        monkeypatch.setattr(pvt_fpn, "MERGED_FROM", pixels)
        with FlopCounterMode(display=False) as counter:
            merged = decoder(maps)
        gradients = torch.autograd.grad(merged, [*decoder.parameters(), *maps], weight)
        result.append((counter.get_total_flops(), merged, gradients))
    (more, *plain), (fewer, *quick) = result
    assert fewer < more, "the second is of merged convolutions"
    torch.testing.assert_close(quick, plain)
    with torch.no_grad():
        assert torch.equal(decoder(maps), plain[0]), "what needs no gradient is not merged"


@pytest.mark.parametrize("kind", [PvtFpn, PvtFpnClips])
def test_a_fused_network_has_the_logits_that_it_had_before(kind):
    """Norms and biases differ from their initial values 1 and 0."""
    torch.manual_seed(0)
    network = kind(out_channels=5)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, std=0.3)
    image = torch.rand(2, 3, 96, 64)
    with torch.no_grad():
        before = network.eval()(image)
    assert fuse(network.train()) is network and not network.training
    result = network(image)
    torch.testing.assert_close(result, before, rtol=1e-4, atol=1e-5)
    assert not result.requires_grad


def test_a_fused_network_multiplies_half_as_often():
    network, counts = PvtFpn().eval(), []
    for prepare in (nn.Identity(), fuse):
        network = prepare(network)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(torch.rand(1, 3, 64, 96))
        counts.append(counter.get_total_flops())
    assert 0.5 < counts[1] / counts[0] < 0.6


def test_a_network_without_such_decoders_stays_as_it_is():
    network = Tiny()
    before = list(network.named_modules())
    assert fuse(network) is network and network.training and list(network.named_modules()) == before
