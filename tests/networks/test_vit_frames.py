"""Labels of frames: what the head reads, and that it alone is new."""

import pytest
import torch

from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.vit_frames import VitFrames


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_head_reads_the_normalised_token_or_the_normalised_mean_of_the_patches(pool):
    torch.manual_seed(0)
    network, image = VitFrames(out_channels=7, pool=pool, size=32).eval(), torch.rand(2, 3, 32, 32)
    x = torch.cat([(network.cls_token + network.pos_embed[:, :1]).expand(2, -1, -1), network.embed(image)], 1)
    for block in network.blocks:
        x = block(x)
    read = x[:, 0] if pool == "token" else sum(x[:, n] for n in range(1, 17)) / 16
    expected = (read - read.mean(1, keepdim=True)) / (read.var(1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(network.features(image), expected, atol=1e-5, rtol=1e-4)
    assert network(image).shape == (2, 7)
    torch.testing.assert_close(network(image), network.features(image) @ network.head.weight.T + network.head.bias)


def test_the_encoder_has_the_autoencoders_names_and_shapes():
    own, learnt = VitFrames().state_dict(), MaeVit().state_dict()
    assert set(own) - set(learnt) == {"head.weight", "head.bias"}
    assert all(learnt[name].shape == own[name].shape for name in own if name in learnt)


def test_a_new_head_says_next_to_nothing():
    assert float(VitFrames().eval()(torch.rand(2, 3, 64, 64)).detach().abs().max()) < 0.01
