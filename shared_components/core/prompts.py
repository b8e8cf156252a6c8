"""Make box prompts for the objects of a clip from labels, or one box of the whole image for depth.

Each class is one object, and its box encloses the class's pixels (SurgFed, Section IV-A). Boxes are float
(..., T, N, 4): left, top, right, bottom (x0, y0, x1, y1) in pixels. A single pixel at (0, 0) has the box (0, 0, 1, 1).
NaN marks a frame without a box of an object. An object without any box in a clip is predicted empty.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

Rule = Literal["first", "every_second"]
Jitter = Annotated[float, Meta(ge=0, lt=0.5)]  # maximum shift of each side, as a fraction of the box's size
RULES: dict[Rule, int | None] = {"first": None, "every_second": 2}
"""Frames with boxes by rule: only the first frame (None; the paper), or every n-th frame (2: as released)."""


@dataclass(frozen=True)
class Prompts:
    """Choice of frames with boxes, and jitter of the boxes."""

    rule: Rule = "first"
    jitter: Jitter = 0.0

    def frames(self, count: int) -> list[int]:
        """Return the numbers of the frames with boxes in a clip of `count` frames."""
        step = RULES[self.rule]
        return list(range(0, 1 if step is None else count, step or 1))

    def __call__(self, boxes: Tensor, *, size: tuple[int, int], generator: torch.Generator | None = None) -> Tensor:
        """Return the boxes (..., T, N, 4) of the chosen frames, and NaN for the others; with a generator, jittered."""
        kept = torch.full_like(boxes, torch.nan)
        frames = self.frames(boxes.shape[-3])
        kept[..., frames, :, :] = boxes[..., frames, :, :]
        if generator is None or self.jitter == 0:
            return kept
        return jittered(kept, generator, amount=self.jitter, size=size)


def of_clips(target: Tensor) -> Tensor:
    """Return targets of clips (B, T, H, W); targets of single frames (B, H, W) become clips of one frame."""
    return target if target.dim() == 4 else target[:, None]  # (B, H, W) -> (B, 1, H, W)


def class_boxes(label: Tensor, classes: int) -> Tensor:
    """Return each class's bounding box for ids (..., T, H, W): float32 (..., T, classes - 1, 4), NaN if absent."""
    ids = torch.arange(1, classes, device=label.device)
    columns = _present(label, ids, -2)  # (..., T, N, W)
    rows = _present(label, ids, -1)  # (..., T, N, H)
    (left, right), (top, bottom) = _ends(columns), _ends(rows)
    boxes = torch.stack([left, top, right, bottom], dim=-1).float()  # 4 of (..., T, N) -> (..., T, N, 4)
    return boxes.masked_fill(~columns.any(-1, keepdim=True), torch.nan)


def whole_frames(*shape: int, size: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Return the box of the whole image of `size` (height, width), depth's only prompt: float32 (*shape, 1, 4)."""
    height, width = size
    return torch.tensor([0.0, 0.0, width, height], device=device).expand(*shape, 1, 4).clone()


def jittered(boxes: Tensor, generator: torch.Generator, *, amount: float, size: tuple[int, int]) -> Tensor:
    """Shift each side of each box uniformly by up to `amount` of the box's width or height.

    Boxes stay inside the frame of `size` (height, width) and at least one pixel wide and high. Random numbers are drawn
    on the generator's device, also for NaN boxes, so that they depend only on the shape.
    """
    height, width = size
    drawn = torch.rand(boxes.shape, generator=generator, device=generator.device).to(boxes)
    sides = boxes[..., 2:] - boxes[..., :2]  # (..., 4) -> (..., 2): width, height
    moved = boxes + amount * (2 * drawn - 1) * torch.cat([sides, sides], dim=-1)
    most = torch.tensor([width, height], device=boxes.device, dtype=boxes.dtype)
    begin = torch.minimum(moved[..., :2].clamp_min(0), most - 1)
    end = torch.maximum(torch.minimum(moved[..., 2:], most), begin + 1)
    return torch.cat([begin, end], dim=-1)


def _present(label: Tensor, ids: Tensor, dim: int) -> Tensor:
    """Return columns (..., T, N, W; dim -2) or rows (..., T, N, H; dim -1) with pixels of each class, bool."""
    return torch.stack([(label == one).any(dim) for one in ids], dim=-2)


def _ends(present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first true index of the last axis, and the last plus one; undefined if nothing is true."""
    numbers = present.to(torch.uint8)
    return numbers.argmax(-1), present.shape[-1] - numbers.flip(-1).argmax(-1)
