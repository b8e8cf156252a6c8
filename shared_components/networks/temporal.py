"""The temporal layer of FedST: windows of the current frame attend to regions of earlier frames.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.2.1, Eqs. (3) and (4); coarse to fine as in Sun et al.,
"Coarse-to-fine feature mining for video semantic segmentation", CVPR 2022. Written from both descriptions.

Our own choices, since our text of FedST does not specify them:

- the default sizes
- cells aligned to each window, not to the map's corner
- one FC layer for the tokens of all frames
- norms, the feed-forward layer, and zero initialisation of the last layer of both branches
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Sizes of windows and cells in pixels of the map; ValueError if they are inconsistent."""

    window: int = 7  # side of a window
    receptive_fields: Sequence[int] = (49, 20, 6, 7)  # side of the square that a window sees, oldest frame first
    kernels: Sequence[int] = (7, 4, 2, 1)  # side of the pooled cells in each frame
    expansion: int = 2  # hidden channels of the feed-forward layer, as a multiple of the map's channels

    def __post_init__(self) -> None:
        window, fields, kernels = self.window, list(self.receptive_fields), list(self.kernels)
        if not fields or len(fields) != len(kernels) or min([window, *fields, *kernels]) < 1:
            raise ValueError(
                f"window is {window}, receptive_fields are {fields} and kernels {kernels}; give positive whole "
                "numbers, and one of each per frame, oldest first"
            )
        if self.expansion < 1:
            raise ValueError(f"expansion is {self.expansion}; give a positive whole number")
        if wrong := [(field, kernel) for field, kernel in zip(fields, kernels, strict=True) if field % kernel]:
            field, kernel = wrong[0]
            raise ValueError(
                f"receptive field {field} is not a multiple of its kernel {kernel}; use "
                f"{max(1, field // kernel) * kernel}, for example"
            )
        if fields[-1] < window:
            raise ValueError(
                f"the current frame's receptive field is {fields[-1]}, smaller than the window {window}; use at least "
                f"{window}, so that every pixel can attend to a cell"
            )


class View(nn.Module):
    """The region of one frame that each window sees: a square of cells, each the average of kernel x kernel pixels.

    Square and window have the same centre, rounded towards the top left. A cell averages its pixels inside the map; a
    cell outside the map is masked. `field` is the side of the square, a multiple of `kernel`, in pixels of the map.
    """

    def __init__(self, *, window: int, field: int, kernel: int, heads: int) -> None:
        super().__init__()
        self.window, self.kernel = window, kernel
        self.cells = field // kernel
        self.offset = (window - field) // 2  # offset from a window's first pixel to its first cell
        # one entry per distance in pixels between a cell and a pixel of the window, smallest first
        distances = field - kernel + window
        self.bias = nn.Parameter(torch.empty(heads, distances, distances))
        nn.init.trunc_normal_(self.bias, std=0.02)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool one frame (B, H, W, C) into cells that windows share.

        Returns the cells (B, M, C); the indices of each window's cells, row by row, (windows, cells^2); and the
        attention bias (windows, heads, window^2, cells^2), minus infinity for cells outside the map.
        """
        B, H, W, C = features.shape
        rows, row, inside_rows = self._along(H, features)
        columns, column, inside_columns = self._along(W, features)
        # (rows, H) @ (B, H, W*C) -> (B, rows, W, C); (columns, W) @ that -> (B, rows, columns, C)
        pooled = columns @ (rows @ features.reshape(B, H, W * C)).reshape(B, rows.shape[0], W, C)
        # (windows down, 1, cells, 1) and (windows across, 1, cells) -> (windows, cells^2)
        which = row[:, None, :, None] * columns.shape[0] + column[:, None]
        seen = inside_rows[:, None, :, None] & inside_columns[:, None]
        outside = ~seen.flatten(0, 1).flatten(1)  # (down, across, cells, cells) -> (windows, cells^2)
        bias = self._position_bias().masked_fill(outside[:, None, None], float("-inf"))
        return pooled.flatten(1, 2), which.flatten(0, 1).flatten(1), bias

    def _along(self, length: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the cells along one side of the map.

        Returns the weight of each pixel in each cell (M, length), each window's cells (windows, cells), and whether
        these cells have a pixel inside the map (windows, cells).
        """
        windows = (length + self.window - 1) // self.window
        first = torch.arange(windows, device=like.device)[:, None] * self.window + self.offset
        start = first + torch.arange(self.cells, device=like.device) * self.kernel
        nearest = start.clamp(1 - self.kernel, length - 1)  # every cell gets a pixel inside the map
        starts, which = torch.unique(nearest, return_inverse=True)
        after = torch.arange(length, device=like.device) - starts[:, None]
        weights = ((after >= 0) & (after < self.kernel)).to(like.dtype)
        return weights / weights.sum(1, keepdim=True), which, start == nearest

    def _position_bias(self) -> Tensor:
        """Return the attention bias of each pixel of a window and each cell, (heads, window^2, cells^2)."""
        cell = torch.arange(self.cells, device=self.bias.device) * self.kernel
        pixel = torch.arange(self.window, device=self.bias.device)
        distance = cell - pixel[:, None] + self.window - 1  # (window, cells), from 0
        # (heads, distances, distances) -> (heads, window, window, cells, cells), rows before columns
        bias = self.bias[:, distance[:, None, :, None], distance[None, :, None, :]]
        return bias.reshape(-1, self.window * self.window, self.cells * self.cells)  # (heads, window^2, cells^2)


