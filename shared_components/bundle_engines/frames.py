"""Transforms of `preprocessing` and `postprocessing`, for MONAI Label, MONAI Deploy and other tools.

They read and resize frames and masks by the functions of our own inference, so that the masks are the same. A picture
that MONAI has loaded from a file has its columns first, (W, H); an array has its rows first, (H, W), as from a camera.
A mask has the axes of its frame.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import ImageReader, MetaTensor, is_supported_format
from monai.transforms import LoadImaged, MapTransform
from monai.utils import ImageMetaKey, MetaKeys
from torch import Tensor

from shared_components.core.evaluation import network_input
from shared_components.data.files import read_rgb
from shared_components.data.transforms import resize_target
from shared_components.inference import InferenceError
from shared_components.inference.frames import IMAGES

FRAME = "surgfl_frame"
"""In a frame's metadata: its height, its width, and whether its columns came first."""


class FrameReader(ImageReader):
    """Reads a colour frame from a file for MONAI's `LoadImaged` as our own inference does: (W, H, 3) RGB, 0 to 255.

    Unlike MONAI's own reader it gives grey, palette and transparent pictures three channels, turns a photograph as its
    file says, and refuses half a file.
    """

    def verify_suffix(self, filename: Sequence[Any] | Any) -> bool:
        """Return whether the suffix is a picture's."""
        return is_supported_format(filename, [ending[1:] for ending in IMAGES])

    def read(self, data: Sequence[Any] | Any, **kwargs: Any) -> np.ndarray:
        """Read one file as uint8 (H, W, 3); InferenceError for several files, DataError where it cannot be read."""
        paths = [data] if isinstance(data, (str, Path)) else list(data)
        if len(paths) != 1:
            raise InferenceError(f"image: got {len(paths)} files; a frame is one")
        return read_rgb(Path(paths[0]))

    def get_data(self, img: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the picture with its columns first, and MONAI's metadata of it."""
        columns_first = np.ascontiguousarray(img.swapaxes(0, 1))  # (H, W, 3) -> (W, H, 3)
        shape = np.asarray(columns_first.shape[:2])
        return columns_first, {MetaKeys.SPATIAL_SHAPE: shape, MetaKeys.ORIGINAL_CHANNEL_DIM: -1}


class LoadImageOrArrayd(LoadImaged):
    """MONAI's `LoadImaged`, which passes arrays and tensors through.

    MONAI Label replaces an instance of `LoadImaged`, and MONAI Deploy omits a transform with `LoadImage` in its name;
    other callers of `preprocessing` do neither.
    """

    def __call__(self, data: Mapping[Hashable, Any], reader: ImageReader | None = None) -> dict[Hashable, Any]:
        """Return the data with the pictures of files in place of their paths."""
        if all(isinstance(data.get(key), np.ndarray | Tensor) for key in self.keys):
            return dict(data)
        return super().__call__(data, reader)


class FrameToNetworkd(MapTransform):
    """Bring frames to a network's size and to [0, 1], as `evaluation.network_input` does.

    Takes (3, W, H) of a file that `LoadImaged` has read, else (3, H, W); whole numbers from 0 to 255 of any type. Gives
    float32 (3, height, width) of the network's input, whose metadata hold the frame's size for `MaskToFramed`.

    Raises:
        InferenceError: When called with another shape or other values.
    """

    def __init__(self, keys: KeysCollection, height: int, width: int) -> None:
        super().__init__(keys)
        self.height, self.width = height, width

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with the frames replaced."""
        changed = dict(data)
        for key in self.key_iterator(changed):
            image = changed[key]
            meta = dict(image.meta) if isinstance(image, MetaTensor) else {}
            columns_first = ImageMetaKey.FILENAME_OR_OBJ in meta
            frame = _as_frame(str(key), image, columns_first=columns_first)
            meta[FRAME] = [*frame.shape[:2], columns_first]
            changed[key] = MetaTensor(network_input(frame[None], self.height, self.width)[0], meta=meta)
        return changed


class MaskToFramed(MapTransform):
    """Bring masks of class ids to the size of their frame, by nearest neighbours, with the axes as the frame came.

    Takes (1, height, width) at the network's size; gives uint8 (1, H, W), or (1, W, H) of a file that `LoadImaged` has
    read. `frame` is the key of the frame, as `FrameToNetworkd` has left it.

    Raises:
        InferenceError: When called without that frame, or with a mask of more than one channel.
    """

    def __init__(self, keys: KeysCollection, frame: str) -> None:
        super().__init__(keys)
        self.frame = frame

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with the masks replaced."""
        changed = dict(data)
        shown = changed.get(self.frame)
        if not isinstance(shown, MetaTensor) or FRAME not in shown.meta:
            raise InferenceError(
                f"{self.frame}: does not say which size its frame had; run the bundle's preprocessing on it first"
            )
        height, width, columns_first = shown.meta[FRAME]
        for key in self.key_iterator(changed):
            ids = torch.as_tensor(changed[key])
            if ids.dim() != 3 or len(ids) != 1:
                raise InferenceError(f"{key}: is {list(ids.shape)}; a mask is (1, height, width), such as the argmax")
            mask = resize_target(ids[0].to(torch.uint8).cpu().numpy(), int(height), int(width))
            turned = np.ascontiguousarray(mask.T if columns_first else mask)
            changed[key] = MetaTensor(torch.from_numpy(turned)[None], meta=dict(shown.meta))
        return changed


def _as_frame(key: str, image: Tensor | np.ndarray, *, columns_first: bool) -> np.ndarray:
    """Return a channel-first picture as uint8 (H, W, 3)."""
    values = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if values.ndim != 3 or len(values) != 3 or not values.size:
        raise InferenceError(f"{key}: is {list(values.shape)} when its channels are first; a frame has three, RGB")
    frame = values.transpose((2, 1, 0) if columns_first else (1, 2, 0))  # (3, W, H) or (3, H, W) -> (H, W, 3)
    whole = np.ascontiguousarray(frame).astype(np.uint8)
    if not np.array_equal(whole, frame):
        raise InferenceError(
            f"{key}: its values, from {values.min():g} to {values.max():g}, are not whole numbers from 0 to 255; give "
            "the frame as it is, since the bundle scales it"
        )
    return whole
