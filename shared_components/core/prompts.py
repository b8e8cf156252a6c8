"""Boxes that tell a network which objects of a clip to follow: of its labels, or of the whole image for depth.

One object a class, the box around its pixels (SurgFed, Section IV-A). Boxes are float (..., T, N, 4): left, top, right
and bottom (x0, y0, x1, y1) in pixels, the ends of the last pixel included, so that one pixel at (0, 0) has the box
(0, 0, 1, 1); NaN where a frame has no box of an object. An object without a box anywhere in a clip is predicted empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_components.common.arguments import between, one_of

RULES = {"first": None, "every_second": 2}
"""Frames with a box, by a rule's name: the first one alone (the paper), or every n-th (2: as released)."""


@dataclass(frozen=True)
class Prompts:
    """Which frames of a clip have boxes, and how far a box is moved from its object.

    Attributes:
        rule: One of `RULES`.
        jitter: By how much of the box's side each of its sides is moved at most, 0 (not at all) and below 0.5.

    Raises ValueError for another rule or number.
    """

    rule: str = "first"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        one_of("prompts", "rule", self.rule, RULES)
        between("prompts", "jitter", self.jitter, 0, 0.5, ends="[)")

    def frames(self, count: int) -> list[int]:
        """List the frames of `count` that have boxes."""
        step = RULES[self.rule]
        return list(range(0, 1 if step is None else count, step or 1))

    def __call__(self, boxes: Tensor, *, size: tuple[int, int], generator: torch.Generator | None = None) -> Tensor:
        """Keep the boxes (..., T, N, 4) of the frames that have some, moved, and leave no other.

        Args:
            size: (height, width) of the frame in pixels.
            generator: Of the jitter; None: nothing is moved.
        """
        shown = torch.full_like(boxes, torch.nan)
        frames = self.frames(boxes.shape[-3])
        shown[..., frames, :, :] = boxes[..., frames, :, :]
        if generator is None or self.jitter == 0:
            return shown
        return jittered(shown, generator, amount=self.jitter, size=size)


def of_clips(target: Tensor) -> Tensor:
    """Return targets (B, T, H, W) as they are, and those of single frames, (B, H, W), as clips of one."""
    return target if target.dim() == 4 else target[:, None]  # (B, H, W) -> (B, 1, H, W)


def class_boxes(label: Tensor, classes: int) -> Tensor:
    """Return the box around each class's pixels in every frame, NaN where it has none.

    Args:
        label: Ids (..., T, H, W), integers.
        classes: With the background, 0, which is no object.

    Returns:
        float32 (..., T, N, 4), N = classes - 1.
    """
    ids = torch.arange(1, classes, device=label.device)
    columns = _present(label, ids, -2)  # (..., T, N, W)
    rows = _present(label, ids, -1)  # (..., T, N, H)
    (left, right), (top, bottom) = _ends(columns), _ends(rows)
    boxes = torch.stack([left, top, right, bottom], dim=-1).float()  # 4 of (..., T, N) -> (..., T, N, 4)
    return boxes.masked_fill(~columns.any(-1, keepdim=True), torch.nan)


def whole_frames(*shape: int, size: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Return the box of the whole image, of `size` (height, width), for one object: float32 (*shape, 1, 4).

    `shape` is that of the frames, (T,) or (B, T). Depth has no other prompt.
    """
    height, width = size
    return torch.tensor([0.0, 0.0, width, height], device=device).expand(*shape, 1, 4).clone()


def jittered(boxes: Tensor, generator: torch.Generator, *, amount: float, size: tuple[int, int]) -> Tensor:
    """Move each side of each box by up to `amount` of the box's own side, either way, uniformly.

    What is moved stays within the frame of `size` (height, width) and at least one pixel wide and high. Numbers are
    drawn on the generator's device, for boxes that are NaN as well, so that the draw follows from the shape alone.
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
    """Say where along the other axis a class has a pixel: (..., T, N, W) for dim -2, (..., T, N, H) for dim -1."""
    return torch.stack([(label == one).any(dim) for one in ids], dim=-2)


def _ends(present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first true place of the last axis, and the one after the last; both are wrong where none is true."""
    numbers = present.to(torch.uint8)
    return numbers.argmax(-1), present.shape[-1] - numbers.flip(-1).argmax(-1)
