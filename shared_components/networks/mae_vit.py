"""FL-EndoViT's masked autoencoder: a ViT encodes the visible patches of an image, a smaller ViT predicts all patches.

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022; EndoViT, Batic et al., IJCARS 2024. Tensors
have the names of both papers' code. Position embeddings are constant: they are neither trained nor sent.
"""

from functools import partial

import torch
from torch import Tensor, nn

from shared_components.networks.vit import ENCODER, EPSILON, Block, Vit, positions_at, sine_positions, vit_layers

CHANNELS = 3  # colour channels of the restored image
DECODER = ("mask_token", "decoder_embed", "decoder_blocks", "decoder_norm")


class MaeVit(Vit):
    """Restore hidden patches: `protocols.SeesVisible`.

    111,655,680 trained parameters at ``base``, 2,967,936 at ``tiny``.

    Args:
        out_channels: Number of colour channels, always 3.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`.
    """

    def __init__(
        self,
        *,
        out_channels: int = CHANNELS,
        architecture: str = "tiny",
        size: int = 0,
        drop_path: float = 0.0,
        trained_encoders: bool = True,
    ) -> None:
        if out_channels != CHANNELS:
            raise ValueError(f"MaeVit: out_channels is {out_channels!r}, but an image has 3; use task reconstruction")
        super().__init__(architecture=architecture, size=size, drop_path=drop_path, trained_encoders=trained_encoders)
        self.remade = partial(
            MaeVit, architecture=architecture, size=size, drop_path=drop_path, trained_encoders=trained_encoders
        )
        width, heads = self.sizes.decoder_width, self.sizes.decoder_heads
        self.decoder_embed = nn.Linear(self.sizes.width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.decoder_pos_embed = nn.Parameter(sine_positions(width, self.side, self.side), requires_grad=False)
        self.decoder_blocks = nn.ModuleList(Block(width, heads) for _ in range(self.sizes.decoder_blocks))
        self.decoder_norm = nn.LayerNorm(width, eps=EPSILON)
        self.decoder_pred = nn.Linear(width, self.patch**2 * CHANNELS)
        head, positions = ("decoder_pred",), ("pos_embed", "decoder_pos_embed")
        self.parts = {"encoder": ENCODER, "decoder": DECODER, "head": head, "top": (*DECODER, *head)}
        self.parts["positions"] = positions
        self._start()

    def layers(self) -> list[tuple[str, ...]]:
        """Return the layers by depth; the decoder's depths mirror the encoder's."""
        return vit_layers(len(self.blocks), len(self.decoder_blocks))

    def forward(self, image: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Predict every patch from the visible ones.

        Args:
            image: Images (B, 3, H, W) in 0..1; the sides are multiples of the patch size.
            hidden: Hidden pixels, bool (B, H, W), whole patches and equally many per image; None: all are visible.

        Returns:
            Patches (B, 3, H, W) in normalised pixels, or in the pixel space of the training loss.

        Raises ValueError: the shape is invalid, or images have different numbers of hidden patches.
        """
        rows, columns = self.grid(image)
        masked = image.new_zeros(len(image), rows * columns, dtype=torch.bool)
        if hidden is not None:
            masked = hidden[:, :: self.patch, :: self.patch].flatten(1)  # (B, H, W) -> (B, rows*columns)
        order = visible_first(masked)
        return self._picture(self._decode(self._encode(image, order, masked), order, (rows, columns)), rows, columns)

    def _encode(self, image: Tensor, order: Tensor, masked: Tensor) -> Tensor:
        """Encode the class token and the V visible patches: (B, 1 + V, C)."""
        patches = self.embed(image)
        visible = order[:, : int((~masked[0]).sum()), None].expand(-1, -1, patches.shape[2])
        tokens = self.with_class_token(patches.gather(1, visible))
        for block in self.blocks:
            tokens = block(tokens)
        return self.learnt(self.norm(tokens))

    def _decode(self, encoded: Tensor, order: Tensor, grid: tuple[int, int]) -> Tensor:
        """Insert mask tokens for hidden patches, and predict every patch: (B, L, 3 p^2)."""
        tokens = self.decoder_embed(encoded)
        B, visible, C = tokens.shape
        masks = self.mask_token.to(tokens.dtype).expand(B, order.shape[1] + 1 - visible, C)
        shuffled = torch.cat([tokens[:, 1:], masks], 1)  # visible patches first, as in `order`
        back = order.argsort(1)[..., None].expand(-1, -1, C)
        tokens = torch.cat([tokens[:, :1], shuffled.gather(1, back)], 1)
        tokens = tokens + positions_at(self.decoder_pos_embed, self.side, *grid)
        for block in self.decoder_blocks:
            tokens = block(tokens)
        return self.decoder_pred(self.decoder_norm(tokens))[:, 1:]

    def _picture(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Assemble patches: (B, rows * columns, p * p * 3) -> (B, 3, H, W); colours are last in a patch, as in MAE."""
        B, p = len(patches), self.patch
        grid = patches.reshape(B, rows, columns, p, p, 3).permute(0, 5, 1, 3, 2, 4)  # (B, 3, rows, p, columns, p)
        return grid.reshape(B, 3, rows * p, columns * p)


def visible_first(masked: Tensor) -> Tensor:
    """Return the patch order (B, L) with visible patches first, row by row, from the mask (B, L).

    Raises ValueError if images have different numbers of masked patches.
    """
    counts = masked.sum(1)
    if bool((counts != counts[:1]).any()):
        few, many = int(counts.min()), int(counts.max())
        raise ValueError(f"MaeVit: images of a batch have {few} to {many} hidden patches; hide equally many in each")
    return torch.argsort(masked.int(), dim=1, stable=True)
