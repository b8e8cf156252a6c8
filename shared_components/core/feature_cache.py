"""Cache the features of a frozen image encoder on disk, so that training computes the features of a frame only once.

- Each frame has a file named by the hash of its pixels, so that clips share frames, in a folder named by the hash of
  the untrained weights. Folders of other weights are removed.
- Features are always rounded to float16, so that training gives the same bits with any cache.
- A full cache adds nothing: training uses every frame once before it repeats any.
"""

import hashlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from shared_components.common.atomic import write_bytes
from shared_components.core.partition import Partition, Role, fixed_hash
from shared_components.core.task import FEATURES
from shared_components.core.training_settings import Training
from shared_components.data.frame_cache import GB, RESERVE
from shared_components.networks.parts import inside, parts_of

FOLDER, ENCODER = "features", "image_encoder"  # folder in a site's files; part of the network
_CHECKSUM = 4  # bytes of the checksum at the start of a file

logger = logging.getLogger(__name__)


class Encodes(Protocol):
    """A network with a separate part `image_encoder`, such as `networks.sam2_video.Sam2Clips`."""

    def encode(self, clip: Tensor) -> Sequence[Tensor]:
        """Return feature maps (B, T, C, h, w) of images (B, T, 3, H, W) in 0..1, independent for each frame."""


class FeatureCache:
    """Features of frames, from disk (up to ``limit`` bytes) or the network; only one process per folder ``adds``."""

    def __init__(self, folder: Path, network: Encodes, *, limit: int, adds: bool = True) -> None:
        self._folder, self._network, self._adds = folder, network, adds
        self._room = limit - sum(path.stat().st_size for path in folder.glob("*"))

    def __call__(self, frames: np.ndarray) -> dict[str, Tensor]:
        """Return the features of uint8 frames (T, H, W, 3): "features/0", ..., each float16 (T, C, h, w)."""
        by_frame = [self._maps_of(frame) for frame in frames]
        return {f"{FEATURES}{i}": torch.stack(maps) for i, maps in enumerate(zip(*by_frame, strict=True))}

    def _maps_of(self, pixels: np.ndarray) -> list[Tensor]:
        """Return the features of a frame; it is encoded by itself, so that they do not depend on a batch."""
        digest = hashlib.sha256(f"{pixels.shape}\n".encode() + pixels.tobytes())
        path = self._folder / f"{digest.hexdigest()}.safetensors"
        if (maps := self._read(path)) is None:
            where = next(cast(nn.Module, self._network).parameters()).device
            image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).to(where).float() / 255  # (H, W, 3) -> (3, H, W)
            with torch.no_grad():
                maps = [each[0, 0].half().cpu().contiguous() for each in self._network.encode(image[None, None])]
            self._add(path, maps)
        return maps

    def _read(self, path: Path) -> list[Tensor] | None:
        """Return the features in a file, or None if it is missing or damaged."""
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if len(content) <= _CHECKSUM or crc32(content[_CHECKSUM:]) != int.from_bytes(content[:_CHECKSUM]):
            logger.warning("%s is damaged; its features are computed again", path)
            return None
        maps = load(content[_CHECKSUM:])
        return [maps[str(i)] for i in range(len(maps))]

    def _add(self, path: Path, maps: Sequence[Tensor]) -> None:
        """Write a frame's file if there is room; an error of the disk stops the caching, not the training."""
        if not self._adds:
            return
        stored = save({str(i): each for i, each in enumerate(maps)})
        size = len(stored) + _CHECKSUM
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():  # damaged
                self._room += path.stat().st_size
            if size > self._room:
                self._stop("has reached the limit feature_cache_gb")
            elif shutil.disk_usage(path.parent).free < RESERVE + size:
                self._stop(f"leaves less than {RESERVE // GB} GB of its disk free; free some space")
            else:
                write_bytes(path, crc32(stored).to_bytes(_CHECKSUM) + stored)
                self._room -= size
        except OSError as error:
            self._stop(f"cannot be written ({error})")

    def _stop(self, why: str) -> None:
        self._adds = False
        logger.warning("the feature cache %s %s; missing features are computed each time", self._folder, why)


def check_cache(network: nn.Module, partition: Partition, settings: Training) -> None:
    """Raise ValueError if ``training.feature_cache_gb`` is set and the network lacks an image encoder, or trains it."""
    if not settings.feature_cache_gb:
        return
    kind, remedy = type(network).__name__, "or feature_cache_gb: 0"
    asks = f"training: feature_cache_gb is {settings.feature_cache_gb}, but {kind}"
    paths = parts_of(network).get(ENCODER)
    if not paths:
        raise ValueError(f"{asks} has no {ENCODER} to cache; choose a bundle with one, {remedy}")
    if trained := [piece.tensor for piece in partition if piece.role is not Role.FIXED and inside(piece.tensor, paths)]:
        raise ValueError(
            f"{asks} trains its {ENCODER} ({trained[0]}); write it under 'fixed', trained_encoders: false under "
            f"'network', {remedy}"
        )


def open_cache(
    network: nn.Module, partition: Partition, settings: Training, folder: Path, *, adds: bool = True
) -> FeatureCache | None:
    """Return a network's feature cache, or None without a limit; ValueError as `check_cache`. Deletes other caches."""
    if not settings.feature_cache_gb:
        return None
    check_cache(network, partition, settings)
    weights = hashlib.sha256(f"{type(network).__name__} {fixed_hash(network.state_dict(), partition)}".encode())
    own = folder / weights.hexdigest()[:32]
    for path in [*folder.glob("*"), *own.glob(".*")] if adds else ():  # hidden files are incomplete after a kill
        if path != own:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return FeatureCache(own, cast(Encodes, network), limit=int(settings.feature_cache_gb * GB), adds=adds)
