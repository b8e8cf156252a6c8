"""Box prompts of SAM2: (x0, y0, x1, y1) in pixels of its input, NaN for an object without a box."""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 4  # stride of a mask prompt in pixels


def whole_frame(clips: int, frames: int, objects: int, side: int) -> Tensor:
    """Return boxes (B, T, N, 4) around the whole first frame, and NaN in later frames."""
    boxes = torch.full((clips, frames, objects, 4), torch.nan)
    boxes[:, 0] = torch.tensor([0.0, 0.0, side, side])
    return boxes


def filled(boxes: Tensor, side: int) -> Tensor:
    """Return boxes (G, 4) as masks (G, 1, side/4, side/4): the covered share of each cell, scaled to [-1, 1]."""
    edges = torch.arange(0, side, STRIDE, device=boxes.device)  # (side/4,), start of each cell
    covered = [
        (torch.minimum(end[:, None], edges + STRIDE) - torch.maximum(start[:, None], edges)).clamp_min(0) / STRIDE
        for start, end in ((boxes[:, 0], boxes[:, 2]), (boxes[:, 1], boxes[:, 3]))
    ]
    across, down = covered  # (G, side/4) each
    return (down[:, :, None] * across[:, None, :])[:, None] * 2 - 1


def check_boxes(boxes: Tensor, clips: int, frames: int, side: int, *, depth: bool = False) -> None:
    """Raise ValueError for boxes that are not (B, T, N, 4), partly NaN, inverted or outside the frame.

    Depth has one box per frame, N = 1.
    """
    if boxes.dim() != 4 or boxes.shape[:2] != (clips, frames) or boxes.shape[3] != 4 or not boxes.shape[2]:
        raise ValueError(
            f"Sam2Clips takes boxes ({clips}, {frames}, objects, 4) for {clips} clips of {frames} frames, and got "
            f"{list(boxes.shape)}"
        )
    if depth and boxes.shape[2] != 1:
        raise ValueError(
            f"Sam2Clips estimates depth from one box per frame, and got {boxes.shape[2]}; give the whole frame"
        )
    rows = boxes.detach().reshape(-1, 4).cpu()
    missing = rows.isnan().all(1)
    x0, y0, x1, y1 = rows.unbind(1)
    inside = (x0 < side) & (y0 < side) & (x1 > 0) & (y1 > 0) & (x1 >= x0) & (y1 >= y0) & rows.isfinite().all(1)
    wrong = (~missing & ~inside).nonzero()[:, 0].tolist()
    if wrong:
        box = [round(number, 1) for number in rows[wrong[0]].tolist()]
        raise ValueError(
            f"Sam2Clips: box {box} is invalid in a frame of {side}x{side}; give x0, y0, x1, y1 in pixels with x0 <= x1 "
            "and y0 <= y1, or four NaN for no box"
        )
