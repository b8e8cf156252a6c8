"""The sizes of SAM2, and its modules as `transformers` builds them, initialised as published and without unused heads.

Ravi et al., "SAM 2: Segment anything in images and videos", arXiv 2408.00714. `tiny` and `small` are SAM2.1 Hiera-T and
Hiera-S as published; `cpu` and `cpu_large` are ours, for two cores. `transformers` is imported where a network is
built, which takes seconds, and never by importing this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CELL = 16  # pixels per cell of the map that memory and decoder read, each way
MEMORY = 64  # channels of a memory; fixed by transformers
LAYER_SCALE, STD = 1e-6, 0.02  # initial values of the published training code


@dataclass(frozen=True)
class Architecture:
    """Sizes of the image encoder's four stages, and of what is common to them.

    Attributes:
        channels, blocks, heads, windows: Of the stages. A window of the first stage is 8 cells of 4 pixels, so that it
            divides frames of multiples of 32.
        everywhere: Numbers of the blocks whose windows are the whole map; none may open a stage but the first.
        width: Channels of the maps that memory and decoder read, a multiple of 64.
        layers: Of memory attention.
        hidden: Width inside of the layers of memory attention and of the decoder; half of it in the memory encoder.
        filled_boxes: Whether a box prompts as its area, too, the way SAM2 takes masks. The published weights have not
            learnt it; from random weights a box is then understood in a tenth of the steps.
    """

    channels: tuple[int, ...] = (96, 192, 384, 768)
    blocks: tuple[int, ...] = (1, 2, 7, 2)
    heads: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (8, 4, 14, 7)
    everywhere: tuple[int, ...] = (5, 7, 9)
    width: int = 256
    layers: int = 4
    hidden: int = 2048
    filled_boxes: bool = False


_NARROW: dict[str, Any] = dict(
    blocks=(1, 2, 4, 1), windows=(8, 4, 8, 4), everywhere=(5,), layers=2, filled_boxes=True
)  # fmt: skip
ARCHITECTURES = {
    "cpu": Architecture((32, 64, 128, 256), width=128, hidden=512, **_NARROW),
    "cpu_large": Architecture((48, 96, 192, 384), width=192, hidden=640, **_NARROW),
    "tiny": Architecture(),
    "small": Architecture(blocks=(1, 2, 11, 2), everywhere=(7, 10, 13)),
}


def build_sam2(sizes: Architecture, *, side: int, dropout: float) -> nn.Module:
    """Build SAM2's modules for frames of ``side`` pixels, without what one mask per object and no gate leave unused.

    Returns `transformers`' `Sam2VideoModel`, of which only the modules serve: its own `forward` trains nothing and
    needs the heads that are left out. Raises ValueError where `transformers` is missing.
    """
    Model, _ = _library()
    model = Model(configuration(sizes, side=side, dropout=dropout))
    _initialise(model)
    decoder = model.mask_decoder
    del decoder.iou_prediction_head, decoder.pred_obj_score_head
    if not sizes.filled_boxes:
        del model.prompt_encoder.mask_embed
    decoder.output_hypernetworks_mlps = decoder.output_hypernetworks_mlps[:1]
    return model


def configuration(sizes: Architecture, *, side: int, dropout: float) -> Any:
    """Return the `Sam2VideoConfig` of some sizes; every side must be given, since the library derives none."""
    _, library = _library()
    width, cells = sizes.width, side // CELL
    backbone = library.Sam2HieraDetConfig(
        hidden_size=sizes.channels[0],
        embed_dim_per_stage=list(sizes.channels),
        blocks_per_stage=list(sizes.blocks),
        num_attention_heads_per_stage=list(sizes.heads),
        window_size_per_stage=list(sizes.windows),
        global_attention_blocks=list(sizes.everywhere),
        image_size=[side, side],
    )
    vision = library.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=list(reversed(sizes.channels)),
        backbone_feature_sizes=[[cells * scale] * 2 for scale in (4, 2, 1)],
        fpn_hidden_size=width,
    )
    return library.Sam2VideoConfig(
        vision_config=vision,
        prompt_encoder_config=library.Sam2VideoPromptEncoderConfig(hidden_size=width, image_size=side),
        mask_decoder_config=library.Sam2VideoMaskDecoderConfig(
            hidden_size=width, mlp_dim=sizes.hidden, iou_head_hidden_dim=width
        ),
        image_size=side,
        memory_attention_hidden_size=width,
        memory_attention_num_layers=sizes.layers,
        memory_attention_feed_forward_hidden_size=sizes.hidden,
        memory_attention_dropout=dropout,
        memory_attention_rope_dropout=dropout,
        memory_attention_rope_feat_sizes=[cells, cells],
        memory_encoder_hidden_size=width,
        mask_downsampler_embed_dim=width,
        memory_fuser_embed_dim=width,
        memory_fuser_intermediate_dim=sizes.hidden // 2,
    )


def _initialise(model: Any) -> None:
    """Initialise as the published code does: torch's defaults, tokens of deviation 1; the library's are all 0.02."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)  # convolutions, linear layers, norms and embeddings
        if reset is not None:
            reset()
    for layer in model.memory_encoder.memory_fuser.layers:
        nn.init.constant_(layer.scale, LAYER_SCALE)
    for learnt in (model.no_memory_embedding, model.memory_temporal_positional_encoding):
        nn.init.trunc_normal_(learnt, std=STD)
    # a buffer, which torch resets nowhere: random frequencies of the positions
    with torch.no_grad():
        model.prompt_encoder.shared_embedding.positional_embedding.normal_()


def _library() -> tuple[Any, Any]:
    try:
        import transformers
        from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoModel
    except ImportError:
        raise ValueError(
            "SAM2 needs the package transformers, version 5 or newer, which is absent: pip install 'surgfl[sam2]'"
        ) from None
    return Sam2VideoModel, transformers
