"""Patches: errors and statistics by loops, the mean colour, and which network is given the mask."""

import numpy as np
import pytest
import torch
from torch import nn

from shared_components.core import image_patches
from shared_components.networks.mae_vit import MaeVit
from shared_components.networks.tiny import Tiny

MEAN, DEVIATION = (0.3464, 0.2280, 0.2228), (0.2520, 0.2128, 0.2093)  # of EndoViT


@pytest.fixture
def pictures():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, 4, 8, generator=generator), torch.rand(2, 3, 4, 8, generator=generator)


def test_normalised_pixels_errors_and_statistics_are_loops_over_pixels(pictures):
    image = pictures[0]
    found = image_patches.normalised(image)
    for c in range(3):
        torch.testing.assert_close(found[:, c], (image[:, c] - MEAN[c]) / DEVIATION[c])
    torch.testing.assert_close(image_patches.colours(found), image)
    outputs, image = pictures
    errors, (mean, deviation) = image_patches.patch_errors(outputs, image, 4), image_patches.patch_statistics(image, 4)
    assert errors.shape == (2, 2)
    for b in range(2):
        for n in range(2):
            columns = slice(4 * n, 4 * n + 4)
            values = [
                (float(image[b, c, y, x]) - MEAN[c]) / DEVIATION[c]
                for c in range(3) for y in range(4) for x in range(4 * n, 4 * n + 4)
            ]  # fmt: skip
            squares = [
                (float(outputs[b, c, y, x] - image[b, c, y, x]) / DEVIATION[c]) ** 2
                for c in range(3) for y in range(4) for x in range(4 * n, 4 * n + 4)
            ]  # fmt: skip
            assert float(errors[b, n]) == pytest.approx(sum(squares) / 48, rel=1e-4)
            assert mean[b, 0, :, columns].numpy() == pytest.approx(np.mean(values), rel=1e-4)
            assert deviation[b, 0, :, columns].numpy() == pytest.approx(np.std(values, ddof=1), rel=1e-4)


def test_baselines_are_the_mean_colour_of_each_frame_and_a_new_network(pictures):
    found = image_patches.MeanColour()(pictures[0])
    assert found.shape == (2, 3, 4, 8)
    assert float(found[1, 2].std()) < 1e-6 and float(found[1, 2, 0, 0]) == pytest.approx(
        float(pictures[0][1, 2].mean())
    )
    network = MaeVit(size=32)
    found = image_patches.controls(network)
    assert isinstance(found["mean colour"], image_patches.MeanColour)
    anew = found["untrained"]
    assert type(anew) is MaeVit and anew.side == 4 and not torch.equal(anew.mask_token, network.mask_token)
    assert list(image_patches.controls(nn.Identity())) == ["mean colour"]


def test_the_mask_is_for_autoencoders_of_the_tasks_patch():
    assert not image_patches.sees_visible(Tiny(), 16) and image_patches.sees_visible(MaeVit(), 8)
    with pytest.raises(ValueError, match="patch is 16, but MaeVit has patches of 8; write patch: 8"):
        image_patches.sees_visible(MaeVit(), 16)
