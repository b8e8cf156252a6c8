"""A frame classifier: FL-EndoViT's encoder and a linear layer, for action triplets and phases.

The encoder's tensors have the same names as in the masked autoencoder `mae_vit`.
"""

from functools import partial

from torch import Tensor, nn

from shared_components.common.arguments import between, one_of
from shared_components.networks.vit import ENCODER, Vit

POOLS = ("token", "mean")
HEAD = 2e-5  # standard deviation of a new head's weights, as in MAE's fine-tuning


class VitFrames(Vit):
    """Classify frames.

    Args:
        out_channels: Outputs per frame, such as the number of classes.
        pool: Input of the head: the class ``token``, or the ``mean`` of the patches, both normalised.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`; with a frozen encoder only the head is trained.
    """

    def __init__(
        self,
        *,
        out_channels: int = 4,
        architecture: str = "tiny",
        size: int = 0,
        pool: str = "token",
        drop_path: float = 0.1,
        trained_encoders: bool = True,
    ) -> None:
        between("VitFrames", "out_channels", out_channels, 1, whole=True)
        one_of("VitFrames", "pool", pool, POOLS)
        super().__init__(architecture=architecture, size=size, drop_path=drop_path, trained_encoders=trained_encoders)
        self.remade = partial(
            VitFrames, architecture=architecture, size=size, pool=pool, drop_path=drop_path,
            trained_encoders=trained_encoders,
        )  # fmt: skip
        self.pool = pool
        self.head = nn.Linear(self.sizes.width, out_channels)
        self.parts = {"encoder": ENCODER, "head": ("head",), "top": ("head",), "positions": ("pos_embed",)}
        self._start()
        nn.init.trunc_normal_(self.head.weight, std=HEAD)

    def features(self, image: Tensor) -> Tensor:
        """Return the input of the head, (B, C), for images (B, 3, H, W) in 0..1; ValueError as `vit.Vit.embed`."""
        return self.pooled(image, self.pool)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, out_channels) of images (B, 3, H, W) in 0..1; ValueError as `vit.Vit.embed`."""
        return self.head(self.features(image))
