"""RandomResizedCrop from the native frame: its box, its share, its pixels."""

import cv2
import numpy as np
import pytest
import torch

from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.native_crops import NativeCrop, crop_native, sample_native_crop
from shared_components.data.samples import SampleSpec, samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site


def drawn(seed, least=0.6):
    return sample_native_crop(torch.Generator().manual_seed(seed), least)


def test_a_crop_has_its_share_of_the_area_its_ratio_and_the_box_worked_by_hand():
    mirrored = 0
    for seed in range(200):
        crop = drawn(seed)
        top, left, h, w = crop.box(480, 854)
        assert top >= 0 and left >= 0 and top + h <= 480 and left + w <= 854
        assert 0.59 < h * w / (480 * 854) <= 1 or (h, w) == (480, 640)  # 4:3 if no try fits
        assert 0.74 < w / h < 1.34
        mirrored += crop.mirrored
    assert 80 < mirrored < 120
    crop = NativeCrop(((0.9, 4.0), (0.25, 1.0)), left=0.5, top=0.0, mirrored=False)
    assert crop.box(100, 100) == (0, 25, 50, 50)  # the first is 190 wide, and 51 places are left
    assert NativeCrop(((0.9, 4.0),), 0.0, 0.0, False).box(60, 200) == (0, 60, 60, 80)


def test_pixels_come_from_the_box_bicubically_and_mirrored_or_halved_by_means_without_an_odd_edge():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    crop = NativeCrop(((0.5, 1.2),), 0.3, 0.6, True)
    top, left, h, w = crop.box(40, 60)
    expected = cv2.resize(image[top : top + h, left : left + w], (32, 24), interpolation=cv2.INTER_CUBIC)[:, ::-1]
    np.testing.assert_array_equal(crop_native(image, crop, 24, 32), expected)
    image = np.random.default_rng(1).integers(0, 256, (49, 65, 3), dtype=np.uint8)
    crop = NativeCrop(((1.0, 65 / 49),), 0.0, 0.0, False)
    means = image[:48, :64].reshape(24, 2, 32, 2, 3).astype(np.float64).mean((1, 3))  # (48, 64, 3) -> (24, 32, 3)
    np.testing.assert_allclose(crop_native(image, crop, 24, 32), means, atol=0.5)


def test_batches_crop_only_images_by_the_generator(make_site):
    site = load_site(make_site("endovis2017"))
    options = {"batch_size": 2, "iterations": 2, "augment": True, "crop_area": 0.6}

    def stream(targets):
        dataset = SampleDataset(samples(site, "train", SampleSpec(targets=targets)), height=16, width=16, site=site)
        return list(batches(dataset, generator=torch.Generator().manual_seed(3), **options))

    first, again = stream(()), stream(())
    assert [batch["image"].shape for batch in first] == [(2, 3, 16, 16)] * 2
    assert all(torch.equal(one["image"], other["image"]) for one, other in zip(first, again, strict=True))
    with pytest.raises(SiteError, match="crop_area crops only images, not label; write crop_area: 0"):
        stream(("label",))
