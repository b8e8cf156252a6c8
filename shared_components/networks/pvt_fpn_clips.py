"""The network of FedST: PVTv2-b0 on each frame of a clip, a temporal layer, channel selection by text, one decoder.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.2. Without temporal layer and text it has 5,166,180
parameters for four classes, which is the 19.71 MB (of 2^20 bytes) of FedAvg in the paper's Table 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.common.arguments import between
from shared_components.networks.channel_selection import ChannelSelection, Prompt, copy_indicator
from shared_components.networks.pvt_fpn import SEGMENTATION, FpnDecoder
from shared_components.networks.pvt_v2 import CHANNELS, HEADS, PvtV2B0
from shared_components.networks.temporal import Sizes, TemporalLayer

STRIDES = (4, 8, 16, 32)  # strides of the encoder's feature maps in pixels
TEXTS: dict[str, Any] = {"none": nn.Identity, "prompt": Prompt, "selection": ChannelSelection}
INDICATOR = 384


@dataclass(frozen=True)
class Memory:
    """State of a stream between two frames: feature maps of the last (T - 1) * stride frames."""

    stride: int = 1  # stream frames between two frames of a clip: 5 for 0.2 s at 25 frames per second
    padding: str = "first"  # replacement of frames before the stream's beginning: the `first` or the `current` frame
    frames: tuple[tuple[Tensor, ...], ...] = ()  # maps (B, C, H, W) of the temporal layer, oldest frame first

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"the stride of a stream is {self.stride}; give a number of frames, at least 1")


class PvtFpnClips(nn.Module):
    """Segment the current frame of a clip; 6,285,384 parameters for four classes and an indicator of length 384.

    An image is treated as a clip of identical frames. With the same seed the initial encoder, decoder and head do not
    depend on `temporal` and `text`.

    Args:
        out_channels: Number of classes, including background.
        temporal: Let the current frame attend to earlier frames; otherwise the network takes single frames.
        text: Use of a site's text: `selection` of channels, `prompt`, or `none`.
        indicator: Length of the text's indicator, see `set_indicator`.
        levels: Strides in pixels of the feature maps that the temporal layer and the text enrich.
        window, receptive_fields, kernels, expansion: See `temporal.Sizes`; one receptive field per frame.
        drop_path: Stochastic depth of the last encoder block.
        dropout: Channel dropout of the decoder.

    Raises ValueError: an argument is unknown, or the sizes are inconsistent.
    """

    stride: Final = 32  # stride of the coarsest feature map in pixels
    additions = ("temporal", "selection", "indicator")  # initial weights may lack them
    fusable: Final = (("decoder", "head"),)  # see `fused_fpn.fuse`
    indicator: Tensor

    def __init__(
        self,
        *,
        out_channels: int = 4,
        temporal: bool = True,
        text: str = "selection",
        indicator: int = INDICATOR,
        levels: Sequence[int] = (16, 32),
        window: int = Sizes.window,
        receptive_fields: Sequence[int] = Sizes.receptive_fields,
        kernels: Sequence[int] = Sizes.kernels,
        expansion: int = Sizes.expansion,
        drop_path: float = 0.1,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if text not in TEXTS:
            raise ValueError(f"PvtFpnClips: text is {text!r}; use one of {', '.join(TEXTS)}")
        if not levels or len(set(levels)) != len(levels) or not set(levels) <= set(STRIDES):
            strides = ", ".join(map(str, STRIDES))
            raise ValueError(f"PvtFpnClips: levels are {list(levels)}; give one or more of {strides}, each once")
        between("PvtFpnClips", "indicator", indicator, 1, whole=True)
        sizes = Sizes(window, receptive_fields, kernels, expansion)
        self.remade = partial(
            PvtFpnClips, temporal=temporal, text=text, indicator=indicator, levels=levels, **vars(sizes),
            drop_path=drop_path, dropout=dropout,
        )  # fmt: skip
        self.takes_clips = temporal
        self.frames = len(receptive_fields) if temporal else 1
        self.places = sorted(STRIDES.index(level) for level in levels)  # indices of the encoder's feature maps
        self.encoder = PvtV2B0(drop_path=drop_path)
        self.decoder = FpnDecoder(CHANNELS, dropout=dropout)
        self.head = nn.Conv2d(SEGMENTATION, out_channels, 1)
        self.temporal, self.selection = nn.ModuleDict(), nn.ModuleDict()  # by the level's stride
        for place in self.places if temporal else ():
            self.temporal[str(STRIDES[place])] = TemporalLayer(CHANNELS[place], heads=HEADS[place], sizes=sizes)
        for place in self.places if text != "none" else ():
            self.selection[str(STRIDES[place])] = TEXTS[text](CHANNELS[place], indicator)
        if text != "none":
            self.register_buffer("indicator", torch.zeros(indicator))
        self.parts = self._parts()

    def with_classes(self, out_channels: int) -> "PvtFpnClips":
        """Return a newly initialised network with another number of classes."""
        return self.remade(out_channels=out_channels)

    def set_indicator(self, indicator: Tensor) -> None:
        """Set the indicator of a site's text, (D,), initially zero; ValueError as `copy_indicator`."""
        copy_indicator(self, indicator, has_text="selection" in self.parts)

    def forward(self, clip: Tensor) -> Tensor:
        """Predict the logits of the current frame: (B, T, 3, H, W) in [0, 1] -> (B, out_channels, H, W).

        The current frame is the last frame; an image (B, 3, H, W) is treated as a clip of identical frames. H and W are
        multiples of 32; ValueError for other sizes.
        """
        self._check(clip)
        if clip.dim() == 4:
            features = self.encoder(clip)
            past = [[features[p]] * (self.frames - 1) for p in self.places]
            return self.decode(self._enriched(features, past))
        B, T, _C, _H, _W = clip.shape
        # (B, T, 3, H, W) -> (B*T, 3, H, W) -> four maps (B*T, C, h, w) -> (B, T, C, h, w)
        maps = [x.reshape(B, T, x.shape[1], x.shape[2], x.shape[3]) for x in self.encoder(clip.flatten(0, 1))]
        past = [[maps[p][:, t] for t in range(T - 1)] for p in self.places]
        return self.decode(self._enriched([x[:, T - 1] for x in maps], past))

    def begin_stream(self, stride: int = 1, padding: str = "first") -> Memory:
        """Return the initial memory of a stream, see `remember`; ValueError for a stride below 1."""
        return Memory(stride, padding)

    def remember(self, image: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Predict the next frame of a stream, and encode every frame once.

        In evaluation mode the result equals `forward` on the clip of this frame and the frames `stride`, 2 * `stride`,
        ... before it; see `Memory` for padding. No gradient reaches earlier frames.

        Takes a frame (B, 3, H, W) in [0, 1] and the memory after the previous frame, or of `begin_stream`. Returns
        logits (B, out_channels, H, W) and the memory for the next frame. ValueError if the size is not a multiple of 32
        or differs from the previous frame's.
        """
        if image.dim() != 4:
            raise ValueError(f"PvtFpnClips remembers frames (B, 3, H, W), and got {list(image.shape)}")
        self._check(image)
        features = self.encoder(image)
        maps = tuple(features[p].detach() for p in self.places)
        if memory.frames and memory.frames[-1][0].shape != maps[0].shape:
            raise ValueError(f"the frame size of the stream changed to {list(image.shape)}; begin a new stream")
        frames = (*memory.frames, maps)
        padding = 0 if memory.padding == "first" else -1
        indices = [len(frames) - 1 - back * memory.stride for back in range(self.frames - 1, 0, -1)]
        clip = [frames[index if index >= 0 else padding] for index in indices]
        logits = self.decode(self._enriched(features, [[x[n] for x in clip] for n in range(len(maps))]))
        length = (self.frames - 1) * memory.stride
        return logits, replace(memory, frames=frames[-length:] if length else ())

    def decode(self, features: list[Tensor]) -> Tensor:
        """Predict logits (B, out_channels, 4h, 4w) from four raw or enriched feature maps, first (B, C, h, w)."""
        logits = self.head(self.decoder(features))
        return F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)

    def _enriched(self, current: list[Tensor], past: list[list[Tensor]]) -> list[Tensor]:
        """Return the current frame's four feature maps, enriched by earlier frames and the site's text.

        ``past`` contains the feature maps of earlier frames for each level, oldest first.
        """
        enriched = [x for x in current]
        for number, layer in enumerate(self.temporal.values()):
            place = self.places[number]
            enriched[place] = layer(past[number] + [current[place]])
        for number, layer in enumerate(self.selection.values()):
            place = self.places[number]
            enriched[place] = layer(enriched[place], self.indicator)
        return enriched

    def _check(self, clip: Tensor) -> None:
        frames, stride, H, W = self.frames, self.stride, clip.shape[-2], clip.shape[-1]
        fits = clip.dim() == 4 or (clip.dim() == 5 and clip.shape[1] == frames)
        if not fits or clip.shape[-3] != 3:
            raise ValueError(
                f"PvtFpnClips takes frames (B, 3, H, W) or clips (B, {frames}, 3, H, W), and got {list(clip.shape)}"
            )
        if H % stride or W % stride or H * W == 0:
            rows, columns = max(1, round(H / stride)) * stride, max(1, round(W / stride)) * stride
            raise ValueError(
                f"PvtFpnClips takes height and width in multiples of {stride}, and got {H}x{W}; "
                f"use {rows}x{columns}, for example"
            )

    def _parts(self) -> dict[str, tuple[str, ...]]:
        """Return the parts, including the encoder's parts that RSC may keep at the site (the paper's Table 6)."""
        inner = {f"encoder.{name}": module for name, module in self.encoder.named_modules()}
        parts = {
            "encoder": ("encoder",),
            "queries": tuple(name for name in inner if name.endswith(".attn.q")),
            "keys_values": tuple(name for name in inner if name.endswith(".attn.kv")),  # rows are [K; V]
            "norms": tuple(name for name, module in inner.items() if isinstance(module, nn.LayerNorm)),
            "decoder": ("decoder",), "head": ("head",), "top": ("head",),
        }  # fmt: skip
        if self.temporal:
            parts["temporal_queries"] = tuple(f"temporal.{level}.q" for level in self.temporal)
        modules = {name.partition(".")[0] for name in self.state_dict()}
        return parts | {name: (name,) for name in self.additions if name in modules}
