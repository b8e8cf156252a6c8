"""Serve a site's samples to a network: resized, cached, shuffled, augmented and reproducible."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from shared_components.data import transforms
from shared_components.data.files.images import Size
from shared_components.data.native_crops import NativeCrop, crop_native, sample_native_crop
from shared_components.data.samples import Sample, equally_spaced, read_image, read_target
from shared_components.data.site import Site, SiteError
from shared_components.data.targets import is_map, over_time
from shared_components.data.transforms import stack_frames, to_tensors

Features = Callable[[np.ndarray], Mapping[str, torch.Tensor]]
"""Function from the frames of a sample, uint8 (T, H, W, 3), to feature tensors by name."""
_CHUNK = 32  # frames per call of a `Features`


@dataclass(frozen=True)
class Geometry:
    """Size of the network's input in pixels."""

    height: int
    width: int


class SampleDataset(Sequence[dict[str, torch.Tensor]]):
    """A sequence of samples at the network's size, with a cache.

    An item has "image", uint8 (3, H, W) RGB or (T, 3, H, W) for clips, and each target in its form (`targets.FORMS`),
    such as "label": uint8 (H, W) canonical ids, or (T, H, W) if all frames have targets. Resized images and targets are
    cached once each until the cache is full; the others are read each time.
    """

    def __init__(
        self, samples: Sequence[Sample], *, height: int, width: int, site: Site, cache_bytes: int = 2 << 30
    ) -> None:
        self.samples = tuple(samples)
        self.geometry = Geometry(height, width)
        self.site = site
        self._room = cache_bytes
        self._images: dict[Path, tuple[np.ndarray, Size]] = {}  # resized image, and its native size
        self._targets: dict[tuple[str, tuple[Path, ...]], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]  # no slices
        return to_tensors(*self.arrays(index))

    def arrays(self, index: int, generator: torch.Generator | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return sample `index` as uint8 (T, H, W, 3) RGB and its targets by name; do not write to them.

        A ``generator`` draws T images from the sample's pool, if it has a pool. SiteError for a missing or wrong file.
        """
        index = range(len(self.samples))[index]
        sample = self.samples[index]
        paths = sample.images
        if sample.pool and generator is not None:
            paths = tuple(sample.pool[place] for place in random_places(len(sample.pool), len(paths), generator))
        images = {path: self._image(sample, path) for path in dict.fromkeys(paths)}
        sizes = {path: size for path, (_, size) in images.items()}
        return stack_frames([images[path][0] for path in paths]), self.targets(index, sizes)

    def targets(self, index: int, sizes: Mapping[Path, Size] = MappingProxyType({})) -> dict[str, np.ndarray]:
        """Return the targets of sample `index` by name; ``sizes`` are known native sizes of images."""
        sample = self.samples[index]
        return {
            name: over_time([self._target(sample, name, files[name], image, sizes) for image, files in sample.labelled])
            for name in sample.targets
        }

    def sequence(self, index: int, features: Features) -> dict[str, torch.Tensor]:
        """Return the features, (T, ...), and targets of all frames of sample `index`; read images in chunks."""
        sample = self.samples[index]
        targets = {name: torch.from_numpy(np.array(target)) for name, target in self.targets(index).items()}
        chunks = [
            features(np.stack([self._image(sample, path)[0] for path in sample.images[start : start + _CHUNK]]))
            for start in range(0, len(sample.images), _CHUNK)
        ]
        return {**{name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}, **targets}

    def cropped(self, index: int, crop: NativeCrop) -> np.ndarray:
        """Crop and then resize the frames of a sample without targets, (T, H, W, 3); do not cache them."""
        sample, size = self.samples[index], self.geometry
        if sample.targets:
            names = ", ".join(sample.targets)
            raise SiteError(f"site {self.site.name}: crop_area crops only images, not {names}; write crop_area: 0")
        images = {path: read_image(sample, path) for path in dict.fromkeys(sample.images)}
        return stack_frames([crop_native(images[path], crop, size.height, size.width) for path in sample.images])

    def refuse_empty(self) -> None:
        """Raise a SiteError that names the site if there are no samples."""
        if not self.samples:
            raise SiteError(f"site {self.site.name}: has no frames to learn from; list videos in {self.site.path}")

    def _image(self, sample: Sample, path: Path) -> tuple[np.ndarray, Size]:
        if path in self._images:
            return self._images[path]
        image = read_image(sample, path)
        resized = transforms.resize_image(image, self.geometry.height, self.geometry.width)
        if self._reserve(resized.nbytes):
            self._images[path] = resized, image.shape[:2]
        return resized, image.shape[:2]

    def _target(
        self, sample: Sample, name: str, files: tuple[Path, ...], image: Path, sizes: Mapping[Path, Size]
    ) -> np.ndarray:
        if (name, files) in self._targets:
            return self._targets[name, files]
        native: Size = (0, 0)
        if is_map(name):
            native = sizes[image] if image in sizes else self._image(sample, image)[1]
        target = read_target(sample, name, files, image=image, image_size=native)
        if is_map(name):
            target = transforms.resize_target(target, self.geometry.height, self.geometry.width)
        if self._reserve(target.nbytes):
            self._targets[name, files] = target
        return target

    def _reserve(self, size: int) -> bool:
        """Reserve bytes of the cache; return whether they were free."""
        if size > self._room:
            return False
        self._room -= size
        return True


def random_places(count: int, frames: int, generator: torch.Generator) -> list[int]:
    """Draw T different indices among ``count``, in order; if ``count`` is less than T, space them equally."""
    if count < frames:
        return equally_spaced(count, frames)
    return sorted(torch.randperm(count, generator=generator)[:frames].tolist())


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
    """Yield shuffled training batches without end of epoch.

    Every sample comes once before any sample comes again, also across batches. The `generator` makes all random draws,
    in the order of use: equal seeds give bit-equal batches in every process. SiteError for an empty dataset; ValueError
    for sequences of unequal lengths.

    Args:
        augment: Whether to augment samples; without it, the following settings have no effect.
        colour: Strength of colour changes, see `transforms.sample_colours`; 0 draws nothing.
        rotation: Maximum rotation in degrees; 0 draws nothing.
        flips, crops: Whether to flip, and to scale and crop; other draws do not depend on them.
        crop_area: Minimum share of a frame's area for crops at native resolution (`native_crops`), which replace the
            crops and flips above; 0: no native crops.
        features: Function that adds features of the frames, see `core.feature_cache`.

    Yields:
        {"image": float32 (B, 3, H, W), or (B, T, 3, H, W) for clips, in [0, 1]; and each target (B, ...), or
        (B, T, ...) if all frames have targets: ids such as "label" as int64, numbers such as "depth" as float32}.
    """
    dataset.refuse_empty()
    order = chain.from_iterable(torch.randperm(len(dataset), generator=generator).tolist() for _ in repeat(None))

    def draw(index: int) -> dict[str, torch.Tensor]:
        targets: dict[str, np.ndarray] = {}
        if augment and crop_area:
            images = dataset.cropped(index, sample_native_crop(generator, crop_area, flips=flips))
            images, _ = transforms.turn(images, {}, transforms.sample_turn(generator, rotation))
        else:
            images, targets = dataset.arrays(index, generator)
        if augment and not crop_area:
            images, targets = transforms.turn(images, targets, transforms.sample_turn(generator, rotation))
            drawn = transforms.sample_augmentation(generator, width=images.shape[2], flips=flips, crops=crops)
            images, targets = transforms.augment(images, targets, drawn)
        if augment:
            images = transforms.change_colours(images, transforms.sample_colours(generator, colour))
        return {**to_tensors(images, targets), **({} if features is None else features(images))}

    for _ in range(iterations):
        yield collate([draw(next(order)) for _ in range(batch_size)])


def once(
    dataset: SampleDataset, *, batch_size: int, count: int | None = None, generator: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield unaugmented samples in batches as in `batches`, each once: all in order, or `count` random samples."""
    dataset.refuse_empty()
    chosen = list(range(len(dataset)))
    if count is not None and count < len(dataset):
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    for start in range(0, len(chosen), batch_size):
        yield collate([dataset[index] for index in chosen[start : start + batch_size]])


def collate(items: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Stack samples to a batch, see `as_numbers`; raise a ValueError for sequences of unequal lengths."""
    if len(shapes := {tuple(item["image"].shape) for item in items}) > 1:
        raise ValueError(f"samples of {shapes} do not stack to a batch; write batch_size: 1 for whole sequences")
    return as_numbers({name: torch.stack([item[name] for item in items]) for name in items[0]})


def as_numbers(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert a batch of stored samples, with uint8 images, to the types that networks and losses take."""
    targets = {name: value for name, value in batch.items() if name != "image"}
    return {
        "image": batch["image"].float() / 255,
        **{name: value if value.is_floating_point() else value.long() for name, value in targets.items()},
    }
