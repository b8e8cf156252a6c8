"""Masked image reconstruction: restore hidden patches of the frame, without labels.

He et al., Masked Autoencoders Are Scalable Vision Learners, CVPR 2022: a random share of the patches is hidden, and the
loss is their squared error. A masked autoencoder gets the mask and encodes only visible patches. Any other
image-to-image network gets grey in the hidden patches, and a sigmoid bounds its colours to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import cv2
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.image_patches import (
    MeanColour,
    colours,
    patch_errors,
    patch_statistics,
    sees_visible,
    spread,
)
from shared_components.core.ranges import ShareBetween
from shared_components.core.task import Array, Batch, Frames, Interval, OneOutput, last_frame, sample_spec
from shared_components.data.samples import Item, Padding, SampleSpec

GREY = 0.5
THRESHOLDS = {"below_300": 0.3, "below_100": 0.1, "below_050": 0.05, "below_010": 0.01}
METRICS = (
    Metric("mse", "MSE", False, digits=4),
    Metric("psnr", "PSNR", True, "dB", digits=2),
    *(Metric(name, f"patches below {limit}", True, "%", 100.0, 1) for name, limit in THRESHOLDS.items()),
    Metric("normalised_mse", "loss", False, digits=4),
)
Pixels = Literal["colours", "normalised", "patches"]
DEFINITIONS = {
    "mse": "mean squared error of hidden pixels, colours in [0, 1], per frame",
    "psnr": "10 log10(1 / mse), per frame; mean over frames",
    **{name: f"share of all patches with a normalised MSE below {limit}" for name, limit in THRESHOLDS.items()},
    "normalised_mse": "MSE of hidden patches in input pixels normalised by EndoViT's mean and deviation, per frame",
    "hidden": "patches drawn by a fixed seed, the same for every model",
    "resolution": "of the frame: the restored picture enlarged bilinearly, the hidden patches by nearest neighbours",
}


def build(
    *,
    classes: Sequence[str] = (),
    patch: Annotated[int, Meta(ge=1, le=16_384)] = 16,
    hidden: ShareBetween = 0.75,
    pixels: Pixels = "colours",
    frames: Frames = 1,
    interval: Interval = 0.0,
    padding: Padding = "first",
) -> Reconstruction:
    """Return the task.

    Args:
        classes: A site's class names; not used.
        patch: Side of a patch, in pixels of the network's input, whose size must be a multiple of it.
        hidden: Share of hidden patches, above 0 and below 1.
        pixels: Values of the loss: ``colours`` in [0, 1], ``normalised`` by EndoViT's mean and deviation, or
            ``patches``, also normalised per patch (MAE's ``norm_pix_loss``).
        frames, interval, padding: Of a sample's clip, of which the last frame is restored, see `samples.SampleSpec`.
    """
    return Reconstruction(
        patch, hidden, pixels, sample_spec("reconstruction", (), frames=frames, interval=interval, padding=padding)
    )


@dataclass(frozen=True, eq=False)
class Restored:
    """Predicted frame."""

    image: Array  # float32 (H, W, 3) in [0, 1]
    hidden: Array  # hidden pixels, bool (H, W)
    # mean squared error of each patch in normalised pixels at the network's size, float32 (L,)
    errors: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    masked: Array = field(default_factory=lambda: np.zeros(0, bool))  # hidden patches, bool (L,)


@dataclass(frozen=True)
class Reconstruction(OneOutput):
    """See `task.Task`. A prediction is a `Restored`; a score is a number per metric."""

    patch: int
    hidden: float
    pixels: str
    spec: SampleSpec
    channels = 3
    metrics = METRICS
    definitions = DEFINITIONS

    @property
    def card(self) -> Card:
        return Card("reconstruction", frames=self.spec.frames)

    def add_randomness(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Add "hidden", bool (B, H, W), with the same number of hidden patches in every sample.

        Raises ValueError if the patch size does not divide the frame size.
        """
        image = batch["image"]
        B, (H, W) = len(image), image.shape[-2:]
        if H % self.patch or W % self.patch:
            raise ValueError(
                f"reconstruction: patch {self.patch} does not divide the frame size {H}x{W}; change 'patch' or the "
                "size in 'training'"
            )
        rows, columns = H // self.patch, W // self.patch
        count = min(max(round(self.hidden * rows * columns), 1), rows * columns)
        chosen = torch.zeros(B, rows * columns, dtype=torch.bool)
        for row in chosen:
            row[torch.randperm(rows * columns, generator=generator)[:count]] = True
        grid = chosen.view(B, rows, columns).repeat_interleave(self.patch, 1).repeat_interleave(self.patch, 2)
        return {**batch, "hidden": grid.to(image.device)}  # (B, rows * columns) -> (B, H, W)

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the restored frame (B, 3, H, W); in [0, 1], except a masked autoencoder's, which is unbounded."""
        image, hidden = batch["image"], batch["hidden"]
        if isinstance(network, MeanColour):
            return network(_current(image))
        if sees_visible(network, self.patch):
            return self._in_colours(network(_current(image), hidden).float(), _current(image))
        if image.dim() == 5:  # a clip (B, T, 3, H, W); the last frame is restored
            masked = torch.cat([image[:, :-1], self._masked(image[:, -1], hidden)[:, None]], 1)
        else:
            masked = self._masked(image, hidden)
        return network(masked).float().sigmoid()

    def _in_colours(self, predicted: Tensor, image: Tensor) -> Tensor:
        """Convert a masked autoencoder's output to colours; ``patches`` uses the statistics of the true patches."""
        if self.pixels == "patches":
            mean, deviation = patch_statistics(image, self.patch)
            predicted = predicted * deviation + mean
        return colours(predicted)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error over hidden pixels, in the pixel space of `pixels`."""
        image = _current(batch["image"])
        difference = outputs.float() - image
        if self.pixels != "colours":
            difference = difference / spread(image)
        if self.pixels == "patches":
            difference = difference / patch_statistics(image, self.patch)[1]
        error = difference.square().mean(1)  # (B, H, W)
        return error[batch["hidden"]].mean()

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Restored]:
        """Return restored frames, resized bilinearly, and the patch errors before resizing."""
        errors = patch_errors(outputs.float(), _current(batch["image"]), self.patch).cpu().numpy()
        pictures = outputs.float().clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()  # (B, 3, H, W) -> (B, H, W, 3)
        hidden = batch["hidden"].cpu().numpy().astype(np.uint8)
        return [
            Restored(
                _resized(picture, size, cv2.INTER_LINEAR),
                _resized(mask, size, cv2.INTER_NEAREST_EXACT) > 0,
                patch_error,
                mask[:: self.patch, :: self.patch].ravel() > 0,  # (H, W) -> (h * w,)
            )
            for picture, mask, patch_error, size in zip(pictures, hidden, errors, sizes, strict=True)
        ]

    def score(self, answer: Restored, item: Item, *, quick: bool) -> dict[str, float]:
        """Score one frame on its hidden pixels and all of its patches; NaN if the patch errors are unknown.

        A NaN pixel counts as the maximum error, a NaN patch as the error of its mean colour.
        """
        true = last_frame(item)[answer.hidden].astype(np.float64) / 255
        mse = float(np.mean(np.nan_to_num((answer.image[answer.hidden] - true) ** 2, nan=1.0, posinf=1.0)))
        errors = np.nan_to_num(answer.errors, nan=1.0)  # 1 is the normalised error of a patch's mean colour
        known = len(errors) > 0
        shares = {name: float(np.mean(errors < limit)) if known else math.nan for name, limit in THRESHOLDS.items()}
        loss = float(np.mean(errors[answer.masked])) if len(errors) else math.nan
        return {"mse": mse, "psnr": 10 * math.log10(1 / max(mse, 1e-12)), **shares, "normalised_mse": loss}

    def files(self, answer: Restored, image: Array) -> dict[str, Array]:
        """Return the restored frame, and a sheet with frame, input and restored frame."""
        _, restored = _masked_and_restored(answer, image)
        drawn = self.sheet(answer, Item(image[None], {}, "")).image()
        return {"restored": restored, "overlays": drawn}

    def sheet(self, answer: Restored, item: Item) -> Sheet:
        """Draw frame, masked input and restored frame; visible pixels are the original ones."""
        from shared_components.reporting.overlays import reconstruction_sheet

        return reconstruction_sheet(last_frame(item), *_masked_and_restored(answer, last_frame(item)))

    @staticmethod
    def _masked(image: Tensor, hidden: Tensor) -> Tensor:
        """Make hidden pixels grey: (B, 3, H, W), (B, H, W) -> (B, 3, H, W)."""
        return torch.where(hidden[:, None], torch.full_like(image, GREY), image)


def _masked_and_restored(answer: Restored, frame: Array) -> tuple[Array, Array]:
    """Return the network's input and the restored frame, uint8 (H, W, 3)."""
    hidden = answer.hidden[..., None]
    masked = np.where(hidden, np.uint8(round(255 * GREY)), frame)
    return masked, np.where(hidden, np.rint(255 * answer.image).astype(np.uint8), frame)


def _current(image: Tensor) -> Tensor:
    """Return the frame to restore: (B, 3, H, W), or (B, T, 3, H, W) -> (B, 3, H, W)."""
    return image if image.dim() == 4 else image[:, -1]


def _resized(array: Array, size: tuple[int, int], method: int) -> Array:
    return array if array.shape[:2] == tuple(size) else cv2.resize(array, (size[1], size[0]), interpolation=method)
