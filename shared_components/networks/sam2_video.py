"""The network of SurgFed: SAM2 on clips, with gradients through time, a site's text, and a head for depth.

Fang et al., "SurgFed: Language-guided multi-task federated learning for surgical video understanding" (arXiv
2603.09496), Section III, on Ravi et al., "SAM 2", arXiv 2408.00714. Its modules are those of `transformers`, and their
tensors have the library's names; the loop over frames is ours, see `sam2_steps`. One mask per object is predicted, the
first of SAM2's four; the heads of IoU and objectness are off.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of, true_or_false
from shared_components.networks.bundle_config import check_size
from shared_components.networks.channel_selection import ChannelSelection, Prompt, ReleasedSelection, checked_indicator
from shared_components.networks.sam2_architectures import ARCHITECTURES, CELL, build_sam2
from shared_components.networks.sam2_boxes import check_boxes, whole_frame
from shared_components.networks.sam2_frames import Maps, Remember, predicted
from shared_components.networks.sam2_memory import Track
from shared_components.networks.sam2_steps import grid_of

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
INDICATOR = 384
TEXTS = ("selection", "released", "prompt", "none")
DEPTH_STRIDES = (16, 4)
MODULES = (
    "vision_encoder", "prompt_encoder", "mask_decoder", "memory_attention", "memory_encoder", "object_pointer_proj",
    "temporal_positional_encoding_projection_layer",
)  # fmt: skip
Features = tuple[Tensor, Tensor, Tensor]
"""Maps of the image encoder, (B, T, C, H/s, W/s) for s = 4, 8 and 16."""


@dataclass(frozen=True)
class Memory:
    """The state of a stream between two frames; its size does not grow with the stream.

    Attributes:
        boxes: Of the next frame, (N, 4); None: none, or on the first one the whole frame.
        stride: Frames of the stream from one that is remembered to the next.
        frame: Number of the next frame.
        side: Of the frames, in pixels; 0 before the first.
        tracks: An object's memory, each.
    """

    boxes: Tensor | None
    stride: int = 1
    frame: int = 0
    side: int = 0
    tracks: tuple[Track, ...] = ()

    def __post_init__(self) -> None:
        between("stream", "stride", self.stride, 1, whole=True)


class Sam2Clips(nn.Module):
    """Segment objects in clips, each prompted by a box, or estimate depth.

    All tensors have the same names and shapes whatever is learnt: SAM2 has no classes, and the depth head is
    everywhere. `transformers` is needed where a network is built.

    Args:
        out_channels: Classes with background, each an object but the background; 1: depth.
        architecture: One of `sam2_architectures.ARCHITECTURES`.
        size: Side of a frame in pixels for which SAM2's modules are made; any other multiple of 32 is taken, too.
        frames: Of a training clip; clips of any length are taken.
        text: Use of the site's text: `selection` of channels (Eq. 2), its `released` form, a `prompt` without
            selection (Table II, row 4), or `none`.
        indicator: Length of the text's vector, see `set_indicator`.
        dropout: Of memory attention.
        depth_stride: Pixels per cell of the decoder's map from which depth is computed: 16, as released, or 4.
        trained_encoders: Whether image and prompt encoder are trained, too.

    Raises:
        ValueError: An argument is unknown or out of its range, or `transformers` is not installed; one sentence.
    """

    stride: Final = 32  # a frame's sides are multiples
    squares: Final = True  # and equal
    takes_clips: Final = True
    takes_boxes = True
    additions = ("depth_head", "selection", "indicator")  # initial weights may lack them
    indicator: Tensor
    mean: Tensor
    deviation: Tensor
    vision_encoder: Any
    prompt_encoder: Any
    mask_decoder: Any
    memory_encoder: Any

    def __init__(
        self,
        *,
        out_channels: int = 4,
        architecture: str = "cpu",
        size: int = 128,
        frames: int = 2,
        text: str = "selection",
        indicator: int = INDICATOR,
        dropout: float = 0.1,
        depth_stride: int = 16,
        trained_encoders: bool = False,
    ) -> None:
        super().__init__()
        _check_choices(
            out_channels, architecture, size, frames, text, indicator, dropout, depth_stride, trained_encoders
        )
        choices: dict[str, Any] = dict(architecture=architecture, size=size, frames=frames, text=text)
        others: dict[str, Any] = dict(depth_stride=depth_stride, trained_encoders=trained_encoders)
        self.remade = partial(Sam2Clips, **choices, indicator=indicator, dropout=dropout, **others)
        self.architecture, self.frames, self.depth_stride = architecture, frames, depth_stride
        self.objects, self.is_depth = max(1, out_channels - 1), out_channels == 1
        self.trained_encoders = trained_encoders
        sizes = ARCHITECTURES[architecture]
        width, self.filled_boxes = sizes.width, sizes.filled_boxes
        self._take_modules(build_sam2(sizes, side=size, dropout=dropout))
        self.depth_head = nn.Conv2d(width if depth_stride == CELL else width // 8, 1, 1)
        selections: dict[str, Callable[[int, int], nn.Module]] = {
            "selection": ChannelSelection, "released": partial(ReleasedSelection, adds_text=not self.is_depth),
            "prompt": Prompt,
        }  # fmt: skip
        self.selection = selections[text](width, indicator) if text in selections else None
        if self.selection is not None:
            self.register_buffer("indicator", torch.zeros(indicator))
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        self.parts = self._parts()

    def _take_modules(self, sam2: Any) -> None:
        """Hold the library's modules and tensors that are used under their own names, and fix the encoders."""
        for name in MODULES:
            self.add_module(name, getattr(sam2, name))
        self.no_memory_embedding: nn.Parameter = sam2.no_memory_embedding
        self.memory_temporal_positional_encoding: nn.Parameter = sam2.memory_temporal_positional_encoding
        if not self.trained_encoders:
            self.vision_encoder.requires_grad_(False)
            self.prompt_encoder.requires_grad_(False)

    def with_classes(self, out_channels: int) -> Sam2Clips:
        """Return a fresh, newly initialised network that differs in the number of classes alone."""
        return self.remade(out_channels=out_channels)

    def sharing(self, out_channels: int) -> Sam2Clips:
        """Return a network of another number of classes, 1 for depth, that has this one's very tensors."""
        twin = copy(self)
        twin.objects, twin.is_depth = max(1, out_channels - 1), out_channels == 1
        return twin

    def __prepare_scriptable__(self) -> Sam2Clips:
        """Refuse `torch.jit.script`, which calls this first, by ValueError."""
        raise ValueError(
            "Sam2Clips remembers from frame to frame and is not exported to TorchScript; use `surgfl segment` or the "
            "bundle's inference.yaml"
        )

    def set_indicator(self, indicator: Tensor) -> None:
        """Set the indicator of a site's text, (D,), a part of the state that is initially zero.

        Raises ValueError for another shape, numbers that are not finite, or a network without text.
        """
        if self.selection is None:
            raise ValueError("Sam2Clips was made with text 'none'; make it with 'selection' or 'prompt'")
        self.indicator.copy_(checked_indicator(indicator, self.indicator, "Sam2Clips"))

    def encode(self, clip: Tensor) -> Features:
        """Return the image encoder's maps of (B, T, 3, H, W) in 0..1, which `forward` takes as `features`.

        They have no gradient unless the encoders are trained; H = W is a multiple of 32, else ValueError.
        """
        self._check(clip)
        B, T, _C, _H, _W = clip.shape
        with torch.set_grad_enabled(self.trained_encoders and torch.is_grad_enabled()):
            found = self.vision_encoder(((clip - self.mean) / self.deviation).flatten(0, 1)).fpn_hidden_states
        fine, middle, coarse = (x.reshape(B, T, *x.shape[1:]) for x in found)  # (B*T, C, h, w) -> (B, T, C, h, w)
        return fine, middle, coarse

    def forward(self, clip: Tensor | None, boxes: Tensor | None = None, features: Features | None = None) -> Tensor:
        """Predict every frame of clips; objects with a box keep track of it from then on.

        Args:
            clip: (B, T, 3, H, W) in 0..1, or pictures (B, 3, H, W); not read where there are features.
            boxes: (B, T, N, 4), of a picture also (B, N, 4), see `sam2_boxes`; what has none in its clip, and
                frames before an object's first, get the constant `sam2_frames.EMPTY`. None: the whole first frame for
                every object.
            features: What `encode` returned.

        Returns:
            Logits (B, T, 1 + N, H, W), background first and zero; of depth the head's numbers (B, T, 1, H, W). Of
            pictures without T.

        Raises:
            ValueError: The size or the boxes do not fit.
        """
        if clip is not None and clip.dim() == 4:
            of_clip = boxes if boxes is None or boxes.dim() == 4 else boxes[:, None]
            return self.forward(clip[:, None], of_clip, features)[:, 0]
        maps = self._projected(self.encode(clip) if features is None and clip is not None else features)
        B, T = maps.coarse.shape[:2]
        if boxes is None:
            boxes = whole_frame(B, T, self.objects, maps.side)
        check_boxes(boxes, B, T, maps.side, depth=self.is_depth)
        boxes, grid = boxes.to(maps.coarse.device), grid_of(self, maps.coarse)
        tracks = [Track()] * (B * boxes.shape[2])
        outputs = []
        for t in range(T):
            frame, wanted = Maps(*(x[:, t] for x in maps)), cast(Remember, "all" if t < T - 1 else "none")
            found, tracks = predicted(self, frame, boxes[:, t], tracks, t, grid, remember=wanted)
            outputs.append(found)
        return self._with_background(torch.stack(outputs, 1))

    def begin_stream(self, boxes: Tensor | None = None, *, stride: int = 1, padding: str = "first") -> Memory:
        """Return the memory before a stream's first frame.

        Args:
            boxes: Of the first frame, (N, 4); None: the whole frame for each object.
            stride: Frames from one that is remembered to the next, as of clips of every stride-th frame. Those between
                are predicted, too, and remembered if they have a prompt.
            padding: Accepted as of other networks of clips; SAM2 needs nothing before the beginning.

        Raises:
            ValueError: The stride is no whole number from 1 on.
        """
        return Memory(boxes, stride)

    def remember(self, image: Tensor, memory: Memory, boxes: Tensor | None = None) -> tuple[Tensor, Memory]:
        """Predict the next frame of a stream, (1, 3, H, W), as `forward` predicts it in a clip; without gradients.

        `boxes` (N, 4) prompt this frame; on the first one they replace those of `begin_stream`. Returns what `forward`
        does for a picture, and the memory for the next frame. ValueError for a size or boxes that do not fit.
        """
        with torch.no_grad():
            maps = Maps(*(x[:, 0] for x in self._projected(self.encode(image[:, None]))))
            if memory.side not in (0, maps.side):
                raise ValueError(
                    f"the stream's frames changed their side from {memory.side} to {maps.side}; begin anew"
                )
            given = self._prompts(memory, boxes, maps.side).to(maps.coarse.device)
            check_boxes(given[None], 1, 1, maps.side, depth=self.is_depth)
            now = -(-memory.frame // memory.stride)  # counted in remembered frames, rounded up
            wanted: Remember = "prompted" if memory.frame % memory.stride else "all"
            tracks = memory.tracks or [Track()] * given.shape[1]
            found, after = predicted(self, maps, given, tracks, now, grid_of(self, maps.coarse), remember=wanted)
            state = replace(memory, boxes=None, frame=memory.frame + 1, side=maps.side, tracks=tuple(after))
            return self._with_background(found[:, None])[:, 0], state

    def _prompts(self, memory: Memory, boxes: Tensor | None, side: int) -> Tensor:
        """Return the boxes of a stream's frame, (1, N, 4)."""
        given = memory.boxes if boxes is None else boxes
        if given is None and memory.frame == 0:
            return whole_frame(1, 1, self.objects, side)[0]
        if given is None:
            return torch.full((1, len(memory.tracks), 4), torch.nan)
        if given.shape[-1:] != (4,) or (memory.tracks and given.numel() != 4 * len(memory.tracks)):
            objects = len(memory.tracks) or "objects"
            raise ValueError(f"the stream takes boxes ({objects}, 4), and got {list(given.shape)}; NaN stands for none")
        return given.reshape(1, -1, 4)

    def _projected(self, features: Features | None) -> Maps:
        """Project the encoder's maps once for all objects and frames."""
        if features is None:
            raise ValueError("Sam2Clips got neither a clip nor the features of one; give one of them")
        B, T = features[0].shape[:2]
        fine, middle, coarse = (x.flatten(0, 1) for x in features)  # (B, T, C, h, w) -> (B*T, C, h, w)
        decoder, project = self.mask_decoder, self.memory_encoder.feature_projection
        found = decoder.conv_s0(fine), decoder.conv_s1(middle), coarse, project(coarse)
        return Maps(*(x.reshape(B, T, *x.shape[1:]) for x in found))

    def _with_background(self, numbers: Tensor) -> Tensor:
        """(B, T, N, H, W) -> (B, T, 1 + N, H, W), the first channel zero; depth stays as it is."""
        if self.is_depth:
            return numbers
        return torch.cat([torch.zeros_like(numbers[:, :, :1]), numbers], 2)

    def _check(self, clip: Tensor) -> None:
        H, W = clip.shape[-2:]
        if clip.dim() != 5 or clip.shape[2] != 3 or not clip.shape[1]:
            raise ValueError(
                f"Sam2Clips takes frames (B, 3, H, W) or clips (B, T, 3, H, W), and got {list(clip.shape)}"
            )
        check_size(self, H, W)

    def _parts(self) -> dict[str, tuple[str, ...]]:
        """Return the parts; there is no `head`, since none has an output per class."""
        return {
            "image_encoder": ("vision_encoder",),
            "prompt_encoder": ("prompt_encoder",),
            "memory_attention": (
                "memory_attention", "no_memory_embedding", "memory_temporal_positional_encoding",
                "temporal_positional_encoding_projection_layer",
            ),
            "memory_encoder": ("memory_encoder",),
            "object_pointer": ("object_pointer_proj",),
            "mask_decoder": ("mask_decoder",),
            "depth_head": ("depth_head",),
            "encoder": ("vision_encoder",),
            "decoder": ("mask_decoder",),
            "top": ("mask_decoder", "depth_head"),
        } | ({name: (name,) for name in ("selection", "indicator")} if self.selection is not None else {})  # fmt: skip


def _check_choices(
    out_channels: int, architecture: str, size: int, frames: int, text: str, indicator: int, dropout: float,
    depth_stride: int, trained_encoders: bool,
) -> None:  # fmt: skip
    who = "Sam2Clips"
    one_of(who, "architecture", architecture, ARCHITECTURES)
    one_of(who, "text", text, TEXTS)
    between(who, "out_channels", out_channels, 1, whole=True)
    between(who, "frames", frames, 1, whole=True)
    between(who, "indicator", indicator, 1, whole=True)
    between(who, "dropout", dropout, 0, 1, ends="[)")
    true_or_false(who, "trained_encoders", trained_encoders)
    between(who, "size", size, Sam2Clips.stride, whole=True)
    if size % Sam2Clips.stride:
        near = max(1, round(size / Sam2Clips.stride)) * Sam2Clips.stride
        raise ValueError(f"{who}: size is {size}; it is a multiple of {Sam2Clips.stride}, such as {near}")
    if depth_stride not in DEPTH_STRIDES:
        raise ValueError(f"{who}: depth_stride is {depth_stride!r}; use 16, as released, or 4")
