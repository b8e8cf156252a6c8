"""The network of SurgFed: SAM2 on clips, with gradients through time, channel selection by text, and a depth head.

Fang et al., "SurgFed: Language-guided multi-task federated learning for surgical video understanding" (arXiv
2603.09496), Section III, based on Ravi et al., "SAM 2", arXiv 2408.00714. Modules and tensor names come from
`transformers`; the loop over frames is ours, see `sam2_steps`. One mask per object is predicted, the first of SAM2's
four, without the IoU and objectness heads.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of, true_or_false
from shared_components.networks.bundle_config import check_side, check_size
from shared_components.networks.channel_selection import ChannelSelection, Prompt, ReleasedSelection, copy_indicator
from shared_components.networks.sam2_architectures import ARCHITECTURES, CELL, build_sam2
from shared_components.networks.sam2_frames import Maps, Remember, predicted
from shared_components.networks.sam2_memory import Track
from shared_components.networks.sam2_steps import check_boxes, grid_of, whole_frame

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's colour statistics
INDICATOR = 384
TEXTS = ("selection", "released", "prompt", "none")
MODULES = (
    "vision_encoder", "prompt_encoder", "mask_decoder", "memory_attention", "memory_encoder", "object_pointer_proj",
    "temporal_positional_encoding_projection_layer",
)  # fmt: skip
Features = tuple[Tensor, Tensor, Tensor]  # feature maps of the image encoder, (B, T, C, H/s, W/s) for s = 4, 8 and 16


@dataclass(frozen=True)
class Memory:
    """State of a stream between two frames; its size is bounded."""

    boxes: Tensor | None  # (N, 4) for the next frame; None: no boxes, or the whole frame if it is the first
    stride: int = 1  # number of stream frames between two remembered frames
    frame: int = 0  # index of the next frame
    side: int = 0  # side of the frames in pixels; 0 before the first frame
    tracks: tuple[Track, ...] = ()  # memory of each object

    def __post_init__(self) -> None:
        between("stream", "stride", self.stride, 1, whole=True)


class Sam2Clips(nn.Module):
    """Segment objects in clips from box prompts, or estimate depth.

    Names and shapes of the tensors do not depend on the task: SAM2 has no classes, and every network has the depth
    head. Building a network needs `transformers`.

    Args:
        out_channels: Number of classes including background, one object per class; 1: depth.
        architecture: One of `sam2_architectures.ARCHITECTURES`.
        size: Side of a frame in pixels for which SAM2's modules are built; other multiples of 32 also work.
        frames: Number of frames of a training clip; clips of any length also work.
        text: Use of the site's text: `selection` of channels (Eq. 2), its `released` form, a `prompt` without
            selection (Table II, row 4), or `none`.
        indicator: Length of the text's vector, see `set_indicator`.
        dropout: Dropout probability of memory attention.
        depth_stride: Stride in pixels of the feature map from which depth is computed: 16, as released, or 4.
        trained_encoders: Train the image encoder and the prompt encoder, too.

    Raises ValueError: an argument is unknown or out of its range, or `transformers` is not installed.
    """

    stride: Final = 32  # a frame's sides are multiples of it
    squares: Final = True  # frames are square
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
        one_of("Sam2Clips", "architecture", architecture, ARCHITECTURES)
        one_of("Sam2Clips", "text", text, TEXTS)
        for name, value in (("out_channels", out_channels), ("frames", frames), ("indicator", indicator)):
            between("Sam2Clips", name, value, 1, whole=True)
        between("Sam2Clips", "dropout", dropout, 0, 1, ends="[)")
        true_or_false("Sam2Clips", "trained_encoders", trained_encoders)
        check_side("Sam2Clips", size, Sam2Clips.stride, least=Sam2Clips.stride)
        if depth_stride not in (16, 4):
            raise ValueError(f"Sam2Clips: depth_stride is {depth_stride!r}; use 16, as released, or 4")
        self.remade = partial(
            Sam2Clips, architecture=architecture, size=size, frames=frames, text=text, indicator=indicator,
            dropout=dropout, depth_stride=depth_stride, trained_encoders=trained_encoders,
        )  # fmt: skip
        self.architecture, self.frames, self.depth_stride = architecture, frames, depth_stride
        self.objects, self.is_depth = max(1, out_channels - 1), out_channels == 1
        self.trained_encoders = trained_encoders
        sizes = ARCHITECTURES[architecture]
        width, self.filled_boxes = sizes.width, sizes.filled_boxes
        sam2: Any = build_sam2(sizes, side=size, dropout=dropout)
        for name in MODULES:
            self.add_module(name, getattr(sam2, name))
        self.no_memory_embedding: nn.Parameter = sam2.no_memory_embedding
        self.memory_temporal_positional_encoding: nn.Parameter = sam2.memory_temporal_positional_encoding
        if not trained_encoders:
            self.vision_encoder.requires_grad_(False)
            self.prompt_encoder.requires_grad_(False)
        self.depth_head = nn.Conv2d(width if depth_stride == CELL else width // 8, 1, 1)
        released = partial(ReleasedSelection, adds_text=not self.is_depth)
        selections: dict[str, Any] = {"selection": ChannelSelection, "released": released, "prompt": Prompt}
        self.selection: nn.Module | None = selections[text](width, indicator) if text in selections else None
        if self.selection is not None:
            self.register_buffer("indicator", torch.zeros(indicator))
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).reshape(3, 1, 1), persistent=False)
        self.parts = self._parts()

    def with_classes(self, out_channels: int) -> Sam2Clips:
        """Return a newly initialised network with another number of classes."""
        return self.remade(out_channels=out_channels)

    def sharing(self, out_channels: int) -> Sam2Clips:
        """Return a network with another number of classes (1: depth) that shares this network's tensors."""
        twin = copy(self)
        twin.objects, twin.is_depth = max(1, out_channels - 1), out_channels == 1
        return twin

    def __prepare_scriptable__(self) -> Sam2Clips:
        """Raise ValueError, since `torch.jit.script` calls this first."""
        raise ValueError(
            "Sam2Clips has a memory across frames and cannot be exported to TorchScript; use `surgfl segment` or the "
            "bundle's inference.yaml"
        )

    def set_indicator(self, indicator: Tensor) -> None:
        """Set the indicator of a site's text, (D,), initially zero; ValueError as `copy_indicator`."""
        copy_indicator(self, indicator, has_text=self.selection is not None)

    def encode(self, clip: Tensor) -> Features:
        """Return the image encoder's feature maps of clips (B, T, 3, H, W) in 0..1, for `forward`.

        They have no gradient unless the encoders are trained. ValueError unless H = W is a multiple of 32.
        """
        if clip.dim() != 5 or clip.shape[2] != 3 or not clip.shape[1]:
            raise ValueError(f"Sam2Clips takes frames (B, 3, H, W) or clips (B, T, 3, H, W), not {list(clip.shape)}")
        B, T, _C, H, W = clip.shape
        check_size(self, H, W)
        with torch.set_grad_enabled(self.trained_encoders and torch.is_grad_enabled()):
            maps = self.vision_encoder(((clip - self.mean) / self.deviation).flatten(0, 1)).fpn_hidden_states
        fine, middle, coarse = (x.reshape(B, T, *x.shape[1:]) for x in maps)  # (B*T, C, h, w) -> (B, T, C, h, w)
        return fine, middle, coarse

    def forward(self, clip: Tensor | None, boxes: Tensor | None = None, features: Features | None = None) -> Tensor:
        """Predict every frame of clips; an object is tracked from its first box on.

        Args:
            clip: Clips (B, T, 3, H, W) in 0..1, or images (B, 3, H, W); ignored if there are features.
            boxes: Boxes (B, T, N, 4), for images also (B, N, 4), see `check_boxes`. The logits of an object before its
                first box are `sam2_frames.EMPTY`. None: the whole first frame for every object.
            features: Result of `encode`.

        Returns:
            Logits (B, T, 1 + N, H, W), where the first channel, background, is zero; or outputs of the depth head
            (B, T, 1, H, W). Without T for images.

        Raises ValueError: the size or the boxes do not fit.
        """
        if clip is not None and clip.dim() == 4:
            clip_boxes = boxes if boxes is None or boxes.dim() == 4 else boxes[:, None]
            return self.forward(clip[:, None], clip_boxes, features)[:, 0]
        if features is None:
            if clip is None:
                raise ValueError("Sam2Clips got neither a clip nor its features; give one of them")
            features = self.encode(clip)
        maps = self._projected(features)
        B, T = maps.coarse.shape[:2]
        if boxes is None:
            boxes = whole_frame(B, T, self.objects, maps.side)
        check_boxes(boxes, B, T, maps.side, depth=self.is_depth)
        boxes, grid = boxes.to(maps.coarse.device), grid_of(self, maps.coarse)
        tracks, outputs = [Track()] * (B * boxes.shape[2]), []
        for t in range(T):
            frame, remember = Maps(*(x[:, t] for x in maps)), cast(Remember, "all" if t < T - 1 else "none")
            output, tracks = predicted(self, frame, boxes[:, t], tracks, t, grid, remember=remember)
            outputs.append(output)
        return self._with_background(torch.stack(outputs, 1))

    def begin_stream(self, boxes: Tensor | None = None, *, stride: int = 1, padding: str = "first") -> Memory:
        """Return the initial memory of a stream; ValueError unless the stride is a whole number of at least 1.

        `boxes` (N, 4) belong to the first frame; None: the whole frame for each object. Every `stride`-th frame is
        remembered, and every frame with a prompt. `padding` is unused: other clip networks need it.
        """
        return Memory(boxes, stride)

    def remember(self, image: Tensor, memory: Memory, boxes: Tensor | None = None) -> tuple[Tensor, Memory]:
        """Predict the next frame (1, 3, H, W) of a stream as `forward` does in a clip, without gradients.

        `boxes` (N, 4) prompt this frame; in the first frame they replace the boxes of `begin_stream`. Returns the
        output of `forward` for an image, and the memory for the next frame. ValueError for an invalid size or box.
        """
        with torch.no_grad():
            maps = Maps(*(x[:, 0] for x in self._projected(self.encode(image[:, None]))))
            if memory.side not in (0, maps.side):
                raise ValueError(f"the stream's frame size changed from {memory.side} to {maps.side}; begin a new one")
            prompts = self._prompts(memory, boxes, maps.side).to(maps.coarse.device)
            check_boxes(prompts[None], 1, 1, maps.side, depth=self.is_depth)
            now = -(-memory.frame // memory.stride)  # number of remembered frames, rounded up
            remember: Remember = "prompted" if memory.frame % memory.stride else "all"
            tracks = memory.tracks or [Track()] * prompts.shape[1]
            output, after = predicted(self, maps, prompts, tracks, now, grid_of(self, maps.coarse), remember=remember)
            state = replace(memory, boxes=None, frame=memory.frame + 1, side=maps.side, tracks=tuple(after))
            return self._with_background(output[:, None])[:, 0], state

    def _prompts(self, memory: Memory, boxes: Tensor | None, side: int) -> Tensor:
        """Return the boxes of a stream's frame, (1, N, 4)."""
        boxes = memory.boxes if boxes is None else boxes
        if boxes is None and memory.frame == 0:
            return whole_frame(1, 1, self.objects, side)[0]
        if boxes is None:
            return torch.full((1, len(memory.tracks), 4), torch.nan)
        if boxes.shape[-1:] != (4,) or (memory.tracks and boxes.numel() != 4 * len(memory.tracks)):
            objects = len(memory.tracks) or "objects"
            raise ValueError(f"the stream takes boxes ({objects}, 4), and got {list(boxes.shape)}; NaN means no box")
        return boxes.reshape(1, -1, 4)

    def _projected(self, features: Features) -> Maps:
        """Project the encoder's feature maps once for all objects and frames."""
        B, T = features[0].shape[:2]
        fine, middle, coarse = (x.flatten(0, 1) for x in features)  # (B, T, C, h, w) -> (B*T, C, h, w)
        decoder, project = self.mask_decoder, self.memory_encoder.feature_projection
        projected = decoder.conv_s0(fine), decoder.conv_s1(middle), coarse, project(coarse)
        return Maps(*(x.reshape(B, T, *x.shape[1:]) for x in projected))

    def _with_background(self, output: Tensor) -> Tensor:
        """Prepend a zero background channel, except for depth: (B, T, N, H, W) -> (B, T, 1 + N, H, W)."""
        return output if self.is_depth else torch.cat([torch.zeros_like(output[:, :, :1]), output], 2)

    def _parts(self) -> dict[str, tuple[str, ...]]:
        """Return the parts; there is no `head`, since no layer has an output per class."""
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
