"""Choose the frames of a sample that is a whole video, or the part of a video in a split.

Sequences have different lengths and do not stack, so a batch is one video.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from shared_components.data.files import DataError
from shared_components.data.readers import Listing

CHUNK = 32  # frames whose features are computed at once


def equally_spaced(count: int, frames: int) -> list[int]:
    """Return the places of T frames among `count`, first and last among them; of one frame the middle one.

    Where there are fewer than T, some are there twice.
    """
    if frames == 1:
        return [(count - 1) // 2]
    return [(2 * place * (count - 1) + frames - 1) // (2 * (frames - 1)) for place in range(frames)]


def random_places(count: int, frames: int, generator: torch.Generator) -> list[int]:
    """Draw the places of T frames among `count`, each once, in order; as `equally_spaced` where there are fewer."""
    if count < frames:
        return equally_spaced(count, frames)
    return sorted(torch.randperm(count, generator=generator)[:frames].tolist())


def at_interval(listing: Listing, step: int) -> Listing:
    """Keep the frames whose numbers lie whole steps after the first one's; all of them where the step is 0."""
    return [frame for frame in listing if not step or (frame[0] - listing[0][0]) % step == 0]


def one_target(root: Path, video: str, listing: Listing) -> None:
    """Raise a DataError where frames of a video have targets of their own."""
    first = listing[0][2]
    for number, _, targets in listing:
        if targets != first:
            what = f"{video} has another target at frame {number} than at frame {listing[0][0]}"
            raise DataError(root, what, "ask for the targets of frames (targets_of: last or sequence), not of a video")


def features_of(
    images: Callable[[int], np.ndarray], count: int, features: Callable[[np.ndarray], Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the features of a sequence, each (T, ...), a few frames at once, so that no video is held in memory.

    Args:
        images: gives frame `place` as uint8 (H, W, 3).
        features: such as `core.feature_cache.FeatureCache`.
    """
    chunks = [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    found = [features(np.stack([images(place) for place in chunk])) for chunk in chunks]
    return {name: torch.cat([of_chunk[name] for of_chunk in found]) for name in found[0]}
