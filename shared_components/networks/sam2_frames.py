"""Predict one frame of SAM2 for all objects of all clips, batched by prompt history.

Objects of a batch are prompted at different times, so their memories have different lengths. The attention of
`transformers` takes no mask, so objects with equal memories are grouped; most batches have at most two groups.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shared_components.networks import sam2_steps as steps
from shared_components.networks.sam2_architectures import CELL
from shared_components.networks.sam2_memory import Remembered, Track, bank_of
from shared_components.networks.sam2_steps import Decoded, Grid, enlarged

EMPTY = -20.0  # logit of an object before its first box; a probability of 2e-9 against background
PROMPT = "prompt"  # key of the group of objects with a box in this frame; other keys are ages of memories
Remember = Literal["all", "prompted", "none"]


class Maps(NamedTuple):
    """Feature maps of clips, or of one frame of each clip, projected for the decoder and the memory encoder."""

    fine: Tensor  # (B, [T,] C/8, H/4, W/4)
    middle: Tensor  # (B, [T,] C/4, H/8, W/8)
    coarse: Tensor  # (B, [T,] C, H/16, W/16), raw
    projected: Tensor  # (B, [T,] C, H/16, W/16)

    @property
    def side(self) -> int:
        """Height and width of the frame in pixels."""
        return self.coarse.shape[-1] * CELL


def predicted(
    network: Any, maps: Maps, boxes: Tensor, tracks: Sequence[Track], now: int, grid: Grid, *, remember: Remember
) -> tuple[Tensor, list[Track]]:
    """Predict a frame of B clips with N objects each.

    Args:
        network: `Sam2Clips` whose modules are used.
        maps: Feature maps of the frame.
        boxes: Box prompts (B, N, 4), NaN for no prompt.
        tracks: Memories of the objects, clip by clip.
        now: Index of the frame.
        grid: Position encodings of the map's cells.
        remember: Objects whose memory gets this frame: `all`, objects `prompted` in it, or `none`.

    Returns:
        Logits or depths (B, N, H, W), and the memories after this frame.
    """
    B, N, _ = boxes.shape
    rows = boxes.reshape(B * N, 4)
    groups = _groups((~rows.isnan().any(1)).tolist(), tracks, now)
    pieces, after = [], list(tracks)
    for key, members in groups.items():
        own = Maps(*(x[[row // N for row in members]] for x in maps))
        box = rows[members] if key == PROMPT else None
        decoded = _decoded(network, own, box, [tracks[row] for row in members], now, grid)
        pieces.append(enlarged(_numbers(network, decoded), maps.side))
        if remember == "all" or (remember == "prompted" and box is not None):
            frames = _remembered(network, own, decoded, now, prompted=box is not None)
            for row, frame in zip(members, frames, strict=True):
                after[row] = tracks[row].with_frame(frame, prompted=box is not None)
    if not pieces:  # a batch without objects still needs a gradient, which is zero
        trained = next((p for p in network.parameters() if p.requires_grad), network.no_memory_embedding)
        return (0 * trained.sum() + EMPTY).expand(B, N, maps.side, maps.side), after
    placed = _placed(pieces, [row for members in groups.values() for row in members], B * N)
    return placed.reshape(B, N, maps.side, maps.side), after  # (B*N, 1, H, W) -> (B, N, H, W)


def _groups(prompted: Sequence[bool], tracks: Sequence[Track], now: int) -> dict[Any, list[int]]:
    """Group the rows of objects with equal memories; skip objects before their first box."""
    groups: dict[Any, list[int]] = {}
    for row, track in enumerate(tracks):
        if prompted[row] or track.prompted:
            groups.setdefault(PROMPT if prompted[row] else track.ages(now), []).append(row)
    return groups


def _decoded(network: Any, maps: Maps, boxes: Tensor | None, tracks: Sequence[Track], now: int, grid: Grid) -> Decoded:
    """Decode the frame for G objects, prompted by boxes (G, 4) or, without boxes, by their memories."""
    if boxes is not None:
        enriched = maps.coarse + network.no_memory_embedding.reshape(1, -1, 1, 1)
    else:
        bank = bank_of(tracks, now, grid.memory, network)
        enriched = steps.attend(network.memory_attention, maps.coarse, *bank, grid)
    if network.selection is not None:  # channel selection by text; the memory encoder reads the raw map
        enriched = network.selection(enriched, network.indicator)
    encoder = network.prompt_encoder
    with torch.set_grad_enabled(network.trained_encoders and torch.is_grad_enabled()):
        mask = encoder.no_mask_embed.weight[:, :, None, None]  # (1, C) -> (1, C, 1, 1)
        if boxes is None:
            prompts = steps.no_tokens(encoder, len(tracks))
        else:
            prompts = steps.box_tokens(encoder, boxes, maps.side)
            mask = encoder.mask_embed(steps.filled(boxes, maps.side)) if network.filled_boxes else mask
    return steps.decode(network.mask_decoder, enriched, (maps.fine, maps.middle), prompts, mask, grid)


def _remembered(network: Any, maps: Maps, decoded: Decoded, now: int, *, prompted: bool) -> list[Remembered]:
    logits = enlarged(decoded.masks, maps.side)
    # as published: in evaluation the memory of a prompted frame has a binary mask
    masks = (logits > 0).to(logits) if prompted and not network.training else logits.sigmoid()
    memories = steps.written(network.memory_encoder, maps.projected, masks)
    pointers = network.object_pointer_proj(decoded.token)
    return [Remembered(now, *pair) for pair in zip(memories, pointers, strict=True)]


def _numbers(network: Any, decoded: Decoded) -> Tensor:
    """Return logits or depths of G objects, (G, 1, h, w), at the stride of the mask or the depth head."""
    if not network.is_depth:
        return decoded.masks
    return network.depth_head(decoded.coarse if network.depth_stride == CELL else decoded.fine)


def _placed(pieces: Sequence[Tensor], order: Sequence[int], rows: int) -> Tensor:
    """Concatenate the groups in row order, (rows, 1, H, W); rows without a group are `EMPTY`."""
    computed = torch.cat(list(pieces))  # (len(order), 1, H, W)
    if list(order) == list(range(rows)):
        return computed
    source = {row: place for place, row in enumerate(order)}
    with_empty = torch.cat([computed, torch.full_like(computed[:1], EMPTY)])
    return with_empty[[source.get(row, len(order)) for row in range(rows)]]
