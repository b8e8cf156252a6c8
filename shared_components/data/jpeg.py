"""Lose what JPEG loses, for a batch on any device: ITU-T T.81 with the tables of its Annex K and libjpeg's choices.

Entropy coding loses nothing and is left out. Colours are stored at half the resolution (4:2:0). The device's rounding
differs from libjpeg's integers by a few grey levels in few pixels.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

_LUMINANCE = """
16 11 10 16  24  40  51  61
12 12 14 19  26  58  60  55
14 13 16 24  40  57  69  56
14 17 22 29  51  87  80  62
18 22 37 56  68 109 103  77
24 35 55 64  81 104 113  92
49 64 78 87 103 121 120 101
72 92 95 98 112 100 103  99
"""  # Table K.1
_CHROMINANCE = (
    """
17 18 24 47 99 99 99 99
18 21 26 66 99 99 99 99
24 26 56 99 99 99 99 99
47 66 99 99 99 99 99 99
"""
    + 4 * "99 99 99 99 99 99 99 99\n"
)  # Table K.2
_LUMA = (0.114, 0.587, 0.299)  # OpenCV stores blue first
_BLUE_DIFFERENCE = (0.5, -0.331264, -0.168736)
_RED_DIFFERENCE = (-0.081312, -0.418688, 0.5)


def compress(images: Tensor, quality: Tensor) -> Tensor:
    """Return images, grey levels (N, 3, H, W), as `cv2.imdecode` returns them after `cv2.imencode` with JPEG.

    ``quality``, (N,), is 1 to 100. The first channel is blue to OpenCV, whatever it shows.
    """
    _, _, H, W = images.shape
    forward, transform, tables = _constants(images.device)
    padded = F.pad(images, (0, -W % 16, 0, -H % 16), mode="replicate")
    planes = (forward @ padded.flatten(2)).view_as(padded)  # Y, Cb - 128, Cr - 128
    planes = planes.round()
    steps = _quantisation(tables, quality)  # (N, 2, 8, 8)
    luma = _coded(planes[:, :1] - 128, steps[:, :1], transform) + 128
    bias = (1 + torch.arange(padded.shape[3] // 2, device=images.device) % 2) / 4  # libjpeg rounds by column
    small = (F.avg_pool2d(planes[:, 1:], 2) + bias).floor()
    chroma = F.interpolate(_coded(small, steps[:, 1:], transform), scale_factor=2, mode="bilinear").round()
    blue, red = chroma.unbind(1)
    y = luma[:, 0]
    decoded = torch.stack([y + 1.772 * blue, y - 0.344136 * blue - 0.714136 * red, y + 1.402 * red], 1)
    return decoded[:, :, :H, :W].round().clamp(0, 255)


def _coded(planes: Tensor, steps: Tensor, transform: Tensor) -> Tensor:
    """Quantise the cosine transform of each block of 8x8 pixels of (N, C, H, W), values -128 to 127."""
    N, C, H, W = planes.shape
    blocks = planes.view(N, C, H // 8, 8, W // 8, 8).transpose(3, 4)  # (N, C, H / 8, W / 8, 8, 8)
    steps = steps[:, :, None, None]  # (N, 1, 1, 1, 8, 8)
    quantised = (transform @ blocks @ transform.T / steps).round() * steps
    decoded = (transform.T @ quantised @ transform).round().clamp(-128, 127)
    return decoded.transpose(3, 4).reshape(N, C, H, W)


def _quantisation(tables: Tensor, quality: Tensor) -> Tensor:
    """Return libjpeg's quantisation steps, (N, 2, 8, 8), of qualities (N,)."""
    scale = torch.where(quality < 50, 5000 // quality, 200 - 2 * quality).view(-1, 1, 1, 1)
    return ((tables * scale + 50) // 100).clamp(1, 255).float()


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrix of colours (3, 3), the cosine transform (8, 8), and the quantisation tables (2, 8, 8)."""
    forward = torch.tensor([_LUMA, _BLUE_DIFFERENCE, _RED_DIFFERENCE])
    rows = [[math.cos((2 * i + 1) * u * math.pi / 16) / 2 for i in range(8)] for u in range(8)]
    transform = torch.tensor(rows)
    transform[0] /= math.sqrt(2)
    tables = torch.tensor([[int(step) for step in table.split()] for table in (_LUMINANCE, _CHROMINANCE)])
    return forward.to(device), transform.to(device), tables.view(2, 8, 8).to(device)
