"""FL-EndoViT's masked autoencoder: a ViT sees the visible patches of a picture, a smaller one predicts all of them.

He et al., "Masked autoencoders are scalable vision learners", CVPR 2022; EndoViT, Batic et al., IJCARS 2024. Tensors
have the names of both. The position embeddings are constants: they are not trained, and never sent.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from shared_components.networks.vit import ENCODER, EPSILON, Block, Vit, positions_at, sine_positions, vit_layers

CHANNELS = 3  # of a restored picture
DECODER = ("mask_token", "decoder_embed", "decoder_blocks", "decoder_norm")


class MaeVit(Vit):
    """Restore hidden patches: `protocols.SeesVisible`.

    111,655,680 trained parameters at ``base``, 2,967,936 at ``tiny``.

    Args:
        out_channels: 3, the colours.
        architecture, size, drop_path, trained_encoders: See `vit.Vit`.

    Raises:
        ValueError: An argument is unknown or out of its range; one sentence.
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
            raise ValueError(
                f"MaeVit: out_channels is {out_channels!r}; a picture has 3: give it the task reconstruction"
            )
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
        self.parts = {
            "encoder": ENCODER,
            "decoder": DECODER,
            "head": ("decoder_pred",),
            "top": (*DECODER, "decoder_pred"),
            "positions": ("pos_embed", "decoder_pos_embed"),
        }
        self._start()

    def layers(self) -> list[tuple[str, ...]]:
        """Return the layers by depth, the decoder's mirrored."""
        return vit_layers(len(self.blocks), len(self.decoder_blocks))

    def with_classes(self, out_channels: int) -> MaeVit:
        """Return a fresh, newly initialised network; ``out_channels`` is 3, else ValueError."""
        return self.remade(out_channels=out_channels)

    def forward(self, image: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Predict every patch from the visible ones.

        Args:
            image: (B, 3, H, W) in 0..1, sides multiples of the patch.
            hidden: bool (B, H, W), True in whole patches, as many in each picture; None: all are visible.

        Returns:
            (B, 3, H, W) in normalised pixels, or in what else it has learnt to predict.

        Raises:
            ValueError: Another shape, or pictures with different counts of hidden patches.
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
        kept = order[:, : int((~masked[0]).sum()), None].expand(-1, -1, patches.shape[2])
        found = self.with_class_token(patches.gather(1, kept))
        for block in self.blocks:
            found = block(found)
        return self.learnt(self.norm(found))

    def _decode(self, encoded: Tensor, order: Tensor, grid: tuple[int, int]) -> Tensor:
        """Put mask tokens where patches are hidden, and predict every patch: (B, L, 3 p^2)."""
        found = self.decoder_embed(encoded)
        B, visible, C = found.shape
        tokens = self.mask_token.to(found.dtype).expand(B, order.shape[1] + 1 - visible, C)
        shuffled = torch.cat([found[:, 1:], tokens], 1)  # visible ones first, as in `order`
        back = order.argsort(1)[..., None].expand(-1, -1, C)
        found = torch.cat([found[:, :1], shuffled.gather(1, back)], 1)
        found = found + positions_at(self.decoder_pos_embed, self.side, *grid)
        for block in self.decoder_blocks:
            found = block(found)
        return self.decoder_pred(self.decoder_norm(found))[:, 1:]

    def _picture(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """(B, rows * columns, p * p * 3) -> (B, 3, H, W); in a patch the colour is last, as in MAE."""
        B, p = len(patches), self.patch
        grid = patches.reshape(B, rows, columns, p, p, 3).permute(0, 5, 1, 3, 2, 4)  # (B, 3, rows, p, columns, p)
        return grid.reshape(B, 3, rows * p, columns * p)


def visible_first(masked: Tensor) -> Tensor:
    """Return the order (B, L) of patches in which those that are not masked (B, L) come first, row by row.

    Raises ValueError for pictures with different counts of masked patches.
    """
    counts = masked.sum(1)
    if bool((counts != counts[:1]).any()):
        few, many = int(counts.min()), int(counts.max())
        raise ValueError(f"MaeVit: pictures of a batch have [{few}, {many}] hidden patches; hide as many in each")
    return torch.argsort(masked.int(), dim=1, stable=True)
