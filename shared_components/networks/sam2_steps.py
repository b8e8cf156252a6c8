"""The steps of SAM2 for one frame and G objects with the modules of `transformers`' video model, and its box prompts.

The library's own functions handle one object, have no gradients, and read heads that we remove. C is the number of
channels of the feature maps, h and w are their sides at a stride of 16 pixels. See Ravi et al., arXiv 2408.00714,
Section 4 and Appendix C.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

STRIDE = 4  # stride of a mask prompt in pixels
SCALE, BIAS = 20.0, -10.0  # scale and bias of a mask before the memory encoder
CORNERS = (2, 3)  # point labels of a box's corners


class Grid(NamedTuple):
    """Position encodings of a map's cells."""

    rope: tuple[Tensor, Tensor]  # cosines and sines of memory attention
    image: Tensor  # (1, C, h, w), added to the queries of memory attention
    memory: Tensor  # (h*w, 64), added to memories
    decoder: Tensor  # (1, C, h, w), for the mask decoder


class Decoded(NamedTuple):
    """Outputs of the mask decoder for one frame."""

    masks: Tensor  # (G, 1, H/4, W/4), logits
    token: Tensor  # (G, C), the mask token
    coarse: Tensor  # (G, C, H/16, W/16)
    fine: Tensor  # (G, C/8, H/4, W/4)


def grid_of(sam2: Any, maps: Tensor) -> Grid:
    """Return the position encodings for a map (., C, h, w)."""
    C, h, w = maps.shape[-3:]
    down, across = torch.meshgrid(*(torch.arange(n, device=maps.device) for n in (h, w)), indexing="ij")
    cells = torch.stack([across.flatten(), down.flatten()], 1)  # (h*w, 2), x and y
    # cloned: the library's cache may contain inference-mode tensors
    image = sam2.vision_encoder.neck.position_encoding((1, C, h, w), maps.device, torch.float32).clone()
    memory = sam2.memory_encoder.position_encoding((1, 0, h, w), maps.device, torch.float32).clone()
    middles = (torch.stack([across, down], -1) + 0.5) / torch.tensor([w, h], device=maps.device)  # (h, w, 2)
    places = sam2.prompt_encoder.shared_embedding(middles)  # (h, w, C)
    return Grid(
        sam2.memory_attention.rotary_emb(maps, cells),
        image,
        memory[0].flatten(1).T,  # (64, h, w) -> (h*w, 64)
        places.permute(2, 0, 1)[None],
    )


def box_tokens(encoder: Any, boxes: Tensor, side: int) -> Tensor:
    """Embed boxes (G, 4) in pixels of a frame as two corners and a padding point, (G, 1, 3, C)."""
    # the encoder shifts by half a pixel and divides by the side for which it was built
    scaled = (boxes + 0.5) * (encoder.input_image_size / side) - 0.5
    labels = torch.tensor(CORNERS, device=boxes.device).expand(len(boxes), 1, 2)
    return encoder(scaled.reshape(-1, 1, 2, 2), labels, None, None)[0]  # (G, 4) -> (G, 1, 2 points, xy)


def no_tokens(encoder: Any, objects: int) -> Tensor:
    """Return the tokens for no prompt, (G, 1, 2, C)."""
    return encoder.not_a_point_embed.weight.expand(objects, 1, 2, -1)


def attend(attention: Any, maps: Tensor, memory: Tensor, places: Tensor, pointers: int, grid: Grid) -> Tensor:
    """Let maps (G, C, h, w) attend to memories (G, L, 64) at positions (L, 64); the last tokens are pointers."""
    G, C, h, w = maps.shape
    queries = (maps + 0.1 * grid.image).flatten(2).transpose(1, 2)[:, None]  # (G, C, h, w) -> (G, 1, h*w, C)
    for layer in attention.layers:
        queries = layer(queries, memory[:, None], places[None, None], grid.rope, num_k_exclude_rope=pointers)
    return attention.layer_norm(queries)[:, 0].transpose(1, 2).reshape(G, C, h, w)


