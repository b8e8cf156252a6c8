"""Architectures of SAM2, built from `transformers` modules, with the published initialisation and no unused heads.

Ravi et al., "SAM 2: Segment anything in images and videos", arXiv 2408.00714. `tiny` and `small` are the published
SAM2.1 Hiera-T and Hiera-S; `cpu` and `cpu_large` are ours, for two cores. `transformers` is imported only when a
network is built, since the import takes seconds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CELL = 16  # stride in pixels of the feature map that memory and decoder read
MEMORY = 64  # channels of a memory, fixed by transformers
LAYER_SCALE, STD = 1e-6, 0.02  # initial layer scale and standard deviation of the published training code


@dataclass(frozen=True)
class Architecture:
    """Sizes of the image encoder's four stages, and of memory and decoder.

    With ``filled_boxes``, the box's area is also a mask prompt. The published weights were not trained with it; from
    random weights a network then learns boxes in a tenth of the steps.
    """

    channels: tuple[int, ...] = (96, 192, 384, 768)
    blocks: tuple[int, ...] = (1, 2, 7, 2)
    heads: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (8, 4, 14, 7)  # first: 8 cells of 4 pixels, which divide multiples of 32 pixels
    everywhere: tuple[int, ...] = (5, 7, 9)  # blocks with global attention; not the first block of stages 2 to 4
    width: int = 256  # channels of the feature maps that memory and decoder read, a multiple of 64
    layers: int = 4  # layers of memory attention
    hidden: int = 2048  # hidden width of memory attention and decoder; the memory encoder has half of it
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
    """Build SAM2's modules for frames of ``side`` pixels, without the heads of multiple masks, IoU and objectness.

    Returns `transformers`' `Sam2VideoModel`. Only its modules are used: its `forward` has no gradients and needs the
    removed heads. Raises ValueError if `transformers` is missing.
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
    """Return the `Sam2VideoConfig` of an architecture; every size is set, since the library derives none."""
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
    """Initialise as the published code: torch's defaults, tokens with a deviation of 1 (the library uses 0.02)."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)  # convolutions, linear layers, norms and embeddings
        if reset is not None:
            reset()
    for layer in model.memory_encoder.memory_fuser.layers:
        nn.init.constant_(layer.scale, LAYER_SCALE)
    for learnt in (model.no_memory_embedding, model.memory_temporal_positional_encoding):
        nn.init.trunc_normal_(learnt, std=STD)
    # random frequencies of the position encoding, a buffer without reset_parameters
    with torch.no_grad():
        model.prompt_encoder.shared_embedding.positional_embedding.normal_()


def _library() -> tuple[Any, Any]:
    try:
        import transformers
        from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoModel
    except ImportError:
        raise ValueError(
            "SAM2 needs the package transformers, version 5 or newer, which is missing: pip install 'surgfl[sam2]'"
        ) from None
    return Sam2VideoModel, transformers