class TemporalLayer(nn.Module):
    """Enrich the current frame's feature map by cross-attention to the current frame and earlier frames.

    248,740 parameters for 160 channels and 5 heads, 619,168 for 256 channels and 8 heads. At initialisation the output
    equals the current frame's map.

    Args:
        channels: Number of channels of the maps.
        heads: Number of attention heads, which divides `channels`.
        sizes: Sizes of windows and cells.
    """

    def __init__(self, channels: int, *, heads: int, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.window = heads, sizes.window
        pairs = zip(sizes.receptive_fields, sizes.kernels, strict=True)
        self.views = nn.ModuleList(View(window=sizes.window, field=f, kernel=k, heads=heads) for f, k in pairs)
        self.refine = nn.Linear(channels, channels)
        self.norm_context = nn.LayerNorm(channels, eps=1e-6)
        self.norm_query = nn.LayerNorm(channels, eps=1e-6)
        self.q = nn.Linear(channels, channels)
        self.kv = nn.Linear(channels, 2 * channels)  # rows are [K; V]
        self.proj = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.fc1 = nn.Linear(channels, sizes.expansion * channels)
        self.fc2 = nn.Linear(sizes.expansion * channels, channels)
        for linear in (self.refine, self.q, self.kv, self.fc1):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        for linear in (self.proj, self.fc2):  # the last layers of both branches, for an initial identity
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, frames: list[Tensor]) -> Tensor:
        """Return the enriched map (B, C, H, W) of the last of T maps (B, C, H, W), in channels-last memory format.

        Raises ValueError unless there is one map per receptive field.
        """
        if len(frames) != len(self.views):
            raise ValueError(f"TemporalLayer takes maps of {len(self.views)} frames, and got {len(frames)}")
        current = frames[-1].permute(0, 2, 3, 1)  # (B, C, H, W) -> (B, H, W, C)
        enriched = current + self.proj(self._attend(current, frames))
        enriched = enriched + self.fc2(F.gelu(self.fc1(self.norm(enriched))))
        return enriched.permute(0, 3, 1, 2)  # (B, H, W, C) -> (B, C, H, W)

    def _attend(self, current: Tensor, frames: list[Tensor]) -> Tensor:
        """Eq. (4): softmax(Q K^T / sqrt(c) + bias) V in every window; (B, H, W, C) -> (B, H, W, C)."""
        B, H, W, C = current.shape
        down, right = -H % self.window, -W % self.window  # padding to whole windows
        windows = split(F.pad(self.q(self.norm_query(current)), (0, 0, 0, right, 0, down)), self.window)
        # (B * windows, window^2, C) -> (B * windows, heads, window^2, C/heads)
        query = windows.reshape(windows.shape[0], -1, self.heads, C // self.heads).transpose(1, 2)
        keys_values, bias = self._context(frames)
        # (windows, heads, window^2, K) -> (B * windows, heads, window^2, K)
        bias = bias.to(query.dtype).expand(B, -1, -1, -1, -1).flatten(0, 1)
        attended = F.scaled_dot_product_attention(query, keys_values[0], keys_values[1], bias).transpose(1, 2)
        # -> (B * windows, window^2, C); contiguous, since exporters would assume this machine's memory layout
        attended = attended.clone(memory_format=torch.contiguous_format).reshape(windows.shape)
        return join(attended, self.window, H + down, W + right)[:, :H, :W]

    def _context(self, frames: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Eq. (3): return keys and values (2, B * windows, heads, K, C/heads) of the K tokens that each window sees.

        Also returns the attention bias (windows, heads, window^2, K).
        """
        cells: list[Tensor] = []
        places: list[Tensor] = []
        biases: list[Tensor] = []
        before = 0
        for number, view in enumerate(self.views):
            pooled, which, bias = view(frames[number].permute(0, 2, 3, 1))  # (B, C, H, W) -> (B, H, W, C)
            cells.append(pooled)
            places.append(which + before)
            biases.append(bias)
            before += pooled.shape[1]
        keys_values = self.kv(self.norm_context(self.refine(torch.cat(cells, 1))))  # (B, M, 2C)
        which = torch.cat(places, 1)  # (windows, K)
        seen = keys_values.index_select(1, which.flatten())  # (B, windows * K, 2C)
        # -> (B * windows, K, 2, heads, C/heads)
        parted = seen.reshape(seen.shape[0] * which.shape[0], which.shape[1], 2, self.heads, -1)
        return parted.permute(2, 0, 3, 1, 4), torch.cat(biases, 3)  # (2, B * windows, heads, K, C/heads)


def split(cells: Tensor, size: int) -> Tensor:
    """Split a map into squares, row by row: (B, h * size, w * size, C) -> (B * h * w, size^2, C)."""
    B, H, W, C = cells.shape
    squares = cells.reshape(B, H // size, size, W // size, size, C).transpose(2, 3)  # (B, h, w, size, size, C)
    return squares.reshape(-1, size * size, C)


def join(squares: Tensor, size: int, height: int, width: int) -> Tensor:
    """Undo `split`: (B * h * w, size^2, C) -> (B, height, width, C); both sides are multiples of the size."""
    rows = squares.reshape(-1, width // size, size, size, squares.shape[2]).transpose(1, 2)  # (B * h, size, w, size, C)
    return rows.reshape(-1, height, width, squares.shape[2])
