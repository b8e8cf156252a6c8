"""Read and write a video's labels or frames as one NIfTI volume, as ITK-SNAP and 3D Slicer do.

The axes of the stored array are (x, y, t): columns to the right, rows downwards, frames. The affine maps x to the
patient's left, y to the back and t to the head, so both programs show the frames upright and not mirrored. A volume
saved with other axes is reoriented by its affine.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel import orientations
from nibabel.filebasedimages import ImageFileError
from nibabel.nifti1 import Nifti1Pair
from nibabel.spatialimages import HeaderDataError

from shared_components.common.counted import counted
from shared_components.data.files.images import VOLUMES, Axes, DataError, Size, reading, refuse_large, refuse_pointer
from shared_components.data.files.volume_writer import COLOURS, LabelVolumeWriter, PictureVolumeWriter

_MAX_LABEL = np.iinfo(np.uint16).max
MOST_FRAMES = np.iinfo(np.int16).max  # maximum length of an axis in NIfTI-1
_DATA_OFFSET = 352  # bytes: 348 of the header, 4 for "no extension"
_LPS = orientations.axcodes2ornt(("L", "P", "S"))
_NO_TURN = orientations.axcodes2ornt("RAS")  # result of `_turn` for axes as `LabelWriter` writes them
_CHUNK_BYTES = 1 << 25
_DAMAGES = (EOFError, zlib.error, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""Errors of nibabel for a damaged volume, whose header may give any size, offset or type."""
_CUT_OFF = "is not a readable NIfTI volume (cut off or damaged: {})"
_EXPORT_COLOURS = "take the volume that 'surgfl segment --nifti' wrote, or the video itself"
_EXPORT_AGAIN = "export it again with the video's frames as reference, all of them"


def label_frames(
    path: Path, *, frames: int | None = None, size: Size | None = None, axes: Axes = "header"
) -> Iterator[np.ndarray]:
    """Yield the frames of a label volume in order, uint16 (H, W), with few frames in memory.

    A compressed volume with reversed frames, or a volume with frames along another axis, is read as a whole. ``axes``
    chooses the header's directions or the axes as stored. DataError for a missing, damaged or other file, another
    number of ``frames`` or ``size``, and values that are no labels: fractions, negative numbers, NaN, ids above 65535.
    """
    image = _open(path)
    turn = _turn(image, path) if axes == "header" else _NO_TURN
    refuse_other_shape(path, _turned_shape(image, turn), frames=frames, size=size)
    for volume in _chunks(image, turn, path):
        yield from _labels(orientations.apply_orientation(volume, turn), path).transpose(2, 1, 0)  # from (W, H, t)


def label_shape(path: Path, *, axes: Axes = "header") -> tuple[int, int, int]:
    """Return (T, H, W) of a volume without reading its labels; errors as in `label_frames`."""
    image = _open(path)
    return _turned_shape(image, _turn(image, path) if axes == "header" else _NO_TURN)


def refuse_other_shape(
    path: Path, shape: tuple[int, int, int], *, frames: int | None = None, size: Size | None = None
) -> None:
    """Raise a DataError if a volume's (T, H, W) differ from its video's frames and (H, W); None accepts any."""
    T, H, W = shape
    if frames is not None and frames != T:
        raise DataError(path, f"has {counted(T, 'frame')}, but its video has {frames}", _EXPORT_AGAIN)
    if size is not None and tuple(size) != (H, W):
        what = f"has frames of {W}x{H}, but its video is {size[1]}x{size[0]}"
        turned = ", with the width as its first axis" if tuple(size) == (W, H) else ""
        raise DataError(path, what, _EXPORT_AGAIN + turned)


def has_written_axes(path: Path) -> bool:
    """Return whether a volume's axes point as `LabelWriter` writes them, or its header has no directions."""
    return bool(np.array_equal(_turn(_open(path), path), _NO_TURN))


class _Nifti:
    """Header of a NIfTI-1 file."""

    _INTENT = ""
    endings: tuple[str, ...] = VOLUMES
    most: int = MOST_FRAMES

    def header(self, size: tuple[int, ...], count: int, kind: np.dtype[Any]) -> bytes:
        height, width = size
        header = nib.nifti1.Nifti1Header(endianness="<")
        header.set_data_dtype(kind)
        header.set_data_shape((width, height, count))
        affine = np.diag([-1.0, -1.0, 1.0, 1.0])
        header.set_qform(affine, code="scanner")
        header.set_sform(affine, code="scanner")
        header.set_xyzt_units("mm")
        header["scl_slope"], header["scl_inter"] = 1.0, 0.0
        header["vox_offset"] = _DATA_OFFSET
        if self._INTENT:
            header.set_intent(self._INTENT)
        return header.binaryblock.ljust(_DATA_OFFSET, b"\0")


class LabelWriter(_Nifti, LabelVolumeWriter):
    """Writer of a label volume, frame by frame; the file appears on closing, and not after an error.

    ValueError for a path that does not end in .nii.gz or .nii, no masks, masks of several sizes, values that are no
    labels, or more than 32767 frames.
    """

    _INTENT = "label"


class PictureWriter(_Nifti, PictureVolumeWriter):
    """Writer of a video's frames as a colour volume, which label editors show below the labels.

    A frame takes 3 bytes per pixel; in a .nii file, a frame can be read without the frames before it.
    """


def picture_count(path: Path) -> int:
    """Return the number of frames of a colour volume; DataError if it is missing, damaged or has other axes."""
    return _open_pictures(path).shape[2]


