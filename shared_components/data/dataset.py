"""Serve a site's samples to a network: resized, cached, shuffled, augmented, reproducible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from shared_components.data import transforms
from shared_components.data.files import Size
from shared_components.data.native_crops import NativeCrop, crop_native, sample_native_crop
from shared_components.data.samples import Sample, read_image, read_target
from shared_components.data.site import Site, SiteError
from shared_components.data.targets import is_map, over_time
from shared_components.data.transforms import (
    change_colours,
    resize_image,
    resize_target,
    sample_augmentation,
    sample_colours,
    sample_turn,
    stacked,
    to_tensors,
    turn,
)
from shared_components.data.whole_videos import features_of, random_places

CACHE_BYTES = 2 << 30
Features = Callable[[np.ndarray], Mapping[str, torch.Tensor]]
"""Frames of a sample, uint8 (T, H, W, 3), to tensors by name."""


@dataclass(frozen=True)
class Geometry:
    """Size of the network's input in pixels."""

    height: int
    width: int


class SampleDataset(Sequence[dict[str, torch.Tensor]]):
    """A list of samples at the network's size.

    Item `i` is {"image": uint8 (3, H, W) RGB, or (T, 3, H, W) for clips, and each target of its form (`targets.FORMS`):
    (H, W), or (T, H, W) where all frames of clips have targets}, such as "label": uint8 canonical ids. Images and
    targets are read when first asked for and kept, resized, until the cache is full; those that do not fit are read
    each time. What several clips show is kept once.
    """

    def __init__(
        self, samples: Sequence[Sample], *, height: int, width: int, site: Site, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.samples = tuple(samples)
        self.geometry = Geometry(height, width)
        self.site = site
        self._room = cache_bytes
        self._images: dict[Path, _Image] = {}
        self._targets: dict[tuple[str, tuple[Path, ...]], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]  # no slices
        return to_tensors(*self.arrays(index))

    def arrays(self, index: int, generator: torch.Generator | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return sample `index` as uint8 (T, H, W, 3) RGB and its targets by name, see above; do not write to them.

        Where the sample has a pool of images, a generator draws T of them.

        Raises:
            SiteError: a file is missing or is not what it should be.
        """
        index = range(len(self.samples))[index]
        sample = self.samples[index]
        shown = sample.images
        if sample.pool and generator is not None:
            shown = tuple(sample.pool[place] for place in random_places(len(sample.pool), len(shown), generator))
        found = {path: self._image(sample, path) for path in dict.fromkeys(shown)}
        sizes = {path: image.native for path, image in found.items()}
        return stacked([found[path].pixels for path in shown]), self.targets(index, sizes)

    def targets(self, index: int, sizes: Mapping[Path, Size] = MappingProxyType({})) -> dict[str, np.ndarray]:
        """Return the targets of sample `index` by name, see above; do not write to them.

        Args:
            sizes: of images that were read, at their native size; others are read where a target is compared with it.

        Raises:
            SiteError: as `arrays`.
        """
        sample = self.samples[index]
        return {
            name: over_time([self._target(sample, name, files[name], image, sizes) for image, files in sample.labelled])
            for name in sample.targets
        }

    def sequence(self, index: int, features: Features) -> dict[str, torch.Tensor]:
        """Return the features of all frames of sample `index`, (T, ...) each, and its targets, by name.

        Raises:
            SiteError: as `arrays`.
        """
        sample = self.samples[index]

        def image(place: int) -> np.ndarray:
            return self._image(sample, sample.images[place]).pixels

        targets = {name: torch.from_numpy(np.array(target)) for name, target in self.targets(index).items()}
        return {**features_of(image, len(sample.images), features), **targets}

    def cropped(self, index: int, drawn: NativeCrop) -> np.ndarray:
        """Return the frames of sample `index` cropped before they are resized, (T, H, W, 3); nothing is kept of them.

        Raises:
            SiteError: a file is missing or is not what it should be, or the sample has targets.
        """
        sample, size = self.samples[index], self.geometry
        if sample.targets:
            names = ", ".join(sample.targets)
            raise SiteError(f"site {self.site.name}: crop_area is of images alone, not of {names}; write crop_area: 0")
        found = {path: read_image(sample, path) for path in dict.fromkeys(sample.images)}
        return stacked([crop_native(found[path], drawn, size.height, size.width) for path in sample.images])

    def refuse_empty(self) -> None:
        """Raise a SiteError that names the site where there is no sample."""
        if not self.samples:
            raise SiteError(f"site {self.site.name}: has no frames to learn from; list videos in {self.site.path}")

    def _image(self, sample: Sample, path: Path) -> _Image:
        if path in self._images:
            return self._images[path]
        image = read_image(sample, path)
        pixels = resize_image(image, self.geometry.height, self.geometry.width)
        found = _Image(pixels, image.shape[:2])
        if self._fits(pixels.nbytes):
            self._images[path] = found
        return found

    def _target(
        self, sample: Sample, name: str, files: tuple[Path, ...], image: Path, sizes: Mapping[Path, Size]
    ) -> np.ndarray:
        if (name, files) in self._targets:
            return self._targets[name, files]
        native: Size = (0, 0)
        if is_map(name):
            native = sizes[image] if image in sizes else self._image(sample, image).native
        read = read_target(sample, name, files, image=image, image_size=native)
        target = resize_target(read, self.geometry.height, self.geometry.width) if is_map(name) else read
        if self._fits(target.nbytes):
            self._targets[name, files] = target
        return target

    def _fits(self, size: int) -> bool:
        """Take this many bytes of the cache's room, if it has them."""
        if size > self._room:
            return False
        self._room -= size
        return True


@dataclass(frozen=True)
class _Image:
    """An image at the network's size, and the size it was read in."""

    pixels: np.ndarray
    native: Size


def batches(
    dataset: SampleDataset,
    *,
    batch_size: int,
    iterations: int,
    generator: torch.Generator,
    augment: bool,
    colour: float = 0.0,
    rotation: float = 0.0,
    flips: bool = True,
    crops: bool = True,
    crop_area: float = 0.0,
    features: Features | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield training batches without end of epoch: a new shuffle follows on the last one.

    Every sample is drawn once before any is drawn again, also across batches. All chance comes from
    `generator`, in the order of use, so the stream is a pure function of the dataset and of the generator's
    state: equal seeds give bit-equal batches in another process.

    Args:
        iterations: number of batches.
        augment: flip and scale-crop every sample (`shared_components.data.transforms`).
        colour: with `augment`, how far colours are changed, too (`shared_components.data.transforms`); 0 draws nothing.
        rotation: with `augment`, degrees that samples are turned by at most; 0 draws nothing.
        flips, crops: with `augment`, whether samples are flipped, and scaled and cropped; all else is drawn alike.
        crop_area: with `augment`, the least share of a frame's area that is cropped from it before it is resized
            (`shared_components.data.native_crops`), instead of the crop and the flips above; 0: these.
        features: more entries of a sample by its frames, see `core.feature_cache`; None: there are none.

    Yields:
        {"image": float32 (B, 3, H, W), or (B, T, 3, H, W) for clips, in [0, 1]; and each target (B, ...), or
        (B, T, ...) where all frames have targets: ids such as "label" as int64, numbers such as "depth" as float32}.

    Raises:
        SiteError: the dataset is empty.
        ValueError: sequences of a batch have unequal lengths.
    """
    dataset.refuse_empty()
    order = _shuffled_forever(len(dataset), generator)

    def draw(index: int) -> dict[str, torch.Tensor]:
        targets: dict[str, np.ndarray] = {}
        if augment and crop_area:
            images = dataset.cropped(index, sample_native_crop(generator, crop_area, flips=flips))
            images, _ = turn(images, {}, sample_turn(generator, rotation))
        else:
            images, targets = dataset.arrays(index, generator)
        if augment and not crop_area:
            images, targets = turn(images, targets, sample_turn(generator, rotation))
            drawn = sample_augmentation(generator, width=images.shape[2], flips=flips, crops=crops)
            images, targets = transforms.augment(images, targets, drawn)
        if augment:
            images = change_colours(images, sample_colours(generator, colour))
        return {**to_tensors(images, targets), **({} if features is None else features(images))}

    for _ in range(iterations):
        yield collated([draw(next(order)) for _ in range(batch_size)])


def once(
    dataset: SampleDataset, *, batch_size: int, count: int | None = None, generator: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield samples in batches, unaugmented, each once: all in order, or `count` drawn by `generator`.

    The last batch may be smaller. The form is that of `batches`.

    Raises:
        SiteError: the dataset is empty.
    """
    dataset.refuse_empty()
    chosen = list(range(len(dataset)))
    if count is not None and count < len(dataset):
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    for start in range(0, len(chosen), batch_size):
        yield collated([dataset[index] for index in chosen[start : start + batch_size]])


def _shuffled_forever(length: int, generator: torch.Generator) -> Iterator[int]:
    while True:
        yield from torch.randperm(length, generator=generator).tolist()


def collated(items: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Stack samples to a batch of the types that networks and losses take.

    Raises:
        ValueError: sequences have unequal lengths, which do not stack.
    """
    if len(shapes := {tuple(item["image"].shape) for item in items}) > 1:
        raise ValueError(f"samples of {shapes} do not stack to a batch; write batch_size: 1 for whole sequences")
    return as_numbers({name: torch.stack([item[name] for item in items]) for name in items[0]})


def as_numbers(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch of stored samples, whose images are uint8, in the types that networks and losses take."""
    targets = {name: value for name, value in batch.items() if name != "image"}
    return {
        "image": batch["image"].float() / 255,
        **{name: value if value.is_floating_point() else value.long() for name, value in targets.items()},
    }
