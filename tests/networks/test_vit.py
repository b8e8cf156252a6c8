"""The ViT encoder and frame classifier: torch's attention, MAE's positions and initial values, frozen parts, heads."""

import math

import pytest
import torch
from torch import nn

from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.parts import fixed_tensors
from shared_components.networks.vit import Block, positions_at, sine_positions
from shared_components.networks.vit_frames import VitFrames


def test_a_block_is_torchs_attention_and_a_perceptron_around_layer_normalisations():
    torch.manual_seed(0)
    block, x = Block(12, 3).eval(), torch.randn(2, 5, 12)
    other = nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True, layer_norm_eps=1e-6)
    pairs = {
        "self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.proj.", "linear1.": "mlp.fc1.",
        "linear2.": "mlp.fc2.", "norm1.": "norm1.", "norm2.": "norm2.",
    }  # fmt: skip
    own = block.state_dict()
    other.load_state_dict({a + kind: own[b + kind] for a, b in pairs.items() for kind in ("weight", "bias")})
    torch.testing.assert_close(block(x), other.train()(x))


def test_positions_are_sines_and_cosines_of_column_and_row():
    """MAE's `get_2d_sincos_pos_embed`, one number at a time."""
    width, rows, columns = 16, 2, 3
    result = sine_positions(width, rows, columns)
    assert result.shape == (1, 1 + rows * columns, width) and not result[0, 0].any()
    for y in range(rows):
        for x in range(columns):
            for channel in range(width):
                place = x if channel < width // 2 else y
                within, quarter = channel % (width // 2), width // 4
                angle = place / 10_000 ** ((within % quarter) / quarter)
                expected = math.sin(angle) if within < quarter else math.cos(angle)
                assert float(result[0, 1 + y * columns + x, channel]) == pytest.approx(expected, abs=1e-6)


def test_positions_of_a_coarser_grid_are_means_and_those_of_the_own_grid_are_untouched():
    positions = sine_positions(8, 4, 4)
    assert positions_at(positions, 4, 4, 4) is positions
    result = positions_at(positions, 4, 2, 2)
    torch.testing.assert_close(result[0, 1], positions[0, 1:].reshape(4, 4, 8)[:2, :2].mean((0, 1)))
    assert torch.equal(result[0, 0], positions[0, 0])


def test_dropped_branches_keep_the_expectation_in_training_alone():
    torch.manual_seed(0)
    block, x = Block(8, 2, drop_path=0.5), torch.randn(1, 3, 8).expand(4000, -1, -1)
    result = block.train()._dropped(torch.ones(4000, 1, 1))
    assert set(result.unique().tolist()) == {0.0, 2.0} and abs(float(result.mean()) - 1) < 0.1
    assert torch.equal(block.eval()._dropped(x), x)


def test_linear_layers_and_patches_start_with_xaviers_and_tokens_with_small_normal_values():
    torch.manual_seed(0)
    network = VitFrames(drop_path=0.0)
    kernel = network.patch_embed.proj.weight
    for weight, fans in ((kernel, 192 + 192), (network.blocks[0].attn.qkv.weight, 192 + 576)):
        bound = math.sqrt(6 / fans)
        assert 0.99 * bound < float(weight.abs().max()) <= bound
    assert not network.blocks[0].attn.qkv.bias.any()
    assert 0.015 < float(network.cls_token.std()) < 0.025


def test_positions_are_always_fixed_and_the_encoder_where_it_is_not_trained():
    assert fixed_tensors(VitFrames()) == {"pos_embed"}
    network = VitFrames(trained_encoders=False).train()
    assert set(network.state_dict()) - fixed_tensors(network) == {"head.weight", "head.bias"}
    network(torch.rand(1, 3, 64, 64)).sum().backward()
    assert network.head.weight.grad is not None and network.blocks[0].mlp.fc1.weight.grad is None


@pytest.mark.parametrize(("arguments", "shape", "words"), [
    ({"architecture": "huge"}, (), "architecture 'huge' is unknown; use one of tiny, base"),
    ({"size": 60}, (), "size is 60; give a multiple of 8, such as 64"), ({"drop_path": 1.0}, (), "drop_path is 1.0"),
    ({"trained_encoders": "no"}, (), "trained_encoders is 'no'; it is true or false"),
    ({"pool": "max"}, (), "pool 'max' is unknown; use one of token, mean"),
    *(({}, shape, r"multiples of 8, and got \[") for shape in ((3, 64, 64), (1, 4, 64, 64), (1, 3, 60, 64))),
])  # fmt: skip
def test_wrong_arguments_and_another_shape_are_refused(arguments, shape, words):
    with pytest.raises(ValueError, match=words):
        VitFrames(**arguments)(torch.zeros(shape))


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


def test_only_the_head_is_new_beside_the_autoencoders_encoder_and_it_predicts_next_to_nothing():
    own, learnt = VitFrames().state_dict(), MaeVit().state_dict()
    assert set(own) - set(learnt) == {"head.weight", "head.bias"}
    assert all(learnt[name].shape == own[name].shape for name in own if name in learnt)
    assert float(VitFrames().eval()(torch.rand(2, 3, 64, 64)).detach().abs().max()) < 0.01
