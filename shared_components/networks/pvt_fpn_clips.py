"""The network of FedST: PVTv2-b0 on each frame of a clip, a temporal layer, a site's text, and one decoder.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.2. With neither temporal layer nor text and four classes
it has 5,166,180 parameters, the 19.71 MB (of 2^20 bytes) that the paper's Table 9 gives for FedAvg.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared_components.networks.channel_selection import ChannelSelection, Prompt, checked_indicator
from shared_components.networks.pvt_fpn import SEGMENTATION, FpnDecoder
from shared_components.networks.pvt_v2 import CHANNELS, HEADS, PvtV2B0
from shared_components.networks.temporal import EXPANSION, KERNELS, RECEPTIVE_FIELDS, WINDOW, TemporalLayer

STRIDES = (4, 8, 16, 32)  # pixels of the image per pixel of the encoder's maps
TEXTS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": nn.Identity, "prompt": Prompt, "selection": ChannelSelection,
}  # fmt: skip
INDICATOR = 384


@dataclass(frozen=True)
class Memory:
    """The state of a stream between two frames: maps of the last (T - 1) * stride frames.

    Attributes:
        stride: Frames from one frame of a clip to the next; 5 for clips of frames 0.2 s apart at 25 frames a second.
        padding: Replaces frames before the stream's beginning: its `first` frame, or the `current` one.
        frames: Oldest first; of each the maps that the temporal layer reads, (B, C, H, W).
    """

    stride: int = 1
    padding: str = "first"
    frames: tuple[tuple[Tensor, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(
                f"the stride of a stream is {self.stride}; it is a number of frames, from 1 (all of them) on"
            )


class PvtFpnClips(nn.Module):
    """Segment the current frame of a clip; 6,285,384 parameters for four classes and an indicator of 384.

    A picture counts as a clip that repeats it. Networks of one seed have the same encoder, decoder and head, whatever
    `temporal` and `text` are.

    Args:
        out_channels: Number of classes, background included.
        temporal: Whether the current frame attends to those before it; without, a network of single frames.
        text: Use of a site's text: `selection` of channels, `prompt`, or `none`.
        indicator: Length of the text's indicator, see `set_indicator`.
        levels: Maps to enrich, by their strides (pixels of the image per pixel of the map).
        window, receptive_fields, kernels, expansion: See `temporal.TemporalLayer`; one receptive field per frame.
        drop_path: Stochastic depth of the last encoder block.
        dropout: Channel dropout of the decoder.

    Raises:
        ValueError: An argument is unknown, or the sizes do not fit each other; one sentence.
    """

    stride: Final = 32  # pixels per cell of the coarsest feature map, each way
    additions = ("temporal", "selection", "indicator")  # initial weights may lack them
    decoders: Final = (("decoder", "head"),)  # see `fused_fpn.fuse`
    indicator: Tensor

    def __init__(
        self,
        *,
        out_channels: int = 4,
        temporal: bool = True,
        text: str = "selection",
        indicator: int = INDICATOR,
        levels: Sequence[int] = (16, 32),
        window: int = WINDOW,
        receptive_fields: Sequence[int] = RECEPTIVE_FIELDS,
        kernels: Sequence[int] = KERNELS,
        expansion: int = EXPANSION,
        drop_path: float = 0.1,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _check_choices(text, levels, indicator)
        sizes: dict[str, Any] = dict(
            window=window, receptive_fields=receptive_fields, kernels=kernels, expansion=expansion
        )
        choices: dict[str, Any] = dict(temporal=temporal, text=text, indicator=indicator, levels=levels)
        self.remade = partial(PvtFpnClips, **choices, **sizes, drop_path=drop_path, dropout=dropout)
        self.takes_clips = temporal
        self.frames = len(receptive_fields) if temporal else 1
        self.places = sorted(STRIDES.index(level) for level in levels)  # of the encoder's maps
        self.encoder = PvtV2B0(drop_path=drop_path)
        self.decoder = FpnDecoder(CHANNELS, dropout=dropout)
        self.head = nn.Conv2d(SEGMENTATION, out_channels, 1)
        self.temporal = self._at_levels(
            lambda place: TemporalLayer(CHANNELS[place], heads=HEADS[place], **sizes), wanted=temporal
        )
        self.selection = self._at_levels(lambda place: TEXTS[text](CHANNELS[place], indicator), wanted=text != "none")
        if text != "none":
            self.register_buffer("indicator", torch.zeros(indicator))
        self.parts = self._parts()

    def with_classes(self, out_channels: int) -> "PvtFpnClips":
        """Return a fresh, newly initialised network that differs in the number of classes alone."""
        return self.remade(out_channels=out_channels)

    def set_indicator(self, indicator: Tensor) -> None:
        """Set the indicator of a site's text, (D,), a part of the state that is initially zero.

        Raises ValueError for another shape, numbers that are not finite, or a network without text.
        """
        if "selection" not in self.parts:
            raise ValueError("PvtFpnClips was made with text 'none'; make it with 'selection' or 'prompt'")
        self.indicator.copy_(checked_indicator(indicator, self.indicator, "PvtFpnClips"))

    def forward(self, clip: Tensor) -> Tensor:
        """Predict the logits of the current frame: (B, T, 3, H, W) in [0, 1] -> (B, out_channels, H, W).

        The oldest frame is first, the current one last; a frame (B, 3, H, W) counts as a clip that repeats it. H and W
        are multiples of 32; ValueError for any other size.
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
        """Return the memory before a stream's first frame, see `remember`; ValueError for a stride below 1."""
        return Memory(stride, padding)

    def remember(self, image: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Predict the next frame of a stream; every frame is encoded once.

        The result is that of `forward`, in evaluation, on the clip of this frame and those `stride`, 2 * `stride`, ...
        frames before it; see `Memory` for frames before the beginning. No gradient reaches earlier frames.

        Takes a frame (B, 3, H, W) in [0, 1] and the memory of the frame before, at the beginning that of
        `begin_stream`; returns logits (B, out_channels, H, W) and the memory for the next frame. Raises ValueError
        unless 32 divides H and W, and for another size than that of the frame before.
        """
        if image.dim() != 4:
            raise ValueError(f"PvtFpnClips remembers frames (B, 3, H, W), and got {list(image.shape)}")
        self._check(image)
        features = self.encoder(image)
        own = tuple(features[p].detach() for p in self.places)
        if memory.frames and memory.frames[-1][0].shape != own[0].shape:
            raise ValueError(f"the stream's frames changed their size before {list(image.shape)}; begin a new stream")
        seen = (*memory.frames, own)
        instead = 0 if memory.padding == "first" else -1
        places = [len(seen) - 1 - back * memory.stride for back in range(self.frames - 1, 0, -1)]
        clip = [seen[place if place >= 0 else instead] for place in places]
        logits = self.decode(self._enriched(features, [[x[n] for x in clip] for n in range(len(own))]))
        kept = (self.frames - 1) * memory.stride
        return logits, replace(memory, frames=seen[-kept:] if kept else ())

    def decode(self, features: list[Tensor]) -> Tensor:
        """Predict (B, out_channels, H, W) from the four maps of the current frame, those of `encoder` or enriched ones.

        H and W are four times those of `features[0]`.
        """
        logits = self.head(self.decoder(features))
        return F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)

    def _enriched(self, current: list[Tensor], past: list[list[Tensor]]) -> list[Tensor]:
        """Return the four maps of the current frame, at the levels enriched by the past and by the site's text.

        ``past`` holds for each level the maps of the frames before, oldest first.
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
                f"{rows}x{columns} would do"
            )

    def _at_levels(self, make: Callable[[int], nn.Module], *, wanted: bool) -> nn.ModuleDict:
        """Return a module per level under the level's name; none if they are not wanted."""
        return nn.ModuleDict({str(STRIDES[place]): make(place) for place in self.places if wanted})

    def _parts(self) -> dict[str, tuple[str, ...]]:
        """Return the parts, among them those of the encoder that RSC may keep at the site (the paper's Table 6)."""
        inner = {f"encoder.{name}": module for name, module in self.encoder.named_modules()}
        past = tuple(f"temporal.{level}.q" for level in self.temporal)
        held = {name.partition(".")[0] for name in self.state_dict()}
        return {
            "encoder": ("encoder",),
            "queries": tuple(name for name in inner if name.endswith(".attn.q")),
            "keys_values": tuple(name for name in inner if name.endswith(".attn.kv")),  # rows are [K; V]
            "norms": tuple(name for name, module in inner.items() if isinstance(module, nn.LayerNorm)),
            "decoder": ("decoder",),
            "head": ("head",),
            "top": ("head",),
            **({"temporal_queries": past} if past else {}),
        } | {name: (name,) for name in self.additions if name in held}


def _check_choices(text: str, levels: Sequence[int], indicator: int) -> None:
    if text not in TEXTS:
        raise ValueError(f"PvtFpnClips: text is {text!r}; use one of {', '.join(TEXTS)}")
    if not levels or len(set(levels)) != len(levels) or not set(levels) <= set(STRIDES):
        raise ValueError(
            f"PvtFpnClips: levels are {list(levels)}; name one or more of {', '.join(map(str, STRIDES))}, each once"
        )
    if indicator < 1:
        raise ValueError(f"PvtFpnClips: indicator is {indicator}; it is how many numbers the text's vector has")
