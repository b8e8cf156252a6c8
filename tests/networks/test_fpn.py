"""The decoder against a decoder written out with loops over the paper's figure."""

import torch
from torch.nn import functional as F

from shared_components.networks.fpn import FpnDecoder


def features(*channels: int) -> list[torch.Tensor]:
    return [torch.rand(2, width, 16 // 2**level, 24 // 2**level) for level, width in enumerate(channels)]


def reference(decoder: FpnDecoder, maps: list[torch.Tensor]) -> torch.Tensor:
    """Kirillov et al. 2019, Fig. 3, with functional calls and a loop from the coarsest map to the finest."""
    state = decoder.state_dict()
    merged, above = torch.zeros(()), None
    for level, x in enumerate(reversed(maps)):
        x = F.conv2d(x, state[f"lateral.{level}.weight"], state[f"lateral.{level}.bias"])
        above = x if above is None else x + above.repeat_interleave(2, -1).repeat_interleave(2, -2)
        y = above
        doublings = 3 - level
        for step in range(max(1, doublings)):
            prefix = f"segmentation.{level}.{step * 4}"
            norm = f"segmentation.{level}.{step * 4 + 1}"
            y = F.conv2d(y, state[f"{prefix}.weight"], padding=1)
            y = F.relu(F.group_norm(y, 32, state[f"{norm}.weight"], state[f"{norm}.bias"]))
            if doublings:
                size = (y.shape[-2] * 2, y.shape[-1] * 2)
                y = F.interpolate(y, size=size, mode="bilinear", align_corners=True)
        merged = merged + y
    return merged


def test_the_decoder_has_the_published_number_of_parameters():
    decoder = FpnDecoder((16, 32, 80, 128))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 1_690_368


def test_the_decoder_equals_the_paper_written_out():
    torch.manual_seed(0)
    decoder = FpnDecoder((16, 32, 80, 128)).eval()
    maps = features(16, 32, 80, 128)
    with torch.no_grad():
        assert torch.allclose(decoder(maps), reference(decoder, maps), atol=1e-5)


def test_dropout_zeroes_whole_channels_in_training_only():
    torch.manual_seed(0)
    decoder = FpnDecoder((2, 2, 2, 2), dropout=0.5)
    maps = features(2, 2, 2, 2)
    dropped = decoder(maps).abs().sum((2, 3)) == 0
    assert 0.3 < float(dropped.float().mean()) < 0.7
    assert not bool((decoder.eval()(maps).abs().sum((2, 3)) == 0).any())
