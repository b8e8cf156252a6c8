"""Reconstruction: restore hidden patches of a frame; needs no labels.

He et al., Masked Autoencoders Are Scalable Vision Learners, CVPR 2022: a random share of patches is hidden, the loss is
the squared error of the hidden ones. A masked autoencoder is given the mask and sees visible patches alone. Any other
network that maps a picture to a picture will do; hidden patches are grey in its input, and a sigmoid bounds its colours
to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from shared_components.common.arguments import between, one_of
from shared_components.common.drawing.sheets import Sheet
from shared_components.core.card import Card, Metric
from shared_components.core.patches import MeanColour, colours, patch_errors, patch_statistics, sees_visible, spread
from shared_components.core.task import Array, Batch, OneOutput, last_frame, sample_spec
from shared_components.data.samples import Item, SampleSpec

GREY = 0.5
THRESHOLDS = {"below_300": 0.3, "below_100": 0.1, "below_050": 0.05, "below_010": 0.01}
METRICS = (
    Metric("mse", "MSE", False, digits=4),
    Metric("psnr", "PSNR", True, "dB", digits=2),
    *(Metric(name, f"patches below {limit}", True, "%", 100.0, 1) for name, limit in THRESHOLDS.items()),
    Metric("normalised_mse", "loss", False, digits=4),
)
PIXELS = ("colours", "normalised", "patches")
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
    patch: int = 16,
    hidden: float = 0.75,
    pixels: str = "colours",
    frames: int = 1,
    interval: float = 0.0,
    padding: str = "first",
) -> Reconstruction:
    """Return the task.

    Args:
        classes: A site's class names; not used.
        patch: Side of a patch, in pixels of the network's input, whose size must be a multiple of it.
        hidden: Share of hidden patches, above 0 and below 1.
        pixels: Values of the loss: ``colours`` in [0, 1], ``normalised`` by EndoViT's mean and deviation, or
            ``patches``, also normalised per patch (MAE's ``norm_pix_loss``).
        frames, interval, padding: Of a sample's clip, of which the last frame is restored, see `samples.SampleSpec`.

    Raises ValueError for a number out of its range, or unknown pixels.
    """
    one_of("reconstruction", "pixels", pixels, PIXELS)
    between("reconstruction", "patch", patch, 1, 16_384, whole=True)
    between("reconstruction", "hidden", hidden, 0, 1, ends="()")
    return Reconstruction(
        patch, hidden, pixels, sample_spec("reconstruction", (), frames=frames, interval=interval, padding=padding)
    )


@dataclass(frozen=True, eq=False)
class Restored:
    """A prediction.

    Attributes:
        image: float32 (H, W, 3) in [0, 1].
        hidden: bool (H, W), True for hidden pixels.
        errors: Each patch's mean squared error in normalised pixels, float32 (L,), at the network's size.
        masked: Which of these patches are hidden, bool (L,).
    """

    image: Array
    hidden: Array
    errors: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    masked: Array = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(frozen=True)
class Reconstruction(OneOutput):
    """See `task.Task`. An answer is `Restored`, a score a number per metric."""

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
        """Add "hidden", bool (B, H, W): in every sample the same number of patches.

        Raises ValueError for a frame that is no whole number of patches.
        """
        image = batch["image"]
        B, (H, W) = len(image), image.shape[-2:]
        if H % self.patch or W % self.patch:
            raise ValueError(
                f"reconstruction: frames of {H}x{W} are no whole number of patches of {self.patch}; change the size "
                "in 'training' or 'patch'"
            )
        rows, columns = H // self.patch, W // self.patch
        count = min(max(round(self.hidden * rows * columns), 1), rows * columns)
        chosen = torch.zeros(B, rows * columns, dtype=torch.bool)
        for one in chosen:
            one[torch.randperm(rows * columns, generator=generator)[:count]] = True
        grid = chosen.view(B, rows, columns).repeat_interleave(self.patch, 1).repeat_interleave(self.patch, 2)
        return {**batch, "hidden": grid.to(image.device)}  # (B, rows * columns) -> (B, H, W)

    def predict(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the restored picture (B, 3, H, W): in [0, 1] by a sigmoid, unbounded of a masked autoencoder."""
        image, hidden = batch["image"], batch["hidden"]
        if isinstance(network, MeanColour):
            return network(_current(image))
        if sees_visible(network, self.patch):
            return self._in_colours(network(_current(image), hidden).float(), _current(image))
        if image.dim() == 5:  # a clip: (B, T, 3, H, W), of which the last frame is restored
            shown = torch.cat([image[:, :-1], self._masked(image[:, -1], hidden)[:, None]], 1)
        else:
            shown = self._masked(image, hidden)
        return network(shown).float().sigmoid()

    def _in_colours(self, predicted: Tensor, image: Tensor) -> Tensor:
        """Return colours for what a masked autoencoder predicts; ``patches`` by the statistics of the true ones."""
        if self.pixels == "patches":
            mean, deviation = patch_statistics(image, self.patch)
            predicted = predicted * deviation + mean
        return colours(predicted)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error over hidden pixels, in the pixels that were chosen."""
        image = _current(batch["image"])
        difference = outputs.float() - image
        if self.pixels != "colours":
            difference = difference / spread(image)
        if self.pixels == "patches":
            difference = difference / patch_statistics(image, self.patch)[1]
        error = difference.square().mean(1)  # (B, H, W)
        return error[batch["hidden"]].mean()

    def postprocess(self, outputs: Tensor, batch: Batch, sizes: Sequence[tuple[int, int]]) -> list[Restored]:
        """Return restored pictures, resized bilinearly, and the errors of patches before that."""
        errors = patch_errors(outputs.float(), _current(batch["image"]), self.patch).cpu().numpy()
        pictures = outputs.float().clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()  # (B, 3, H, W) -> (B, H, W, 3)
        hidden = batch["hidden"].cpu().numpy().astype(np.uint8)
        return [
            Restored(
                _resized(picture, size, cv2.INTER_LINEAR),
                _resized(mask, size, cv2.INTER_NEAREST_EXACT) > 0,
                of_patches,
                mask[:: self.patch, :: self.patch].ravel() > 0,  # (H, W) -> (h * w,)
            )
            for picture, mask, of_patches, size in zip(pictures, hidden, errors, sizes, strict=True)
        ]

    def score(self, answer: Restored, item: Item, *, quick: bool) -> dict[str, float]:
        """Score one frame on its hidden pixels, and on all of its patches; NaN where their errors are not known.

        A pixel or a patch that the network predicts as NaN is as wrong as black for white, and as its mean colour.
        """
        true = last_frame(item)[answer.hidden].astype(np.float64) / 255
        mse = float(np.mean(np.nan_to_num((answer.image[answer.hidden] - true) ** 2, nan=1.0, posinf=1.0)))
        errors = np.nan_to_num(answer.errors, nan=1.0)  # normalised: 1 is the error of a patch's mean colour
        shares = {
            name: float(np.mean(errors < limit)) if len(errors) else math.nan for name, limit in THRESHOLDS.items()
        }
        loss = float(np.mean(errors[answer.masked])) if len(errors) else math.nan
        return {"mse": mse, "psnr": 10 * math.log10(1 / max(mse, 1e-12)), **shares, "normalised_mse": loss}

    def files(self, answer: Restored, image: Array) -> dict[str, Array]:
        """Return the restored frame, and a sheet of frame, input and restored frame."""
        _, restored = _shown(answer, image)
        drawn = self.sheet(answer, Item(image[None], {}, "")).image()
        return {"restored": restored, "overlays": drawn}

    def sheet(self, answer: Restored, item: Item) -> Sheet:
        """Draw frame, masked and restored; visible pixels are the frame's own."""
        from shared_components.reporting.overlays import reconstruction_sheet

        return reconstruction_sheet(last_frame(item), *_shown(answer, last_frame(item)))

    @staticmethod
    def _masked(image: Tensor, hidden: Tensor) -> Tensor:
        """(B, 3, H, W), (B, H, W) -> (B, 3, H, W) with grey where hidden."""
        return torch.where(hidden[:, None], torch.full_like(image, GREY), image)


def _shown(answer: Restored, frame: Array) -> tuple[Array, Array]:
    """Return the network's input and the restored frame, uint8 (H, W, 3)."""
    hidden = answer.hidden[..., None]
    masked = np.where(hidden, np.uint8(round(255 * GREY)), frame)
    return masked, np.where(hidden, np.rint(255 * answer.image).astype(np.uint8), frame)


def _current(image: Tensor) -> Tensor:
    """Return the frame that is restored: (B, 3, H, W), or (B, T, 3, H, W) -> (B, 3, H, W)."""
    return image if image.dim() == 4 else image[:, -1]


def _resized(array: Array, size: tuple[int, int], method: int) -> Array:
    return array if array.shape[:2] == tuple(size) else cv2.resize(array, (size[1], size[0]), interpolation=method)
