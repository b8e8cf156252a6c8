"""A classifier of clips, or of all frames of a video: FL-EndoViT's encoder on each frame, and a sequence network.

``sequence: lstm`` classifies a clip, as in GynSurg (all weights are trained). ``sequence: tcn`` classifies every frame,
as the second stage of TeCNO, with a frozen encoder (`trained_encoders: false`), whose features can be cached on disk.
"""

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from shared_components.common.arguments import between, one_of
from shared_components.networks.sequences import CausalTcn, FeatureLstm
from shared_components.networks.vit import ENCODER, Vit
from shared_components.networks.vit_frames import POOLS

CHUNK = 32  # frames per encoder call, since a whole video does not fit into memory
SEQUENCES: dict[str, Any] = {"lstm": FeatureLstm, "tcn": CausalTcn}


class VitClips(Vit):
    """Classify clips, or every frame of a sequence.

    Args:
        out_channels: Number of classes.
        sequence: ``lstm`` or ``tcn``, see `sequences`.
        pool: Features of a frame: the class ``token``, or the ``mean`` of the patches, both normalised.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`.
    """

    takes_clips: Final = True

    def __init__(
        self,
        *,
        out_channels: int = 4,
        architecture: str = "tiny",
        size: int = 0,
        sequence: str = "lstm",
        pool: str = "mean",
        drop_path: float = 0.0,
        trained_encoders: bool = True,
    ) -> None:
        between("VitClips", "out_channels", out_channels, 1, whole=True)
        one_of("VitClips", "sequence", sequence, SEQUENCES)
        one_of("VitClips", "pool", pool, POOLS)
        super().__init__(architecture=architecture, size=size, drop_path=drop_path, trained_encoders=trained_encoders)
        self.remade = partial(
            VitClips, architecture=architecture, size=size, sequence=sequence, pool=pool, drop_path=drop_path,
            trained_encoders=trained_encoders,
        )  # fmt: skip
        self.pool, self.chunk = pool, CHUNK
        self.stages_first = sequence == "tcn"  # the first axis of outputs for clips, see `forward`
        self.sequence = SEQUENCES[sequence](features=self.sizes.width, out_channels=out_channels)
        head = {"lstm": "sequence.head", "tcn": "sequence.heads"}[sequence]
        self.parts = {
            "encoder": ENCODER,
            "image_encoder": (*ENCODER, "pos_embed"),  # its features are cached, see `feature_cache_gb`
            "decoder": ("sequence",),
            "head": (head,),
            "top": ("sequence",),
            "positions": ("pos_embed",),
        }
        self._start()

    def encode(self, clip: Tensor) -> tuple[Tensor]:
        """Return frame features (B, T, C) of clips (B, T, 3, H, W) in 0..1; ValueError as `Vit.embed`."""
        B, T = clip.shape[:2]
        frames = clip.flatten(0, 1).split(self.chunk)  # (B, T, 3, H, W) -> chunks of (B*T, 3, H, W)
        pooled = torch.cat([self.pooled(chunk, self.pool) for chunk in frames])
        return (pooled.unflatten(0, (B, T)),)  # (B*T, C) -> (B, T, C)

    def forward(self, clip: Tensor | None, features: tuple[Tensor] | None = None) -> Tensor:
        """Predict clips (B, T, 3, H, W) in 0..1, or images (B, 3, H, W) as clips of one frame.

        Args:
            clip: Clips or images; ignored if there are features.
            features: Result of `encode`.

        Returns:
            Logits (B, out_channels) for images and for ``lstm``; logits of every stage and frame
            (S, B, T, out_channels) for clips and ``tcn``.

        Raises ValueError: the shape is invalid, or neither argument is given.
        """
        if features is None:
            if clip is None or (clip.dim() != 4 and clip.dim() != 5):
                shape = "nothing" if clip is None else str(list(clip.shape))
                raise ValueError(f"VitClips takes clips (B, T, 3, H, W) or images (B, 3, H, W), and got {shape}")
            features = self.encode(clip if clip.dim() == 5 else clip[:, None])
        logits = self.sequence(features[0])
        if clip is not None and clip.dim() == 4 and logits.dim() == 4:
            return logits[-1, :, 0]  # (S, B, 1, C) -> (B, C)
        return logits
