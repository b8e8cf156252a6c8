"""The stream of batches is a pure function of the dataset and the seed."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.profile_items import style_statistics
from shared_components.data.samples import samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from tests.data.conftest import canonical_mask, frame_image

STREAM = """
import hashlib, sys, torch
from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.site_file import load_site
from shared_components.data.samples import samples
site = load_site(sys.argv[1])
dataset = SampleDataset(samples(site, "train"), height=32, width=64, site=site)
generator = torch.Generator().manual_seed(5)
digest = hashlib.sha256()
for batch in batches(dataset, batch_size=3, iterations=4, generator=generator, augment=True):
    digest.update(batch["image"].numpy().tobytes() + batch["label"].numpy().tobytes())
print(digest.hexdigest(), *sorted({"monai", "PIL", "scipy", "pandas"} & set(sys.modules)))
"""


def dataset_of(path, *, split="train", height=64, width=80, **options) -> SampleDataset:
    site = load_site(path)
    return SampleDataset(samples(site, split), height=height, width=width, site=site, **options)


def draw(dataset, *, seed=0, batch_size=2, iterations=3, augment=False, **options) -> list[dict[str, torch.Tensor]]:
    options = {"batch_size": batch_size, "iterations": iterations, "augment": augment, **options}
    return list(batches(dataset, **{"generator": torch.Generator().manual_seed(seed), **options}))


def indices(drawn: list[dict[str, torch.Tensor]]) -> list[int]:
    """Return the frames of a stream by their blue channel, which is 100 + index."""
    return [round(float(image[2, 0, 0]) * 255) - 100 for batch in drawn for image in batch["image"]]


def test_an_item_is_the_frame_at_the_networks_size_and_batches_are_floats_and_integers(make_site):
    dataset = dataset_of(make_site())
    assert len(dataset) == 4
    for index, item in enumerate(dataset):
        assert (item["image"].shape, item["image"].dtype) == ((3, 64, 80), torch.uint8)
        np.testing.assert_array_equal(item["image"].permute(1, 2, 0), frame_image(index))
        np.testing.assert_array_equal(item["label"], canonical_mask(index))
    assert torch.equal(dataset[-1]["image"], dataset[3]["image"])
    with pytest.raises(IndexError):
        dataset[4]
    (batch,) = draw(dataset_of(make_site(), height=32, width=64), iterations=1, augment=True)
    assert (batch["image"].shape, batch["image"].dtype) == ((2, 3, 32, 64), torch.float32)
    assert (batch["label"].shape, batch["label"].dtype) == ((2, 32, 64), torch.int64)
    assert 0 <= batch["image"].min() and 0.5 < batch["image"].max() <= 1
    native = dataset_of(make_site("pfedsis_npy"), split="test")  # masks of another size than their images
    np.testing.assert_array_equal(native[1]["label"], canonical_mask(1))


def test_every_frame_comes_once_before_any_comes_again_and_a_stream_continues_from_its_state(make_site):
    dataset = dataset_of(make_site(frames=5))
    drawn = indices(draw(dataset, batch_size=3, iterations=5))
    assert [sorted(drawn[start : start + 5]) for start in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3
    assert drawn[:5] != drawn[5:10]
    larger = indices(draw(dataset, batch_size=12, iterations=1))
    assert sorted(larger[:10]) == sorted(2 * [0, 1, 2, 3, 4])
    dataset, generator = dataset_of(make_site()), torch.Generator().manual_seed(3)
    options = {"batch_size": 4, "iterations": 1, "augment": True}
    (first,) = draw(dataset, generator=generator, **options)
    state = generator.get_state()
    (undisturbed,) = draw(dataset, generator=generator, **options)
    (resumed,) = draw(dataset, generator=torch.Generator().set_state(state), **options)
    assert torch.equal(resumed["image"], undisturbed["image"])
    (other,) = draw(dataset, seed=2, **options)
    assert not torch.equal(first["image"], other["image"])


def test_another_process_draws_bit_equal_batches_and_imports_nothing_slow(make_site):
    path = make_site()
    dataset = dataset_of(path, height=32, width=64)
    digest = hashlib.sha256()
    for batch in draw(dataset, seed=5, batch_size=3, iterations=4, augment=True):
        digest.update(batch["image"].numpy().tobytes() + batch["label"].numpy().tobytes())
    answer = subprocess.run([sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [digest.hexdigest()]


def test_colour_changes_only_images_and_0_draws_nothing(make_site):
    dataset, drawn = dataset_of(make_site()), []
    for extra in ({}, {"colour": 0.0}, {"colour": 1.0}):
        generator = torch.Generator().manual_seed(0)
        (batch,) = draw(dataset, batch_size=1, iterations=1, generator=generator, augment=True, **extra)
        drawn.append((batch, generator.get_state()))
    (plain, state), (off, state_off), (strong, state_strong) = drawn
    assert torch.equal(plain["image"], off["image"]) and torch.equal(state, state_off)
    assert torch.equal(plain["label"], strong["label"]) and not torch.equal(state, state_strong)
    assert not torch.equal(plain["image"], strong["image"])
    assert 0 <= strong["image"].min() and strong["image"].max() <= 1


def test_without_flips_and_crops_frames_and_targets_are_as_read_and_have_their_features(make_site):
    def features(images):
        return {"features/0": torch.from_numpy(images[:, :1, :1, 2].copy())}  # the blue channel, 100 + index

    dataset, options = dataset_of(make_site()), {"batch_size": 4, "iterations": 1, "augment": True}
    (batch,) = draw(dataset, features=features, flips=False, crops=False, **options)
    for image, label, blue in zip(batch["image"], batch["label"], batch["features/0"], strict=True):
        item = dataset[int(blue) - 100]
        assert torch.equal(image, item["image"].float() / 255) and torch.equal(label, item["label"].long())


def test_frames_are_cached_until_the_cache_is_full_and_augmenting_does_not_change_them(make_site):
    dataset = dataset_of(make_site(), cache_bytes=64 * 80 * 4 * 2)
    before = [item["image"].clone() for item in dataset]
    draw(dataset, iterations=10, augment=True)
    assert all(torch.equal(item["image"], image) for item, image in zip(dataset, before, strict=True))
    for frame in dataset.samples[:2]:
        frame.images[-1].unlink()
    assert torch.equal(dataset[0]["image"], before[0]) and torch.equal(dataset[1]["image"], before[1])


def test_labels_move_with_their_image(make_site):
    # The red channel of every frame is 60 times its label, and zero where it is padded.
    for batch in draw(dataset_of(make_site()), iterations=60, augment=True):
        red = batch["image"][:, 0] * 255 / 60
        assert set(batch["label"].unique().tolist()) <= {0, 1, 2, 3}
        assert ((red - batch["label"]).abs() <= 0.5).float().mean() > 0.97


def test_style_is_the_mean_over_frames_of_channel_means_and_deviations_and_needs_frames(make_site):
    mean, std = style_statistics(dataset_of(make_site()))
    images = np.stack([frame_image(index) for index in range(4)]) / 255
    np.testing.assert_allclose(mean, images.mean(axis=(1, 2)).mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(std, images.std(axis=(1, 2)).mean(axis=0), atol=1e-6)
    assert (mean.dtype, mean.shape, std.dtype, std.shape) == (torch.float32, (3,), torch.float32, (3,))
    empty = SampleDataset([], height=32, width=32, site=load_site(make_site()))
    for use in (style_statistics, draw):
        with pytest.raises(SiteError, match="site hospital-a: has no frames"):
            use(empty)
