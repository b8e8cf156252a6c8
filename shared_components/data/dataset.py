"""Serve a site's samples to a network: resized, cached, shuffled, augmented and reproducible."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import cv2
import numpy as np
import torch

from shared_components import __version__
from shared_components.data import device_transforms, transforms
from shared_components.data.collate import BatchBuffer, BatchStream, as_numbers, stack_samples, to_device, to_numbers
from shared_components.data.device_transforms import augment_batch
from shared_components.data.files.images import Size
from shared_components.data.frame_cache import FrameCache
from shared_components.data.native_crops import NativeCrop, crop_native, sample_native_crop
from shared_components.data.prefetch import Plan, prefetched
from shared_components.data.samples import Sample, equally_spaced, read_image, read_target
from shared_components.data.site import Site, SiteError
from shared_components.data.targets import is_map, over_time
from shared_components.data.transforms import stack_frames, to_tensors

Features = Callable[[np.ndarray], Mapping[str, torch.Tensor]]
"""Function from the frames of a sample, uint8 (T, H, W, 3), to feature tensors by name."""
RandomInputs = Callable[[int, torch.Generator], Mapping[str, torch.Tensor]]
"""Function from the size of a batch and a generator to random inputs (B, ...) by name."""
Take = Callable[[], dict[str, torch.Tensor]]
"""Function that returns a batch, see `BatchStream.make`."""
_CHUNK = 32  # frames per call of a `Features`
AUGMENTING_DEVICES = ("cuda", "meta")  # `meta`, PyTorch's device without memory, stands for a GPU in benchmarks


@dataclass(frozen=True)
class Geometry:
    """Size of the network's input in pixels."""

    height: int
    width: int


class SampleDataset(Sequence[dict[str, torch.Tensor]]):
    """A sequence of samples at the network's size, with a cache.

    An item has "image", uint8 (3, H, W) RGB or (T, 3, H, W) for clips, and each target in its form (`targets.FORMS`),
    such as "label": uint8 (H, W) canonical ids, or (T, H, W) if all frames have targets. Resized images and targets are
    cached once each, in the files of ``cache`` or up to ``cache_bytes`` in memory; the others are read each time.
    Threads may read samples at the same time.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        height: int,
        width: int,
        site: Site,
        cache: FrameCache | None = None,
        cache_bytes: int = 2 << 30,
    ) -> None:
        self.samples = tuple(samples)
        self.geometry = Geometry(height, width)
        self.site = site
        self._cache = cache
        self._room, self._lock = cache_bytes, threading.Lock()
        self._images: dict[Path, tuple[np.ndarray, Size]] = {}  # resized image, and its native size
        self._targets: dict[tuple[str, tuple[Path, ...]], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]  # no slices
        return to_tensors(*self.arrays(index))

    def arrays(self, index: int, paths: Sequence[Path] = ()) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return sample `index` as uint8 (T, H, W, 3) RGB and its targets by name; do not write to them.

        ``paths`` replaces the sample's images, see `random_images`. SiteError for a missing or wrong file.
        """
        index = range(len(self.samples))[index]
        sample = self.samples[index]
        paths = paths or sample.images
        images = {path: self._image(sample, path) for path in dict.fromkeys(paths)}
        sizes = {path: size for path, (_, size) in images.items()}
        return stack_frames([images[path][0] for path in paths]), self.targets(index, sizes)

    def random_images(self, index: int, generator: torch.Generator) -> tuple[Path, ...]:
        """Draw T images from the pool of sample `index`; without a pool, return nothing and draw nothing."""
        pool, count = self.samples[index].pool, len(self.samples[index].images)
        return tuple(pool[place] for place in random_places(len(pool), count, generator)) if pool else ()

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
        size, file = self.geometry, self._file(sample, "image", (path,))
        if self._cache and (known := self._cache.read(file, (size.height, size.width, 3), np.dtype(np.uint8))):
            return known
        image = read_image(sample, path)
        resized, native = transforms.resize_image(image, size.height, size.width), image.shape[:2]
        if not (self._cache and self._cache.add(file, resized, native)) and self._reserve(resized.nbytes):
            self._images[path] = resized, native
        return resized, native

    def _target(
        self, sample: Sample, name: str, files: tuple[Path, ...], image: Path, sizes: Mapping[Path, Size]
    ) -> np.ndarray:
        if (name, files) in self._targets:
            return self._targets[name, files]
        size, cache = self.geometry, self._cache if is_map(name) else None
        file, dtype = self._file(sample, name, (*files, image)), np.dtype(np.float32 if name == "depth" else np.uint8)
        if cache and (known := cache.read(file, (size.height, size.width), dtype)):
            return known[0]
        native: Size = (0, 0)
        if is_map(name):
            native = sizes[image] if image in sizes else self._image(sample, image)[1]
        target = read_target(sample, name, files, image=image, image_size=native)
        if is_map(name):
            target = transforms.resize_target(target, size.height, size.width)
        if not (cache and cache.add(file, target, native)) and self._reserve(target.nbytes):
            self._targets[name, files] = target
        return target

    def _file(self, sample: Sample, name: str, files: tuple[Path, ...]) -> Path | None:
        """Return the cache's file of an image or a map, whose name depends on all that decides its pixels."""
        if self._cache is None:
            return None
        size = self.geometry
        how = f"surgfl {__version__} {name} {size.height}x{size.width} {sample.source} {sample.classes}"
        return self._cache.path(files, how)

    def _reserve(self, size: int) -> bool:
        """Reserve bytes of the cache in memory; return whether they were free."""
        with self._lock:
            if size > self._room:
                return False
            self._room -= size
        return True


