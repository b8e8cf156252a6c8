"""Serve a site's frames to a network: resized, cached, shuffled, augmented, reproducible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from shared_components.data.sites import Frame, Site, SiteError, read_pair
from shared_components.data.transforms import (
    augment,
    resize_image,
    resize_mask,
    sample_augmentation,
    to_tensors,
)

CACHE_BYTES = 2 << 30


@dataclass(frozen=True)
class Geometry:
    """Size of the network's input in pixels."""

    height: int
    width: int


class FrameDataset(Sequence[dict[str, torch.Tensor]]):
    """A list of frames at the network's size.

    Item `i` is {"image": uint8 (3, H, W) RGB, "label": uint8 (H, W) canonical ids}. Frames are read when
    first asked for and kept, resized, until the cache is full; those that do not fit are read each time.
    """

    def __init__(
        self, frames: Sequence[Frame], *, height: int, width: int, site: Site, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.frames = tuple(frames)
        self.geometry = Geometry(height, width)
        self.site = site
        self._room = cache_bytes
        self._cache: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]  # no slices
        image, label = to_tensors(*self.arrays(index))
        return {"image": image, "label": label}

    def arrays(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return frame `index` as uint8 (H, W, 3) RGB and uint8 (H, W) ids; do not write to them.

        Raises:
            SiteError: a file is missing or is not what it should be.
        """
        index = range(len(self.frames))[index]
        if index not in self._cache:
            pair = self._read(index)
            size = pair[0].nbytes + pair[1].nbytes
            if size > self._room:
                return pair
            self._room -= size
            self._cache[index] = pair
        return self._cache[index]

    def _read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = read_pair(self.frames[index])
        height, width = self.geometry.height, self.geometry.width
        return resize_image(image, height, width), resize_mask(mask, height, width)


def batches(
    dataset: FrameDataset, *, batch_size: int, iterations: int, generator: torch.Generator, augment: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield training batches without end of epoch: a new shuffle follows on the last one.

    Every frame is drawn once before any is drawn again, also across batches. All chance comes from
    `generator`, in the order of use, so the stream is a pure function of the dataset and of the generator's
    state: equal seeds give bit-equal batches in another process.

    Args:
        iterations: number of batches.
        augment: flip and scale-crop every frame (`shared_components.data.transforms`).

    Yields:
        {"image": float32 (B, 3, H, W) in [0, 1], "label": int64 (B, H, W)}.

    Raises:
        SiteError: the dataset is empty.
    """
    _refuse_empty(dataset)
    order = _shuffled_forever(len(dataset), generator)
    for _ in range(iterations):
        pairs = [_draw(dataset, next(order), generator, augment) for _ in range(batch_size)]
        images, labels = zip(*pairs, strict=True)
        yield {"image": torch.stack(images).float() / 255, "label": torch.stack(labels).long()}


def once(
    dataset: FrameDataset, *, batch_size: int, count: int | None = None, generator: torch.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield frames in batches, unaugmented, each frame once: all in order, or `count` drawn by `generator`.

    The last batch may be smaller. The form is that of `batches`.

    Raises:
        SiteError: the dataset is empty.
    """
    _refuse_empty(dataset)
    chosen = list(range(len(dataset)))
    if count is not None and count < len(dataset):
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    for start in range(0, len(chosen), batch_size):
        items = [dataset[index] for index in chosen[start : start + batch_size]]
        images, labels = ([item[key] for item in items] for key in ("image", "label"))
        yield {"image": torch.stack(images).float() / 255, "label": torch.stack(labels).long()}


def style_statistics(dataset: FrameDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure a site's style: the mean over its frames of each channel's mean and standard deviation.

    Taken over whole resized frames without augmentation, with the population's standard deviation (PFedSIS,
    step 1 of its overview; the released code measures augmented, zero-padded batches).

    Returns:
        mean float32 (3,) and standard deviation float32 (3,), in units of [0, 1].

    Raises:
        SiteError: the dataset is empty.
    """
    _refuse_empty(dataset)
    statistics = [cv2.meanStdDev(dataset.arrays(index)[0]) for index in range(len(dataset))]
    # (N, 2, 3, 1) float64 -> (2, 3)
    mean, std = torch.from_numpy(np.array(statistics)).squeeze(-1).mean(dim=0) / 255
    return mean.float(), std.float()


def _refuse_empty(dataset: FrameDataset) -> None:
    if not len(dataset):
        site = dataset.site
        raise SiteError(f"site {site.name}: has no frames to learn from; list videos in {site.path}")


def _shuffled_forever(length: int, generator: torch.Generator) -> Iterator[int]:
    while True:
        yield from torch.randperm(length, generator=generator).tolist()


def _draw(
    dataset: FrameDataset, index: int, generator: torch.Generator, augmented: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    image, label = dataset.arrays(index)
    if augmented:
        augmentation = sample_augmentation(generator, width=dataset.geometry.width)
        image, label = augment(image, label, augmentation)
    return to_tensors(image, label)
