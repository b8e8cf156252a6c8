"""Load published SAM2 weights with the tensor names of `transformers` or Meta's original names."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from shared_components.common.plain_yaml import read_own_yaml
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
NAMES = read_own_yaml(Path(__file__).with_name("sam2_names.yaml").read_text(encoding="utf-8"))


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