def random_places(count: int, frames: int, generator: torch.Generator) -> list[int]:
    """Draw T different indices among ``count``, in order; if ``count`` is less than T, space them equally."""
    if count < frames:
        return equally_spaced(count, frames)
    return sorted(torch.randperm(count, generator=generator)[:frames].tolist())


@dataclass(frozen=True)
class Drawn:
    """Random numbers of one training sample; the defaults change nothing."""

    index: int
    images: tuple[Path, ...] = ()  # drawn from the sample's pool
    crop: NativeCrop | None = None
    degrees: float = 0.0
    augmentation: transforms.Augmentation | None = None
    colours: transforms.Colours = transforms.UNCHANGED


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
    inputs: RandomInputs | None = None,
    workers: int = 0,
    device: torch.device | str = "cpu",
    rows: slice = slice(None),
    whole: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda own: own,
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
        inputs: Function that draws further inputs of a batch, which are added to it.
        workers: Threads that read and augment samples, see `prefetched`; 0: none.
        device: Device of the batches. An NVIDIA GPU also augments them, see `augment_batch`, except crops at native
            resolution and frames with ``features``.
        rows: Rows of each batch that this process reads; all are drawn.
        whole: Function that adds the other processes' rows.

    Yields:
        {"image": float32 (B, 3, H, W), or (B, T, 3, H, W) for clips, in [0, 1]; and each target (B, ...), or
        (B, T, ...) if all frames have targets: ids such as "label" as int64, numbers such as "depth" as float32}.
    """
    dataset.refuse_empty()
    where = torch.device(device)
    batch_stream = BatchStream(where)
    on_device = where.type in AUGMENTING_DEVICES and features is None
    colour, rotation, crop_area = (colour, rotation, crop_area) if augment else (0.0, 0.0, 0.0)
    samples = _Augmented(dataset, on_device, augment, colour, rotation, flips, crops, crop_area)

    def draw(place: tuple[list[int], int], generator: torch.Generator) -> Plan:
        (order, start), drawn = place, []
        for _ in range(batch_size):
            if start == len(order):
                order, start = torch.randperm(len(dataset), generator=generator).tolist(), 0
            drawn.append(samples.draw(order[start], generator))
            start += 1
        own = drawn[rows]
        buffer = BatchBuffer(len(own), pinned=where.type == "cuda")
        items = [(buffer, number, sample) for number, sample in enumerate(own)]
        return Plan(items, inputs(batch_size, generator) if inputs else {}, (order, start))

    def make(item: tuple[BatchBuffer, int, Drawn]) -> tuple[np.ndarray | None, Take | None]:
        buffer, place, drawn = item
        images, arrays = samples.arrays(drawn)
        tensors = buffer.put(place, arrays)
        take = None if tensors is None else batch_stream.make(lambda: finish(tensors))
        return images if features else None, take

    def finish(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        moved = to_device(tensors, where)
        return to_numbers(augment_batch(moved) if on_device else moved)

    if workers:
        cv2.setNumThreads(1)  # each worker is one thread; OpenCV's own would compete with them
    begin: tuple[list[int], int] = [], 0
    stream = prefetched(draw, make, place=begin, count=iterations, generator=generator, workers=workers)
    for made, random in stream:
        (take,) = [take for _, take in made if take is not None]
        batch = take()
        if features is not None:  # from the network, which only this thread uses
            maps = [features(images) for images, _ in made if images is not None]
            batch |= to_device({name: torch.stack([each[name] for each in maps]) for name in maps[0]}, where)
        yield whole(batch) | to_device(random, where)


@dataclass(frozen=True)
class _Augmented:
    """Draws and reads samples; settings as in `batches`. Pixels change here or, ``on_device``, in `augment_batch`."""

    dataset: SampleDataset
    on_device: bool
    augment: bool
    colour: float
    rotation: float
    flips: bool
    crops: bool
    crop_area: float

    def draw(self, index: int, generator: torch.Generator) -> Drawn:
        """Draw the random numbers of a sample."""
        images = () if self.crop_area else self.dataset.random_images(index, generator)
        if not self.augment:
            return Drawn(index, images)
        crop = sample_native_crop(generator, self.crop_area, flips=self.flips) if self.crop_area else None
        degrees, width = transforms.sample_turn(generator, self.rotation), self.dataset.geometry.width
        augmentation = None
        if not self.crop_area:
            augmentation = transforms.sample_augmentation(generator, width=width, flips=self.flips, crops=self.crops)
        return Drawn(index, images, crop, degrees, augmentation, transforms.sample_colours(generator, self.colour))

    def arrays(self, drawn: Drawn) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Read a sample; return its images (T, H, W, 3) and its arrays in a batch, see `BatchBuffer`."""
        images, targets = self._read(drawn)
        if self.on_device:
            return images, {"image": images, **targets, **self._parameters(drawn)}
        images, targets = transforms.turn(images, targets, drawn.degrees)
        if drawn.augmentation is not None:
            images, targets = transforms.augment(images, targets, drawn.augmentation)
        images = transforms.change_colours(images, drawn.colours)
        return images, {"image": transforms.channels_first(images), **targets}

    def _read(self, drawn: Drawn) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if drawn.crop is not None:
            return self.dataset.cropped(drawn.index, drawn.crop), {}
        return self.dataset.arrays(drawn.index, drawn.images)

    def _parameters(self, drawn: Drawn) -> dict[str, np.ndarray]:
        """Return the parameters of a sample for `augment_batch`, whose names depend only on the settings."""
        size = self.dataset.geometry.height, self.dataset.geometry.width
        parameters: dict[str, np.ndarray] = {}
        if drawn.augmentation is not None:
            parameters |= device_transforms.geometry_parameters(drawn.augmentation, *size)
        if self.rotation:
            parameters |= device_transforms.turn_parameters(drawn.degrees, *size)
        if self.colour:
            parameters |= device_transforms.colour_parameters(drawn.colours, *size)
        return parameters


def once(
    dataset: SampleDataset,
    *,
    batch_size: int,
    count: int | None = None,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield unaugmented samples in batches as in `batches`, each once: all in order, or `count` random samples."""
    dataset.refuse_empty()
    chosen = list(range(len(dataset)))
    if count is not None and count < len(dataset):
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    for start in range(0, len(chosen), batch_size):
        yield as_numbers(stack_samples([dataset[index] for index in chosen[start : start + batch_size]]), device)
