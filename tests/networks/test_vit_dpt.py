"""The DPT decoder: its published size, which blocks it reads, frames of any size, and its layers worked plainly."""

import torch
from torch.nn import functional as F

from shared_components.networks.vit_dpt import Fusion, Readout, VitDpt, hooks


def test_the_blocks_read_are_those_of_the_paper_and_of_a_shallow_encoder_as_deep():
    assert hooks(12) == [2, 5, 8, 11] and hooks(24) == [5, 11, 17, 23]
    assert hooks(6) == [1, 2, 4, 5] and hooks(4) == [0, 1, 2, 3]


def test_the_decoder_has_the_published_number_of_parameters():
    """25.05 million at ViT-B; the published code never uses one residual unit of the coarsest level."""
    with torch.device("meta"):
        network = VitDpt(architecture="base", out_channels=4)
    unused = 2 * (256 * 256 * 9 + 2 * 256)
    decoder = (*network.parts["decoder"], "head")
    result = sum(p.numel() for name, p in network.named_parameters() if name.startswith(decoder))
    assert result + unused == 25_051_076


def test_logits_have_the_frames_size_and_maps_strides_of_a_quarter_of_a_patch_to_two_patches():
    network = VitDpt(out_channels=5).eval()
    for height, width in ((64, 64), (64, 112), (24, 40)):
        assert network(torch.rand(1, 3, height, width)).shape == (1, 5, height, width)
    maps = network._maps(torch.rand(1, 3, 64, 112))
    assert [tuple(m.shape[1:]) for m in maps] == [(24, 32, 56), (48, 16, 28), (96, 8, 14), (192, 4, 7)]
    with torch.device("meta"):
        network = VitDpt(architecture="base", out_channels=9).eval()
        assert network(torch.rand(1, 3, 256, 448)).shape == (1, 9, 256, 448)


def test_the_readout_joins_the_class_token_to_each_patch():
    torch.manual_seed(0)
    readout, tokens = Readout(3), torch.randn(1, 4, 3)
    for n in range(3):
        joined = torch.cat([tokens[0, 1 + n], tokens[0, 0]])
        expected = F.gelu(readout.project.weight @ joined + readout.project.bias)
        torch.testing.assert_close(readout(tokens)[0, n], expected)


def test_levels_are_added_before_they_are_refined():
    torch.manual_seed(0)
    fuse = Fusion(2, 4, coarsest=False).eval()
    level, coarser = torch.randn(1, 2, 4, 6), torch.randn(1, 4, 4, 6)
    summed = fuse.refine(coarser + fuse.beside(F.conv2d(level, fuse.enter.weight, padding=1)))
    expected = fuse.leave(F.interpolate(summed, size=(8, 12), mode="bilinear", align_corners=True))
    torch.testing.assert_close(fuse(level, coarser), expected)


def test_every_parameter_is_trained_and_the_last_normalisation_is_not_there():
    network = VitDpt()
    network(torch.rand(2, 3, 32, 32)).square().mean().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)
    assert not any(name.startswith("norm.") for name in network.state_dict())
