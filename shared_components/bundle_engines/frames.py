"""Transforms of `preprocessing` and `postprocessing`, for MONAI Label, MONAI Deploy and other tools.

They read and resize frames and masks with the functions of our own inference, so that the masks are equal. An image
loaded by MONAI from a file has columns first, (W, H); an array, as from a camera, has rows first, (H, W). A mask has
the axis order of its frame.
"""

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
from shared_components.data.files.images import read_rgb
from shared_components.data.transforms import resize_target
from shared_components.inference import InferenceError
from shared_components.inference.frames import IMAGES

FRAME = "surgfl_frame"  # metadata key of a frame's height, width, and whether its columns are first


class FrameReader(ImageReader):
    """Reads a frame from a file for MONAI's `LoadImaged` as our own inference does: (W, H, 3) RGB, 0 to 255.

    Unlike MONAI's reader it converts grey, palette and transparent images to three channels, applies the EXIF
    orientation, and refuses truncated files.
    """

    def verify_suffix(self, filename: Sequence[Any] | Any) -> bool:
        """Return whether the suffix is an image suffix."""
        return is_supported_format(filename, [ending[1:] for ending in IMAGES])

    def read(self, data: Sequence[Any] | Any, **kwargs: Any) -> np.ndarray:
        """Read one file as uint8 (H, W, 3); InferenceError for several files, DataError for an unreadable file."""
        paths = [data] if isinstance(data, (str, Path)) else list(data)
        if len(paths) != 1:
            raise InferenceError(f"image: got {len(paths)} files; give one file per frame")
        return read_rgb(Path(paths[0]))

    def get_data(self, img: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the image with columns first, and MONAI's metadata."""
        columns_first = np.ascontiguousarray(img.swapaxes(0, 1))  # (H, W, 3) -> (W, H, 3)
        shape = np.asarray(columns_first.shape[:2])
        return columns_first, {MetaKeys.SPATIAL_SHAPE: shape, MetaKeys.ORIGINAL_CHANNEL_DIM: -1}


class LoadImageOrArrayd(LoadImaged):
    """Variant of MONAI's `LoadImaged` that passes arrays and tensors through.

    MONAI Label replaces instances of `LoadImaged`, and MONAI Deploy omits transforms with `LoadImage` in their name;
    other callers of `preprocessing` do neither.
    """

    def __call__(self, data: Mapping[Hashable, Any], reader: ImageReader | None = None) -> dict[Hashable, Any]:
        """Return the data with images instead of file paths."""
        if all(isinstance(data.get(key), np.ndarray | Tensor) for key in self.keys):
            return dict(data)
        return super().__call__(data, reader)


class FrameToNetworkd(MapTransform):
    """Resize frames to a network's size and scale them to [0, 1], as `evaluation.network_input` does.

    The input is (3, W, H) from `LoadImaged`, or (3, H, W), with whole numbers from 0 to 255 of any type. The output is
    float32 (3, height, width), with the frame's size in its metadata for `MaskToFramed`. Raises InferenceError for
    another shape or other values.
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
    """Resize masks of class ids to the size and axis order of their frame, by nearest neighbour.

    The input is (1, height, width) at the network's size. The output is uint8 (1, H, W), or (1, W, H) for a file read
    by `LoadImaged`. `frame` is the key of the output of `FrameToNetworkd`. Raises InferenceError if the frame is
    missing, or if a mask has more than one channel.
    """

    def __init__(self, keys: KeysCollection, frame: str) -> None:
        super().__init__(keys)
        self.frame = frame

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with the masks replaced."""
        changed = dict(data)
        image = changed.get(self.frame)
        if not isinstance(image, MetaTensor) or FRAME not in image.meta:
            raise InferenceError(
                f"{self.frame}: the size of the frame is missing; run the bundle's preprocessing on the frame first"
            )
        height, width, columns_first = image.meta[FRAME]
        for key in self.key_iterator(changed):
            ids = torch.as_tensor(changed[key])
            if ids.dim() != 3 or len(ids) != 1:
                raise InferenceError(f"{key}: shape is {list(ids.shape)}; give a mask (1, height, width), the argmax")
            mask = resize_target(ids[0].to(torch.uint8).cpu().numpy(), int(height), int(width))
            turned = np.ascontiguousarray(mask.T if columns_first else mask)
            changed[key] = MetaTensor(torch.from_numpy(turned)[None], meta=dict(image.meta))
        return changed


def _as_frame(key: str, image: Tensor | np.ndarray, *, columns_first: bool) -> np.ndarray:
    """Return a channel-first image as uint8 (H, W, 3)."""
    values = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if values.ndim != 3 or len(values) != 3 or not values.size:
        raise InferenceError(f"{key}: channel-first shape is {list(values.shape)}; give a frame with 3 channels, RGB")
    frame = values.transpose((2, 1, 0) if columns_first else (1, 2, 0))  # (3, W, H) or (3, H, W) -> (H, W, 3)
    whole = np.ascontiguousarray(frame).astype(np.uint8)
    if not np.array_equal(whole, frame):
        raise InferenceError(
            f"{key}: values from {values.min():g} to {values.max():g} are not whole numbers from 0 to 255; give the "
            "unscaled frame, since the bundle scales it"
        )
    return whole
