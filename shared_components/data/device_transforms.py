"""Augment a whole batch on its device, with the draws of `transforms`, which changes one sample on the CPU.

The CPU reads frames and copies them with the parameters of each sample; the device does the arithmetic on pixels. Both
paths round to grey levels after the same stages. `augment_batch` states by how much they differ. Maps move with their
images, other targets stay. Tasks draw prompts and hidden patches later, from the augmented batch.

No operation here waits for the device or copies from the host, so that batches are made while the device trains.
"""

from collections.abc import Mapping
from functools import lru_cache

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shared_components.data import transforms
from shared_components.data.jpeg import compress
from shared_components.data.targets import is_map

_ROWS, _COLUMNS, _ZOOM, _TURN = "augment/rows", "augment/columns", "augment/zoom", "augment/turn"
_BLUR, _MATRIX, _TABLE = "augment/blur", "augment/matrix", "augment/table"
_NOISE, _GRAIN, _QUALITY = "augment/noise", "augment/grain", "augment/quality"
_TAPS = 11  # of the strongest blur, see `transforms.blur_kernel`


def geometry_parameters(augmentation: transforms.Augmentation, height: int, width: int) -> dict[str, np.ndarray]:
    """Return the parameters of flips, scale and crop of a sample of frames (height, width)."""
    scaled, top, left = augmentation.place(height, width)
    return {
        _ROWS: np.array([scaled, top, augmentation.flip_vertical]),
        _COLUMNS: np.array([augmentation.width, left, augmentation.flip_horizontal]),
        _ZOOM: np.array(augmentation.zoom(width)),
    }


def turn_parameters(degrees: float, height: int, width: int) -> dict[str, np.ndarray]:
    """Return the parameters of a rotation: the matrix (2, 3) from pixels of the new frame to pixels of the old."""
    matrix = cv2.invertAffineTransform(transforms.turn_matrix(degrees, height, width))
    return {_TURN: matrix.astype(np.float32)}


def colour_parameters(colours: transforms.Colours, height: int, width: int) -> dict[str, np.ndarray]:
    """Return the parameters of all colour changes of a sample of frames (height, width)."""
    kernel, table = np.zeros(_TAPS, np.float32), transforms.colour_table(colours)
    blur = transforms.blur_kernel(colours.blur)
    room = (_TAPS - len(blur)) // 2
    kernel[room : _TAPS - room] = blur
    return {
        _BLUR: kernel,
        _MATRIX: transforms.hue_matrix(colours.hue, colours.saturation),
        _TABLE: np.tile(np.arange(256, dtype=np.uint8), (3, 1)) if table is None else table[0].T,  # (3, 256)
        _NOISE: np.array(colours.noise, np.float32),
        _GRAIN: np.array(transforms.noise_start(colours.grain, height * width * 3)),
        _QUALITY: np.array(colours.quality),
    }


