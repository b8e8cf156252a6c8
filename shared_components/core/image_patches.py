"""Compute patch statistics and reconstruction errors of masked autoencoders, with EndoViT's normalisation."""

import torch
from torch import Tensor, nn

from shared_components.networks.protocols import SeesVisible, provides
from shared_components.networks.vit import DEVIATION, MEAN

FLOOR = 1e-6  # added to a patch's variance (He et al., CVPR 2022)


def sees_visible(network: nn.Module, patch: int) -> bool:
    """Return whether a network processes only visible patches; ValueError if its patch size is not ``patch``."""
    if not provides(network, SeesVisible):
        return False
    if network.patch != patch:
        raise ValueError(
            f"reconstruction: patch is {patch}, but {type(network).__name__} has patches of {network.patch}; write "
            f"patch: {network.patch} under reconstruction in 'tasks'"
        )
    return True


def spread(like: Tensor) -> Tensor:
    """Return the standard deviation (3, 1, 1) for normalising colours in 0..1."""
    return like.new_tensor(DEVIATION).reshape(3, 1, 1)


def normalised(image: Tensor) -> Tensor:
    """Normalise colours (B, 3, H, W) in 0..1."""
    return (image - image.new_tensor(MEAN).reshape(3, 1, 1)) / spread(image)


def colours(pixels: Tensor) -> Tensor:
    """Undo `normalised`."""
    return pixels * spread(pixels) + pixels.new_tensor(MEAN).reshape(3, 1, 1)


def patch_statistics(image: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Return mean and deviation (n - 1) of each patch's normalised pixels and channels, (B, 1, H, W), as MAE does."""
    B, C, H, W = image.shape
    p = patch
    grid = normalised(image).reshape(B, C, H // p, p, W // p, p)  # (B, C, H, W) -> (B, C, h, p, w, p)
    variance, mean = torch.var_mean(grid, dim=(1, 3, 5), keepdim=True)  # (B, 1, h, 1, w, 1)

    def pixels(values: Tensor) -> Tensor:
        return values.expand(B, 1, H // p, p, W // p, p).reshape(B, 1, H, W)

    return pixels(mean), pixels((variance + FLOOR).sqrt())


def patch_errors(outputs: Tensor, image: Tensor, patch: int) -> Tensor:
    """Return each patch's mean squared error in normalised pixels, (B, h * w), for colours (B, 3, H, W)."""
    error = ((outputs - image) / spread(image)).square().mean(1, keepdim=True)
    return nn.functional.avg_pool2d(error, patch).flatten(1)  # (B, 1, H, W) -> (B, 1, h, w) -> (B, h*w)


class MeanColour(nn.Module):
    """Baseline that predicts the mean colour of the whole image for every patch."""

    def forward(self, image: Tensor) -> Tensor:
        return image.mean((2, 3), keepdim=True).expand_as(image)


def controls(network: nn.Module) -> dict[str, nn.Module]:
    """Return baselines by name: ``mean colour`` of each frame, and the ``untrained`` network if it can be rebuilt."""
    remade = getattr(network, "remade", None)
    untrained = {"untrained": remade(out_channels=3)} if callable(remade) else {}
    return {"mean colour": MeanColour(), **untrained}
