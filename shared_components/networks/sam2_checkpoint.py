"""Load published SAM2 weights with the tensor names of `transformers` or Meta's original names."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from shared_components.networks.checkpoints import CheckpointError, load_weights, require_equal, require_finite
from shared_components.networks.parts import inside
from shared_components.networks.sam2_architectures import ARCHITECTURES
from shared_components.networks.sam2_video import Sam2Clips

UNUSED = (
    "shared_image_embedding", "mask_downsample", "no_memory_positional_encoding", "no_object_pointer",
    "occlusion_spatial_embedding_parameter", "prompt_encoder.mask_embed", "mask_decoder.iou_prediction_head",
    "mask_decoder.pred_obj_score_head", *(f"mask_decoder.output_hypernetworks_mlps.{n}" for n in (1, 2, 3)),
)  # fmt: skip
"""Modules of `transformers` that a network with box prompts and one mask per object does not need."""
PUBLISHED = {(112, 24): "base_plus", (144, 48): "large"}  # (first-stage channels, blocks) of unsupported architectures
META = ("image_encoder.", "sam_mask_decoder.", "sam_prompt_encoder.")  # name prefixes of Meta's layout
NAMES = (
    (r"^image_encoder\.trunk\.", "vision_encoder.backbone."),
    (r"^image_encoder\.neck\.convs\.(\d+)\.conv\.", r"vision_encoder.neck.convs.\1."),
    (r"\.patch_embed\.proj\.", ".patch_embed.projection."),
    (r"^sam_(prompt_encoder|mask_decoder)\.", r"\1."),
    (r"\.pe_layer\.positional_encoding_gaussian_matrix$", ".shared_embedding.positional_embedding"),
    (r"\.mask_downscaling\.", ".mask_embed."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (r"^obj_ptr_tpos_proj\.", "temporal_positional_encoding_projection_layer."),
    (r"^obj_ptr_proj\.", "object_pointer_proj."),
    (r"^maskmem_tpos_enc$", "memory_temporal_positional_encoding"),
    (r"^no_mem_embed$", "no_memory_embedding"),
    (r"^no_mem_pos_enc$", "no_memory_positional_encoding"),
    (r"^no_obj_ptr$", "no_object_pointer"),
    (r"^no_obj_embed_spatial$", "occlusion_spatial_embedding_parameter"),
    (r"^memory_encoder\.pix_feat_proj\.", "memory_encoder.feature_projection."),
    (r"^memory_encoder\.out_proj\.", "memory_encoder.projection."),
    (r"^memory_encoder\.fuser\.", "memory_encoder.memory_fuser."),
    (r"\.mask_downsampler\.encoder\.12\.", ".mask_downsampler.final_conv."),
    (r"\.dwconv\.", ".depthwise_conv."),
    (r"\.pwconv(\d)\.", r".pointwise_conv\1."),
    (r"\.gamma$", ".scale"),
    (r"\.out_proj\.", ".o_proj."),
    (r"\.norm", ".layer_norm"),
    (r"(\.mlp|mlps\.\d|object_pointer_proj|_head)\.layers\.0\.", r"\1.proj_in."),
    (r"\.mlp\.layers\.1\.", ".mlp.proj_out."),  # two layers; all others have three
    (r"(mlps\.\d|object_pointer_proj|_head)\.layers\.1\.", r"\1.layers.0."),
    (r"(mlps\.\d|object_pointer_proj|_head)\.layers\.2\.", r"\1.proj_out."),
)
"""Replacements of Meta's names by the library's names, in this order."""


def load_sam2(network: Sam2Clips, path: Path) -> list[str]:
    """Load SAM2's weights into a network; return the tensors that keep their values: depth head, text and indicator.

    The file is a `.safetensors` or `.pt` in the library's layout, or Meta's `.pt` with the key "model". It may contain
    unused heads. Raises CheckpointError if the file has missing or unexpected tensors, another architecture, other
    shapes, NaN or infinity; the network keeps its weights.
    """
    own, state = network.state_dict(), in_library_layout(load_weights(path), path)
    loaded = {name: value for name, value in state.items() if name in own or not inside(name, UNUSED)}
    fresh = [name for name in own if inside(name, network.additions)]
    refuse_other_size(network, loaded, path)
    expected = {name: value for name, value in own.items() if name not in fresh}
    require_equal(expected, loaded, Path(path), f"SAM2.1 {network.architecture}")
    require_finite(loaded, path)
    network.load_state_dict(own | loaded)
    return fresh


def refuse_other_size(network: Sam2Clips, state: Mapping[str, Tensor], path: Path) -> None:
    """Raise CheckpointError if a state in the library's layout has another architecture."""
    size = size_of(state)
    if size not in (None, network.architecture):
        known = f"choose architecture: {size}" if size in ARCHITECTURES else f"use one of {', '.join(ARCHITECTURES)}"
        raise CheckpointError(f"checkpoint {path} is SAM2 {size}, but the network is {network.architecture}; {known}")


def is_published(network: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Return whether a state for SAM2 was published elsewhere: our checkpoints have a depth head."""
    return isinstance(network, Sam2Clips) and "depth_head.weight" not in state


def in_library_layout(state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return a state with the library's names, converted from Meta's names if needed.

    Raises CheckpointError if two tensors get the same name.
    """
    if not any(name.startswith(META) for name in state):
        return dict(state)
    renamed = {_translated(name): value for name, value in state.items()}
    if len(renamed) < len(state):
        raise CheckpointError(f"checkpoint {path} has tensors by both Meta's and transformers' names; give one layout")
    points = [f"prompt_encoder.point_embeddings.{n}.weight" for n in range(4)]
    if all(name in renamed for name in points):  # four times (1, C) -> (4, C)
        renamed["prompt_encoder.point_embed.weight"] = torch.cat([renamed.pop(name) for name in points])
    return renamed


def _translated(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    # four times a convolution, its norm and an activation without weights
    return re.sub(r"(?<=mask_downsampler\.)encoder\.(\d+)", _downsampling, name)


def _downsampling(match: re.Match[str]) -> str:
    layer, place = divmod(int(match[1]), 3)
    return f"layers.{layer}.{('conv', 'layer_norm', 'activation')[place]}"


def size_of(state: Mapping[str, Tensor]) -> str | None:
    """Return the architecture of a state in the library's layout, from its image encoder; None if unknown."""
    pattern = re.compile(r"vision_encoder\.backbone\.blocks\.(\d+)\.")
    blocks = {int(match[1]) for name in state if (match := pattern.match(name))}
    first = state.get("vision_encoder.backbone.patch_embed.projection.weight")
    if first is None:
        return None
    known = {(sizes.channels[0], sum(sizes.blocks)): name for name, sizes in ARCHITECTURES.items()} | PUBLISHED
    return known.get((len(first), len(blocks)))
