"""Keep the features of a frozen image encoder on disk, so that a training computes those of a frame once.

A file per frame, named by the hash of its pixels at the network's size: clips share frames, and no path or time of a
file can mislead. The files lie in a folder named by the hash of the weights that do not train; folders of other weights
are removed. Features are rounded to float16 whether or not they could be kept, so that a training ends with the same
bits with a full disk, a smaller limit, or after a kill.

A cache that is full takes nothing more: a training draws every frame once before any again, and by that order the least
recently used frame is the very next one that is needed.
"""

from __future__ import annotations

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
from shared_components.networks.parts import inside, parts_of

FOLDER, ENCODER = "features", "image_encoder"  # of a site's files; the part of the network
GB = 10**9
RESERVE = 2 * GB  # bytes of the disk that are left to what cannot be made anew
_CHECKSUM = 4  # bytes of a file's beginning

logger = logging.getLogger(__name__)


class Encodes(Protocol):
    """A network such as `networks.sam2_video.Sam2Clips`, with a part `image_encoder` that can be run by itself."""

    def encode(self, clip: Tensor) -> Sequence[Tensor]:
        """Return maps (B, T, C, h, w) of (B, T, 3, H, W) in 0..1; those of a frame do not depend on the others."""


class FeatureCache:
    """The features of frames, from disk or else from the network.

    Args:
        folder: Of the files.
        limit: Bytes of all files at most.
        adds: Whether frames are added; of processes that share a folder the first one alone does.
    """

    def __init__(self, folder: Path, network: Encodes, *, limit: int, adds: bool = True) -> None:
        self._folder, self._network, self._adds = folder, network, adds
        self._room = limit - sum(path.stat().st_size for path in folder.glob("*"))

    def __call__(self, frames: np.ndarray) -> dict[str, Tensor]:
        """Return the maps of uint8 frames (T, H, W, 3): "features/0", ..., each float16 (T, C, h, w)."""
        found = [self._of_frame(frame) for frame in frames]
        return {f"{FEATURES}{i}": torch.stack(maps) for i, maps in enumerate(zip(*found, strict=True))}

    def _of_frame(self, pixels: np.ndarray) -> list[Tensor]:
        """Return the maps of a frame (H, W, 3), each (C, h, w)."""
        digest = hashlib.sha256(f"{pixels.shape}\n".encode() + pixels.tobytes())
        path = self._folder / f"{digest.hexdigest()}.safetensors"
        maps = self._read(path)
        if maps is None:
            maps = self._encoded(pixels)
            self._add(path, maps)
        return maps

    def _encoded(self, pixels: np.ndarray) -> list[Tensor]:
        """Encode a frame by itself, so that its features are the same in any batch."""
        where = next(cast(nn.Module, self._network).parameters()).device
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).to(where).float() / 255  # (H, W, 3) -> (3, H, W)
        with torch.no_grad():
            return [maps[0, 0].half().cpu().contiguous() for maps in self._network.encode(image[None, None])]

    def _read(self, path: Path) -> list[Tensor] | None:
        """Return what a file holds; None where there is none, or one that is not what was written."""
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if len(content) <= _CHECKSUM or crc32(content[_CHECKSUM:]) != int.from_bytes(content[:_CHECKSUM]):
            logger.warning("%s is not what was written; its features are computed anew", path)
            return None
        maps = load(content[_CHECKSUM:])
        return [maps[str(i)] for i in range(len(maps))]

    def _add(self, path: Path, maps: Sequence[Tensor]) -> None:
        """Write a frame's file while there is room; what the disk refuses ends that, and not the training."""
        if not self._adds:
            return
        stored = save({str(i): one for i, one in enumerate(maps)})
        size = len(stored) + _CHECKSUM
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():  # damaged
                self._room += path.stat().st_size
            if size > self._room:
                self._stop("is as large as feature_cache_gb allows")
            elif shutil.disk_usage(path.parent).free < RESERVE + size:
                self._stop(f"leaves less than {RESERVE // GB} GB of its disk; make room there")
            else:
                write_bytes(path, crc32(stored).to_bytes(_CHECKSUM) + stored)
                self._room -= size
        except OSError as error:
            self._stop(f"takes nothing more ({error})")

    def _stop(self, why: str) -> None:
        self._adds = False
        logger.warning("the cache of features %s %s: what is not in it is computed each time", self._folder, why)


def check_cache(network: nn.Module, partition: Partition, settings: Training) -> None:
    """Raise ValueError where ``training.feature_cache_gb`` asks for features that the network has not, or trains."""
    if not settings.feature_cache_gb:
        return
    kind, remedy = type(network).__name__, "or feature_cache_gb: 0"
    asks = f"training: feature_cache_gb is {settings.feature_cache_gb}, and {kind}"
    paths = parts_of(network).get(ENCODER)
    if not paths:
        raise ValueError(f"{asks} has no {ENCODER} whose features can be kept; write a bundle with one, {remedy}")
    if trained := [piece.tensor for piece in partition if piece.role is not Role.FIXED and inside(piece.tensor, paths)]:
        raise ValueError(
            f"{asks} trains its {ENCODER}, {trained[0]} first; write it under 'fixed', trained_encoders: false under "
            f"'network', {remedy}"
        )


def open_cache(
    network: nn.Module, partition: Partition, settings: Training, folder: Path, *, adds: bool = True
) -> FeatureCache | None:
    """Return the cache of a network's features in a folder, without what is of other weights; None without a limit.

    Raises:
        ValueError: As `check_cache`.
    """
    if not settings.feature_cache_gb:
        return None
    check_cache(network, partition, settings)
    weights = hashlib.sha256(f"{type(network).__name__} {fixed_hash(network.state_dict(), partition)}".encode())
    own = folder / weights.hexdigest()[:32]
    for path in [*folder.glob("*"), *own.glob(".*")] if adds else ():  # the latter were begun, and killed
        if path != own:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return FeatureCache(own, cast(Encodes, network), limit=int(settings.feature_cache_gb * GB), adds=adds)
