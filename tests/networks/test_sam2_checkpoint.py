"""Published SAM2 weights: both layouts, and errors for other sizes and tensors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Sam2VideoModel

from shared_components.networks.checkpoints import CheckpointError
from shared_components.networks.sam2_architectures import ARCHITECTURES, configuration
from shared_components.networks.sam2_checkpoint import load_sam2, size_of
from shared_components.networks.sam2_video import Sam2Clips
from tests.networks.conftest import TOY

# Meta's names, by hand from the modules of its code, beside those of transformers; both with .weight and .bias. Each
# line has a prefix in both, and what follows it in both
PAIRS = """
image_encoder.trunk vision_encoder.backbone: patch_embed.proj patch_embed.projection
image_encoder.trunk.blocks.B vision_encoder.backbone.blocks.B: norm1 layer_norm1, norm2 layer_norm2, attn.qkv attn.qkv
image_encoder.trunk.blocks.B vision_encoder.backbone.blocks.B: attn.proj attn.proj, proj proj
image_encoder.trunk.blocks.B.mlp vision_encoder.backbone.blocks.B.mlp: layers.0 proj_in, layers.1 proj_out
image_encoder.neck.convs.Q vision_encoder.neck.convs: conv Q
memory_attention.layers.L memory_attention.layers.L: self_attn.P self_attn.P, self_attn.out_proj self_attn.o_proj
memory_attention.layers.L memory_attention.layers.L: cross_attn_image.P cross_attn_image.P, norm1 layer_norm1
memory_attention.layers.L memory_attention.layers.L: cross_attn_image.out_proj cross_attn_image.o_proj
memory_attention.layers.L memory_attention.layers.L: linear1 linear1, linear2 linear2, norm2 layer_norm2
memory_attention memory_attention: norm layer_norm, layers.L.norm3 layers.L.layer_norm3
memory_encoder.mask_downsampler.encoder memory_encoder.mask_downsampler.layers: 0 0.conv, 1 0.layer_norm, 3 1.conv
memory_encoder.mask_downsampler.encoder memory_encoder.mask_downsampler.layers: 4 1.layer_norm, 6 2.conv, 7 2.layer_norm
memory_encoder.mask_downsampler.encoder memory_encoder.mask_downsampler.layers: 9 3.conv, 10 3.layer_norm
memory_encoder memory_encoder: mask_downsampler.encoder.12 mask_downsampler.final_conv, out_proj projection
memory_encoder memory_encoder: pix_feat_proj feature_projection
memory_encoder.fuser.layers.L memory_encoder.memory_fuser.layers.L: dwconv depthwise_conv, norm layer_norm
memory_encoder.fuser.layers.L memory_encoder.memory_fuser.layers.L: pwconv1 pointwise_conv1, pwconv2 pointwise_conv2
sam_prompt_encoder prompt_encoder: not_a_point_embed not_a_point_embed, no_mask_embed no_mask_embed
sam_prompt_encoder.mask_downscaling prompt_encoder.mask_embed: 0 conv1, 1 layer_norm1, 3 conv2, 4 layer_norm2, 6 conv3
sam_mask_decoder.transformer.layers.L mask_decoder.transformer.layers.L: self_attn.P self_attn.P, A.P A.P
sam_mask_decoder.transformer.layers.L mask_decoder.transformer.layers.L: self_attn.out_proj self_attn.o_proj
sam_mask_decoder.transformer.layers.L mask_decoder.transformer.layers.L: A.out_proj A.o_proj, normN layer_normN
sam_mask_decoder.transformer.layers.L.mlp mask_decoder.transformer.layers.L.mlp: layers.0 proj_in, layers.1 proj_out
sam_mask_decoder.transformer mask_decoder.transformer: F.P F.P, F.out_proj F.o_proj
sam_mask_decoder.transformer mask_decoder.transformer: norm_final_attn layer_norm_final_attn
sam_mask_decoder mask_decoder: iou_token iou_token, mask_tokens mask_tokens, obj_score_token obj_score_token
sam_mask_decoder mask_decoder: conv_s0 conv_s0, conv_s1 conv_s1, output_upscaling.1 upscale_layer_norm
sam_mask_decoder mask_decoder: output_upscaling.0 upscale_conv1, output_upscaling.3 upscale_conv2
sam_mask_decoder.output_hypernetworks_mlps.Q.layers mask_decoder.output_hypernetworks_mlps.Q: 0 proj_in, 1 layers.0
sam_mask_decoder.output_hypernetworks_mlps.Q.layers mask_decoder.output_hypernetworks_mlps.Q: 2 proj_out
sam_mask_decoder.iou_prediction_head.layers mask_decoder.iou_prediction_head: 0 proj_in, 1 layers.0, 2 proj_out
sam_mask_decoder.pred_obj_score_head.layers mask_decoder.pred_obj_score_head: 0 proj_in, 1 layers.0, 2 proj_out
obj_ptr_proj.layers object_pointer_proj: 0 proj_in, 1 layers.0, 2 proj_out
"""
SINGLE = {
    **{f"mask_downsample.{kind}": f"mask_downsample.{kind}" for kind in ("weight", "bias")},
    **{f"obj_ptr_tpos_proj.{n}": f"temporal_positional_encoding_projection_layer.{n}" for n in ("weight", "bias")},
    "image_encoder.trunk.pos_embed": "vision_encoder.backbone.pos_embed",
    "image_encoder.trunk.pos_embed_window": "vision_encoder.backbone.pos_embed_window",
    "memory_encoder.fuser.layers.0.gamma": "memory_encoder.memory_fuser.layers.0.scale",
    "memory_encoder.fuser.layers.1.gamma": "memory_encoder.memory_fuser.layers.1.scale",
    "maskmem_tpos_enc": "memory_temporal_positional_encoding", "no_mem_embed": "no_memory_embedding",
    "no_mem_pos_enc": "no_memory_positional_encoding", "no_obj_ptr": "no_object_pointer",
    "no_obj_embed_spatial": "occlusion_spatial_embedding_parameter",
    "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix":
    "prompt_encoder.shared_embedding.positional_embedding",
}  # fmt: skip
LETTERS = {
    "B": [str(n) for n in range(5)], "Q": list("0123"), "L": list("01"), "P": ["q_proj", "k_proj", "v_proj"],
    "A": ["cross_attn_token_to_image", "cross_attn_image_to_token"], "N": list("1234"),
    "F": ["final_attn_token_to_image"],
}  # fmt: skip


def expanded(pair: tuple[str, str]) -> list[tuple[str, str]]:
    """Write the letters of a pair of names out."""
    for letter, values in LETTERS.items():
        if letter in pair[0]:
            pairs = [(pair[0].replace(letter, value), pair[1].replace(letter, value)) for value in values]
            return [names for replaced in pairs for names in expanded(replaced)]
    return [pair]


def of_meta(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a library model's state under Meta's names; fail where a tensor has none."""
    lines = [line.replace(":", "").replace(",", "").split() for line in PAIRS.strip().split("\n")]
    short = [(old, new, pair) for old, new, *ends in lines for pair in zip(ends[::2], ends[1::2], strict=True)]
    pairs = [one for old, new, pair in short for one in expanded((f"{old}.{pair[0]}", f"{new}.{pair[1]}"))]
    names = {f"{new}.{kind}": f"{old}.{kind}" for old, new in pairs for kind in ("weight", "bias")}
    names |= {new: old for old, new in SINGLE.items()}
    left = dict(state)
    del left["shared_image_embedding.positional_embedding"]
    points = left.pop("prompt_encoder.point_embed.weight")
    result = {f"sam_prompt_encoder.point_embeddings.{n}.weight": points[n : n + 1].clone() for n in range(4)}
    return result | {names[name]: value for name, value in left.items()}


