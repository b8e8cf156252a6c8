"""The masked autoencoder: official names and counts, masking, and a plain reimplementation."""

import pytest
import torch
from torch.nn import functional as F

from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.parts import fixed_tensors
from shared_components.networks.protocols import SeesVisible, provides
from shared_components.networks.tiny import Tiny

BLOCK = """norm1.weight norm1.bias attn.qkv.weight attn.qkv.bias attn.proj.weight attn.proj.bias norm2.weight norm2.bias
mlp.fc1.weight mlp.fc1.bias mlp.fc2.weight mlp.fc2.bias""".split()
OTHERS = """cls_token pos_embed mask_token decoder_pos_embed patch_embed.proj.weight patch_embed.proj.bias norm.weight
norm.bias decoder_embed.weight decoder_embed.bias decoder_norm.weight decoder_norm.bias decoder_pred.weight
decoder_pred.bias""".split()
"""Names of facebookresearch/mae and of EndoViT, by hand from their modules."""


def weightless(**arguments):
    with torch.device("meta"):
        return MaeVit(**arguments)


def counted(network):
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(("architecture", "trained", "fixed"), [
    ("base", 111_655_680, 197 * (768 + 512)), ("tiny", 2_967_936, 65 * (192 + 96)),
])  # fmt: skip
def test_counts_of_parameters_are_those_of_the_published_sizes(architecture, trained, fixed):
    network = weightless(architecture=architecture)
    assert counted(network) == trained
    assert fixed_tensors(network) == {"pos_embed", "decoder_pos_embed"}
    assert sum(network.state_dict()[name].numel() for name in fixed_tensors(network)) == fixed


def test_the_state_has_the_official_names_and_shapes_at_the_real_size():
    state = weightless(architecture="base").state_dict()
    blocks = [f"blocks.{n}.{name}" for n in range(12) for name in BLOCK]
    decoder_blocks = [f"decoder_blocks.{n}.{name}" for n in range(8) for name in BLOCK]
    assert set(state) == {*OTHERS, *blocks, *decoder_blocks}
    shapes = {
        "pos_embed": (1, 197, 768), "decoder_pos_embed": (1, 197, 512), "cls_token": (1, 1, 768),
        "mask_token": (1, 1, 512), "patch_embed.proj.weight": (768, 3, 16, 16),
        "blocks.11.attn.qkv.weight": (2304, 768), "decoder_embed.weight": (512, 768),
        "decoder_blocks.7.mlp.fc1.weight": (2048, 512), "decoder_pred.weight": (768, 512),
    }  # fmt: skip
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return MaeVit(size=32).eval()


def hidden(*patches, count=1):
    mask = torch.zeros(count, 4, 4, dtype=torch.bool)
    for row, column in patches:
        mask[:, row, column] = True
    return mask.repeat_interleave(8, 1).repeat_interleave(8, 2)


def test_it_is_the_autoencoder_of_the_paper_computed_plainly(network):
    """Compute patches one by one; the order of visible patches does not matter to attention."""
    torch.manual_seed(2)
    image, state = torch.rand(1, 3, 32, 32), network.state_dict()
    places = [(row, column) for row in range(4) for column in range(4)]
    unseen = [(0, 1), (2, 2), (3, 0)]
    mean, deviation = torch.tensor([[0.3464, 0.2280, 0.2228], [0.2520, 0.2128, 0.2093]])[..., None, None]
    normal = (image - mean) / deviation
    kernel = state["patch_embed.proj.weight"].reshape(192, -1)
    tokens = {None: state["cls_token"][0, 0] + state["pos_embed"][0, 0]}
    for number, (row, column) in enumerate(places):
        pixels = normal[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].reshape(-1)
        tokens[row, column] = kernel @ pixels + state["patch_embed.proj.bias"] + state["pos_embed"][0, 1 + number]
    seen = [None, *[place for place in reversed(places) if place not in unseen]]
    x = torch.stack([tokens[place] for place in seen])[None]
    for block in network.blocks:
        x = block(x)
    encoded = dict(zip(seen, network.decoder_embed(network.norm(x))[0], strict=True))
    given = [encoded.get(place, state["mask_token"][0, 0]) for place in [None, *places]]
    y = torch.stack(given)[None] + state["decoder_pos_embed"]
    for block in network.decoder_blocks:
        y = block(y)
    y = F.layer_norm(y, (96,), state["decoder_norm.weight"], state["decoder_norm.bias"], 1e-6)
    predicted = network(image, hidden(*unseen))
    for number, (row, column) in enumerate(places):
        patch = network.decoder_pred(y[0, 1 + number]).reshape(8, 8, 3)  # the colour is last
        result = predicted[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        torch.testing.assert_close(result, patch.permute(2, 0, 1), atol=1e-5, rtol=1e-4)


def test_pictures_of_a_batch_do_not_see_each_other_and_have_masks_of_their_own(network):
    torch.manual_seed(3)
    images = torch.rand(2, 3, 32, 32)
    masks = torch.cat([hidden((0, 0), (1, 1)), hidden((3, 2), (2, 0))])
    singles = [network(images[i : i + 1], masks[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(network(images, masks), torch.cat(singles))


def test_every_trained_parameter_gets_a_gradient_and_oblong_pictures_are_taken(network):
    network.zero_grad()
    network(torch.rand(1, 3, 16, 40), hidden((0, 0))[:, :16, :].repeat(1, 1, 2)[:, :, :40]).square().mean().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)
    network.zero_grad()


def test_different_counts_of_hidden_patches_and_other_colours_are_refused(network):
    masks = torch.cat([hidden((0, 0)), hidden((0, 0), (0, 1))])
    with pytest.raises(ValueError, match=r"have 1 to 2 hidden patches; hide equally many in each"):
        network(torch.rand(2, 3, 32, 32), masks)
    with pytest.raises(ValueError, match="out_channels is 4, but an image has 3"):
        MaeVit(out_channels=4)
    assert provides(network, SeesVisible) and not provides(Tiny(), SeesVisible)