def read_picture(path: Path, place: int) -> np.ndarray:
    """Read only frame ``place``, from 0, of a colour volume as uint8 RGB (H, W, 3); errors as in `picture_count`."""
    image = _open_pictures(path)
    if not 0 <= place < image.shape[2]:
        raise DataError(path, f"has no frame {place}, but {image.shape[2]}", "correct the masks' frames")
    with reading(path, _CUT_OFF, "export or copy it again", *_DAMAGES):
        plane = np.asanyarray(image.dataobj[:, :, place])
    return np.stack([plane[channel].T for channel in "RGB"], axis=-1)


def is_colour_volume(path: Path) -> bool:
    try:
        return _open_volume(path).get_data_dtype() == COLOURS
    except DataError:
        return False


def _open_pictures(path: Path) -> Nifti1Pair:
    image = _open_volume(path)
    if image.get_data_dtype() != COLOURS:
        raise DataError(path, f"has {image.get_data_dtype()} values, not colours", _EXPORT_COLOURS)
    if not np.array_equal(_turn(image, path), _NO_TURN):
        raise DataError(path, "has its axes in another order than x, y and frames", _EXPORT_COLOURS)
    return image


def _open(path: Path) -> Nifti1Pair:
    image = _open_volume(path)
    if (kind := image.get_data_dtype()).kind not in "iuf":
        what = "colours" if kind.fields else f"{kind} values"
        raise DataError(path, f"has {what}", "export a label volume, one whole number per pixel")
    return image


def _open_volume(path: Path) -> Nifti1Pair:
    with reading(path, _CUT_OFF, "export or copy it again", ImageFileError, HeaderDataError, *_DAMAGES):
        refuse_pointer(path)
        image = nib.load(path, keep_file_open=True)  # decompresses the file only once
    if not isinstance(image, Nifti1Pair):
        raise DataError(path, f"is {type(image).__name__}, not NIfTI", "export the labels as .nii.gz")
    if len(image.shape) == 4 and 1 in image.shape[2:]:
        image = _without_slices(image)
    if len(image.shape) != 3 or min(image.shape) < 1:
        shape = "x".join(map(str, image.shape))
        raise DataError(path, f"is a volume of {shape}", "export one volume of three axes: x, y, and the frames")
    W, H, _ = image.shape
    refuse_large(path, (H, W))
    return image


def _without_slices(image: Nifti1Pair) -> Nifti1Pair:
    """Return a volume of x, y, one slice and time, or of x, y, frames and one time, as x, y and frames."""
    W, H, slices, times = image.shape
    affine = image.affine
    if times > 1 and (image.header["sform_code"] or image.header["qform_code"]):
        affine = affine.copy()  # time has no direction: the frames stay in order
        affine[:3, 2] = np.abs(affine[:3, 2])
    proxy = image.dataobj.reshape((W, H, slices * times))  # type: ignore[attr-defined]  # reads nothing yet
    frames = Nifti1Pair(proxy, affine, image.header)
    frames.file_map = image.file_map
    return frames


def _turn(image: Nifti1Pair, path: Path) -> np.ndarray:
    """Return the argument of `apply_orientation` that brings the axes to (x, y, t)."""
    header = image.header
    if not header["sform_code"] and not header["qform_code"]:  # no directions
        return _NO_TURN
    affine = image.affine
    axes = orientations.io_orientation(affine) if np.isfinite(affine).all() else np.full((3, 2), np.nan)
    if np.isnan(axes).any():
        raise DataError(path, "gives its axes no direction in its header", _EXPORT_AGAIN)
    return orientations.ornt_transform(axes, _LPS)


def _turned_shape(image: Nifti1Pair, turn: np.ndarray) -> tuple[int, int, int]:
    """Return (T, H, W) of a volume stored with other axes."""
    targets = turn[:, 0].astype(int).tolist()  # new place of each axis
    W, H, T = (image.shape[targets.index(axis)] for axis in range(3))
    return T, H, W


def _chunks(image: Nifti1Pair, turn: np.ndarray, path: Path) -> Iterator[np.ndarray]:
    """Yield pieces of the volume in the order of time, with axes as stored."""
    T = image.shape[2]
    in_order, backwards = turn[2, 0] == 2, turn[2, 1] < 0
    packed = Path(image.file_map["image"].filename or path).suffix in (".gz", ".bz2", ".zst")
    few = max(1, _CHUNK_BYTES // (8 * image.shape[0] * image.shape[1]))
    step = few if in_order and not (packed and backwards) else T
    starts = range(0, T, step)
    for start in reversed(starts) if in_order and backwards else starts:
        with reading(path, _CUT_OFF, "export or copy it again", *_DAMAGES):
            chunk = np.asanyarray(image.dataobj[:, :, start : start + step])
        yield chunk


def _labels(values: np.ndarray, path: Path) -> np.ndarray:
    """Convert values to uint16; refuse values that are no labels."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise DataError(path, "has values that are no numbers (NaN)", "export a label volume")
        whole = np.rint(values)
        # a slope in the header turns whole numbers into nearly whole numbers
        if (far := np.abs(values - whole) > 1e-3 + 1e-6 * np.abs(whole)).any():
            what = f"has the value {float(values[far][0]):g}, which is no label"
            raise DataError(path, what, "export a label volume, saved without interpolation")
        values = whole
    if values.min() < 0 or values.max() > _MAX_LABEL:
        bad = values.min() if values.min() < 0 else values.max()
        raise DataError(path, f"has the label {int(bad)}", f"labels are from 0 to {_MAX_LABEL}; correct it")
    return values.astype(np.uint16)