def decode(
    decoder: Any, maps: Tensor, finer: tuple[Tensor, Tensor], prompts: Tensor, mask: Tensor, grid: Grid
) -> Decoded:
    """Predict one mask per object from its map (G, C, h, w).

    `finer` are the projected maps (G, C/8, 4h, 4w) and (G, C/4, 2h, 2w). The prompt encoder's outputs are `prompts`
    (G, 1, P, C) and `mask` (G, C, h, w), or (1, C, 1, 1) without a mask.
    """
    G, C, h, w = maps.shape
    own = torch.cat([decoder.obj_score_token.weight, decoder.iou_token.weight, decoder.mask_tokens.weight])
    tokens, keys = decoder.transformer(
        torch.cat([own.expand(G, 1, -1, -1), prompts], 2), maps + mask, grid.decoder.expand(G, -1, -1, -1), None
    )
    coarse = keys[:, 0].transpose(1, 2).reshape(G, C, h, w)  # (G, 1, h*w, C) -> (G, C, h, w)
    x = decoder.activation(decoder.upscale_layer_norm(decoder.upscale_conv1(coarse) + finer[1]))
    fine = decoder.activation(decoder.upscale_conv2(x) + finer[0])
    token = tokens[:, 0, 2]  # after the tokens of objectness and IoU
    weights = decoder.output_hypernetworks_mlps[0](token)  # (G, C) -> (G, C/8)
    return Decoded(torch.einsum("gc,gchw->ghw", weights, fine)[:, None], token, coarse, fine)


def whole_frame(clips: int, frames: int, objects: int, side: int) -> Tensor:
    """Return boxes (B, T, N, 4) around the whole first frame, and NaN in later frames."""
    boxes = torch.full((clips, frames, objects, 4), torch.nan)
    boxes[:, 0] = torch.tensor([0.0, 0.0, side, side])
    return boxes


def filled(boxes: Tensor, side: int) -> Tensor:
    """Return boxes (G, 4) as masks (G, 1, side/4, side/4): the covered share of each cell, scaled to [-1, 1]."""
    edges = torch.arange(0, side, STRIDE, device=boxes.device)  # (side/4,), start of each cell
    across, down = (  # (G, side/4) each
        (torch.minimum(end[:, None], edges + STRIDE) - torch.maximum(start[:, None], edges)).clamp_min(0) / STRIDE
        for start, end in ((boxes[:, 0], boxes[:, 2]), (boxes[:, 1], boxes[:, 3]))
    )
    return (down[:, :, None] * across[:, None, :])[:, None] * 2 - 1


def check_boxes(boxes: Tensor, clips: int, frames: int, side: int, *, depth: bool = False) -> None:
    """Raise ValueError for boxes that are not (B, T, N, 4), partly NaN, inverted or outside the frame.

    A box is (x0, y0, x1, y1) in pixels of the input; NaN means no box. Depth has one box per frame, N = 1.
    """
    if boxes.dim() != 4 or boxes.shape[:2] != (clips, frames) or boxes.shape[3] != 4 or not boxes.shape[2]:
        raise ValueError(
            f"Sam2Clips takes boxes ({clips}, {frames}, objects, 4) for {clips} clips of {frames} frames, and got "
            f"{list(boxes.shape)}"
        )
    if depth and boxes.shape[2] != 1:
        raise ValueError(
            f"Sam2Clips estimates depth from one box per frame, not {boxes.shape[2]}; give the whole frame"
        )
    rows = boxes.detach().reshape(-1, 4).cpu()
    x0, y0, x1, y1 = rows.unbind(1)
    inside = (x0 < side) & (y0 < side) & (x1 > 0) & (y1 > 0) & (x1 >= x0) & (y1 >= y0) & rows.isfinite().all(1)
    if len(wrong := rows[~rows.isnan().all(1) & ~inside]):
        raise ValueError(
            f"Sam2Clips: box {[round(number, 1) for number in wrong[0].tolist()]} is invalid in a frame of "
            f"{side}x{side}; give x0, y0, x1, y1 in pixels with x0 <= x1 and y0 <= y1, or four NaN for no box"
        )


def written(encoder: Any, projected: Tensor, masks: Tensor) -> Tensor:
    """Return memories (G, 64, h, w) of projected maps (G, C, h, w) and masks (G, 1, 16h, 16w) in 0..1."""
    return encoder.projection(encoder.memory_fuser(projected + encoder.mask_downsampler(masks * SCALE + BIAS)))


def enlarged(maps: Tensor, side: int) -> Tensor:
    """Resize maps bilinearly: (G, K, h, w) -> (G, K, side, side)."""
    return F.interpolate(maps, size=(side, side), mode="bilinear", align_corners=False)