def augment_batch(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Apply the parameters in a batch to its images and maps; without parameters, only permute the images.

    Args:
        batch: "image", uint8 (B, T, H, W, 3); targets (B, ...), which include maps (B, H, W) or (B, T, H, W); and
            parameters (B, ...) of the functions above.

    Returns:
        The batch without parameters, contiguous. "image" is float32 (B, 3, H, W), or (B, T, 3, H, W) for T > 1, in grey
        levels 0 to 255. Targets keep shape and type. No shape depends on the parameters.

    Compared with `transforms` at equal parameters:
        - Labels and depth are equal, unless a pixel's centre falls on the border of two source pixels. Then either
          source pixel may be taken.
        - Images differ by at most 1 grey level after flips, scales and crops, after a rotation, and after each change
          of colours; by at most 2 after a rotation and a crop.
        - A compression's mean difference is below a fifth of JPEG's own loss.
    """
    images = batch["image"].permute(0, 1, 4, 2, 3).float()  # (B, T, H, W, 3) -> (B, T, 3, H, W)
    maps = {name: value for name, value in batch.items() if _is_own_map(name)}
    if _TURN in batch:
        images, maps = _turned(images, maps, batch[_TURN])
    images = _placed(images, batch)
    if _ROWS in batch:
        maps = {name: _placed_map(value, batch[_ROWS], batch[_COLUMNS]) for name, value in maps.items()}
        if "depth" in maps:
            maps["depth"] = maps["depth"] / _over(batch[_ZOOM], maps["depth"])
    if _MATRIX in batch:
        images = _coloured(images, batch)
    others = {name: maps.get(name, value) for name, value in batch.items() if not name.startswith("augment/")}
    return {**others, "image": (images[:, 0] if images.shape[1] == 1 else images).contiguous()}


def _is_own_map(name: str) -> bool:
    return name != "image" and not name.startswith("augment/") and is_map(name)


def _over(values: Tensor, like: Tensor) -> Tensor:
    """Reshape values (B,) to broadcast over a tensor (B, ...)."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _placed(images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Flip, scale, crop and blur (B, T, 3, H, W): one product of matrices along each axis, rounded to grey levels."""
    H, W = images.shape[-2:]
    matrices = []
    for name, length in ((_ROWS, H), (_COLUMNS, W)):
        matrix = _scaling(batch[name], length) if name in batch else None
        if _BLUR in batch:
            blur = _blurring(batch[_BLUR], length)
            matrix = blur if matrix is None else blur @ matrix
        matrices.append(matrix)
    rows, columns = matrices
    if rows is None or columns is None:
        return images
    # (B, T * 3 * H, W): the matrix is not copied T * 3 times
    wide = (images.flatten(1, 3) @ columns.mT).view_as(images)
    return (rows[:, None, None] @ wide).round()


def _scaling(axis: Tensor, length: int) -> Tensor:
    """Return the weights of source pixels in each new pixel along an axis, (B, length, length).

    Shrinking takes the mean over a new pixel's area, enlarging interpolates linearly, as `transforms.resize_image`.
    ``axis`` has rows (scaled length, first scaled pixel of the crop, whether to flip).
    """
    scaled, first, flipped = (column[:, None, None] for column in axis.unbind(1))  # (B, 1, 1) each
    place = torch.arange(length, device=axis.device)
    new = place[:, None] + first  # (B, length, 1)
    old = torch.where(flipped.bool(), length - 1 - place, place)  # (B, 1, length)
    step = length / scaled.float()
    shared = torch.minimum((new + 1) * step, old + 1) - torch.maximum(new * step, old)
    centre = ((new + 0.5) * step - 0.5).clamp(0, length - 1)
    weights = torch.where(scaled < length, shared / step, 1 - (centre - old).abs())
    return weights.clamp(min=0) * (new < scaled)


def _blurring(kernels: Tensor, length: int) -> Tensor:
    """Return convolutions with kernels (B, K) as matrices (B, length, length); frames are mirrored at their border."""
    B, K = kernels.shape
    period = max(1, 2 * (length - 1))
    place = torch.arange(length, device=kernels.device)[:, None] + torch.arange(K, device=kernels.device) - K // 2
    place = place % period
    place = torch.minimum(place, period - place)  # (length, K)
    matrix = kernels.new_zeros(B, length, length)
    return matrix.scatter_add_(2, place.expand(B, -1, -1), kernels[:, None].expand(B, length, K))


def _placed_map(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Flip, scale by the nearest pixel, and crop maps (B, ..., H, W)."""
    B, H, W = values.shape[0], values.shape[-2], values.shape[-1]
    frames = values.reshape(B, -1, H, W)
    row, row_inside = _nearest(rows, H)
    column, column_inside = _nearest(columns, W)
    moved = frames.gather(2, row[:, None, :, None].expand_as(frames))
    moved = moved.gather(3, column[:, None, None].expand_as(frames))
    inside = row_inside[:, None, :, None] & column_inside[:, None, None]
    return moved.masked_fill(~inside, 0).reshape(values.shape)


def _nearest(axis: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the source pixel of each new pixel along an axis, and whether it exists: (B, length) each."""
    scaled, first, flipped = (column[:, None] for column in axis.unbind(1))
    place = torch.arange(length, device=axis.device) + first
    nearest = ((2 * place + 1) * length // (2 * scaled)).clamp(max=length - 1)  # floor((place + 0.5) * length / scaled)
    return torch.where(flipped.bool(), length - 1 - nearest, nearest), place < scaled


def _turned(images: Tensor, maps: Mapping[str, Tensor], matrices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Rotate (B, T, 3, H, W) bilinearly, rounded to grey levels, and maps by the nearest pixel; the outside is zero."""
    B, T, C, H, W = images.shape
    y, x = torch.arange(H, device=images.device)[:, None], torch.arange(W, device=images.device)
    terms = matrices[..., None, None].unbind(2)  # three of (B, 2, 1, 1)
    column, row = (terms[0] * x + terms[1] * y + terms[2]).unbind(1)  # source of each pixel, (B, H, W)
    grid = torch.stack([(2 * column + 1) / W - 1, (2 * row + 1) / H - 1], -1)  # pixels to -1..1
    flat = F.grid_sample(images.reshape(B, T * C, H, W), grid, align_corners=False)
    column, row = (column + 0.5).floor().long(), (row + 0.5).floor().long()
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
    place = (row * W + column).masked_fill(~inside, 0).view(B, 1, H * W)

    def turned(values: Tensor) -> Tensor:
        frames = values.reshape(B, -1, H * W)
        moved = frames.gather(2, place.expand_as(frames))
        return moved.masked_fill(~inside.view(B, 1, -1), 0).reshape(values.shape)

    return flat.round().view(images.shape), {name: turned(value) for name, value in maps.items()}


def _coloured(images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Change hue, saturation, tones, noise and compression of blurred images (B, T, 3, H, W)."""
    B, T, C, H, W = images.shape
    images = (batch[_MATRIX][:, None] @ images.flatten(3)).round().clamp(0, 255)  # (B, T, 3, H * W)
    table = batch[_TABLE][:, None].expand(B, T, C, 256)
    images = table.gather(3, images.long()).float().view(B, T, C, H, W)
    bank = _noise_bank(images.device)
    place = (batch[_GRAIN][:, None] + torch.arange(H * W * C, device=images.device)) % len(bank)
    noise = bank[place].view(B, 1, H, W, C).permute(0, 1, 4, 2, 3) * _over(batch[_NOISE], images)
    images = (images + noise).round().clamp(0, 255)
    quality = batch[_QUALITY]
    coded = compress(images.flatten(0, 1), quality.clamp(min=1).repeat_interleave(T)).view_as(images)
    return torch.where(_over(quality > 0, images), coded, images)


@lru_cache(maxsize=16)
def _noise_bank(device: torch.device) -> Tensor:
    return torch.from_numpy(transforms.noise_bank()).to(device)