def published(folder: Path, layout: str = "meta", *, without: str = "") -> Path:
    """Write weights as SAM 2.1's are published, of `TOY` for frames of 512, perhaps without a tensor."""
    torch.manual_seed(0)
    state = Sam2VideoModel(configuration(TOY, side=512, dropout=0.1)).state_dict()
    state = of_meta(state) if layout == "meta" else dict(state)
    state.pop(without, None)
    path = folder / f"{layout}.pt"
    torch.save({"model": state} if layout == "meta" else state, path)
    return path


@pytest.fixture(scope="module")
def model(toy) -> Sam2VideoModel:
    torch.manual_seed(1)
    made = Sam2VideoModel(configuration(ARCHITECTURES["toy"], side=64, dropout=0.1))
    made.load_state_dict({name: torch.randn_like(value) for name, value in made.state_dict().items()})
    return made


@pytest.fixture
def network() -> Sam2Clips:
    torch.manual_seed(0)
    return Sam2Clips(architecture="toy", size=64, indicator=8)


def differing(network: Sam2Clips, model: Sam2VideoModel) -> list[str]:
    theirs = model.state_dict()
    return [name for name, value in network.state_dict().items() if name not in theirs or not value.equal(theirs[name])]


@pytest.mark.parametrize("file", ["model.safetensors", "library.pt", "meta.pt"])
def test_both_layouts_load_whole(tmp_path, model, network, file):
    state, path = model.state_dict(), tmp_path / file
    if file == "model.safetensors":
        save_file({name: value.clone() for name, value in state.items()}, path)
    else:
        torch.save({"model": of_meta(state)} if file == "meta.pt" else state, path)
    assert len(differing(network, model)) > 100
    fresh = load_sam2(network, path)
    assert differing(network, model) == fresh
    assert fresh == [
        "indicator", "depth_head.weight", "depth_head.bias", "selection.gate.weight", "selection.gate.bias",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "sentence"), [
    ("maskmem_tpos_enc", None, "another network than SAM2.1 toy: it lacks memory_temporal_positional_encoding$"),
    ("extra.weight", torch.zeros(1), "it has extra.weight$"),
    ("maskmem_tpos_enc", torch.zeros(6, 1, 1, 64), r"encoding is \[6, 1, 1, 64\] and should be \[7, 1, 1, 64\]"),
    ("maskmem_tpos_enc", torch.full((7, 1, 1, 64), torch.nan), "NaN or infinity in memory_temporal_positional_enc"),
])  # fmt: skip
def test_a_tensor_that_does_not_fit_is_named_and_nothing_is_loaded(tmp_path, model, network, name, value, sentence):
    path, before = tmp_path / "meta.pt", {name: value.clone() for name, value in network.state_dict().items()}
    state = of_meta(model.state_dict()) | {name: value}
    torch.save({"model": {name: value for name, value in state.items() if value is not None}}, path)
    with pytest.raises(CheckpointError, match=sentence):
        load_sam2(network, path)
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())


def test_the_size_of_a_network_and_of_weights_is_known_from_their_encoder(tmp_path, network):
    for channels, blocks, sentence in (
        (96, 16, "is SAM2 small, but the network is toy; choose architecture: small"),
        (144, 48, "is SAM2 large, .*use one of cpu"),
    ):
        state = {f"image_encoder.trunk.blocks.{n}.norm1.weight": torch.ones(1) for n in range(blocks)}
        state["image_encoder.trunk.patch_embed.proj.weight"] = torch.ones(channels, 1)
        torch.save({"model": state}, tmp_path / "m.pt")
        with pytest.raises(CheckpointError, match=sentence):
            load_sam2(network, tmp_path / "m.pt")
    assert size_of(network.state_dict()) == "toy"
    assert size_of({"head.weight": torch.zeros(1)}) is None
