"""Read and write a video's labels or frames as one NIfTI volume, as ITK-SNAP and 3D Slicer do.

The axes of the stored array are (x, y, t): columns to the right, rows downwards, frames. The affine maps x to the
patient's left, y to the back and t to the head, so both programs show the frames upright and not mirrored. A volume
saved with other axes is reoriented by its affine.
"""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import nibabel as nib
import numpy as np
from nibabel import orientations
from nibabel.filebasedimages import ImageFileError
from nibabel.nifti1 import Nifti1Pair
from nibabel.spatialimages import HeaderDataError

from shared_components.common.atomic import atomically
from shared_components.common.counted import counted
from shared_components.data.files import (
    MISSING,
    VOLUMES,
    Axes,
    DataError,
    Size,
    refuse_large,
    refuse_pointer,
    refuse_special,
)

_LARGEST = np.iinfo(np.uint16).max
MOST_FRAMES = np.iinfo(np.int16).max
"""Of an axis of NIfTI-1."""
_COLOURS = np.dtype([(channel, np.uint8) for channel in "RGB"])
_DATA_BEGINS = 352  # a header of 348 bytes, and four that say that no extension follows
_PICTURE = orientations.axcodes2ornt(("L", "P", "S"))
_AS_WRITTEN = orientations.axcodes2ornt("RAS")  # what `_turn` says of axes that need no turn
_CHUNK_BYTES = 1 << 25
_DAMAGES = (OSError, EOFError, zlib.error, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""What reading a damaged volume raises, whose header may ask for any size, offset or type."""
_EXPORT_COLOURS = "take the volume that 'surgfl segment --nifti' wrote, or the video itself"
_AGAIN = "export it again with the video's frames as reference, all of them"


def label_frames(
    path: Path, *, frames: int | None = None, size: Size | None = None, axes: Axes = "header"
) -> Iterator[np.ndarray]:
    """Yield the frames of a volume of labels in order, uint16 (H, W), few of them in memory at a time.

    A volume whose frames lie backwards in a compressed file, or not one after another, is read whole.

    Args:
        frames: how many there have to be; None: as many as there are.
        size: (H, W) that they have to have; None: any.
        axes: trust the header's directions, or take the axes as stored.

    Raises:
        DataError: the file is missing, damaged or no NIfTI volume of three axes, is of another length or size, or holds
            what is no label: fractions, negative numbers, NaN, ids above 65535.
    """
    image = _open(path)
    turn = _turn(image, path) if axes == "header" else _AS_WRITTEN
    refuse_other_shape(path, _turned_shape(image, turn), frames=frames, size=size)
    for volume in _chunks(image, turn, path):
        turned = orientations.apply_orientation(volume, turn)  # (W, H, t)
        yield from _labels(turned, path).transpose(2, 1, 0)


def label_shape(path: Path, *, axes: Axes = "header") -> tuple[int, int, int]:
    """Return (T, H, W) of a volume without reading its labels; errors as in `label_frames`."""
    image = _open(path)
    return _turned_shape(image, _turn(image, path) if axes == "header" else _AS_WRITTEN)


def refuse_other_shape(
    path: Path, shape: tuple[int, int, int], *, frames: int | None = None, size: Size | None = None
) -> None:
    """Raise a DataError where a volume's (T, H, W) are not its video's frames and (H, W); None: any will do."""
    T, H, W = shape
    if frames is not None and frames != T:
        raise DataError(path, f"holds {counted(T, 'frame')}, but its video has {frames}", _AGAIN)
    if size is not None and tuple(size) != (H, W):
        what = f"holds frames of {W}x{H}, but its video is {size[1]}x{size[0]}"
        turned = ", with the width as its first axis" if tuple(size) == (W, H) else ""
        raise DataError(path, what, _AGAIN + turned)


def lies_as_written(path: Path) -> bool:
    """Say whether a volume's axes point as `LabelWriter` writes them, or its header says no directions."""
    return bool(np.array_equal(_turn(_open(path), path), _AS_WRITTEN))


class _Writer:
    """Writes a volume frame by frame; it appears when it is closed, and not after an error.

    Args:
        path: ends in .nii.gz or .nii, else a ValueError.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not self.path.name.endswith(VOLUMES):
            raise ValueError(f"{path}: a label volume's name ends in {' or '.join(VOLUMES)}; rename it")
        self.count = 0
        self._size: tuple[int, ...] = ()
        self._type: np.dtype[Any] = np.dtype(np.uint8)
        self._packed = self.path.name.endswith(".gz")
        # The header says how many frames there are and comes first: they wait beside until all are known.
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.frames")
        self._raw: IO[bytes] | None = None
        self._file: IO[bytes] | gzip.GzipFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close() if error is None else self.abandon()

    def close(self) -> None:
        """Let the volume appear.

        Raises:
            ValueError: it has no frames.
        """
        try:
            if self._file is None:
                raise ValueError(f"{self.path}: there are no frames to write; give at least one")
            for file in self._files():
                file.close()
            header = self._header()
            with atomically(self.path) as beside, beside.open("wb") as out, self._part.open("rb") as frames:
                out.write(gzip.compress(header, mtime=0) if self._packed else header)
                shutil.copyfileobj(frames, out)  # members of one gzip file, one after another
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Remove what was made; an earlier file stays."""
        for file in self._files():
            with suppress(OSError):  # a full disk refuses what is left to write, too
                file.close()
        self._part.unlink(missing_ok=True)

    def _append(self, frame: np.ndarray) -> None:
        assert self._file is not None
        if self.count >= MOST_FRAMES:
            raise ValueError(
                f"{self.path}: a NIfTI volume takes {MOST_FRAMES} frames and no more; cut the video in parts, or take "
                "every n-th frame"
            )
        # (H, W) in C order is (W, H) in Fortran's, which NIfTI is in
        self._file.write(np.ascontiguousarray(frame).tobytes())
        self.count += 1

    def _begin(self, size: tuple[int, ...]) -> None:
        self._size = size
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._raw = self._part.open("wb")
        self._file = gzip.GzipFile("", "wb", 6, self._raw, mtime=0) if self._packed else self._raw

    def _files(self) -> list[IO[bytes] | gzip.GzipFile]:
        return [file for file in (self._file, self._raw) if file is not None]

    def _header(self) -> bytes:
        height, width = self._size
        header = nib.nifti1.Nifti1Header(endianness="<")
        header.set_data_dtype(self._type)
        header.set_data_shape((width, height, self.count))
        affine = np.diag([-1.0, -1.0, 1.0, 1.0])
        header.set_qform(affine, code="scanner")
        header.set_sform(affine, code="scanner")
        header.set_xyzt_units("mm")
        header["scl_slope"], header["scl_inter"] = 1.0, 0.0
        header["vox_offset"] = _DATA_BEGINS
        self._say_what_it_is(header)
        return header.binaryblock.ljust(_DATA_BEGINS, b"\0")

    def _say_what_it_is(self, header: nib.nifti1.Nifti1Header) -> None:
        """Add what a kind of volume says besides."""


class LabelWriter(_Writer):
    """Writes a volume of labels frame by frame; it appears when it is closed, and not after an error.

    Args:
        path: ends in .nii.gz or .nii.

    Raises:
        ValueError: there are no masks, masks of several sizes, numbers that are no labels, or more than 32767 frames.
    """

    def add(self, mask: np.ndarray) -> None:
        """Append one frame (H, W): whole numbers to 255, or to 65535 where they are of a type larger than 8 bits."""
        mask = np.asarray(mask)
        if self._file is None:
            self._type = np.dtype(np.uint8 if mask.dtype.itemsize == 1 else np.uint16)
            self._begin(mask.shape)
        self._refuse(mask)
        self._append(mask.astype(self._type.newbyteorder("<")))

    def _refuse(self, mask: np.ndarray) -> None:
        if mask.ndim != 2 or mask.shape != self._size or not mask.size:
            raise ValueError(
                f"{self.path}: frame {self.count} is of shape {mask.shape}, the first of {self._size}; give masks "
                "(height, width) of one size"
            )
        if mask.dtype.kind not in "iub" or mask.min() < 0 or mask.max() > np.iinfo(self._type).max:
            raise ValueError(
                f"{self.path}: frame {self.count} holds {mask.dtype} values from {mask.min()} to {mask.max()}; labels "
                f"are whole numbers from 0 to {np.iinfo(self._type).max}"
            )

    def _say_what_it_is(self, header: nib.nifti1.Nifti1Header) -> None:
        header.set_intent("label")


class PictureWriter(_Writer):
    """Writes the frames of a video as a volume of colours, which label editors show below the labels.

    One frame takes 3 bytes a pixel; without .gz a frame can be read without those before it.
    """

    def add(self, picture: np.ndarray) -> None:
        """Append one frame, uint8 RGB (H, W, 3).

        Raises:
            ValueError: it is something else or of another size than the first, or there are more than 32767 frames.
        """
        if self._file is None:
            self._type = _COLOURS
            self._begin(picture.shape[:2])
        if picture.dtype != np.uint8 or picture.shape != (*self._size, 3) or not picture.size:
            raise ValueError(
                f"{self.path}: frame {self.count} is {picture.dtype} of shape {picture.shape}, the first (height, "
                f"width) is {self._size}; give uint8 pictures (height, width, 3) of one size"
            )
        self._append(picture)


def picture_count(path: Path) -> int:
    """Return how many frames a volume of colours has.

    Raises:
        DataError: the file is missing, damaged or no volume of colours, or has other axes than `PictureWriter`'s.
    """
    return _open_pictures(path).shape[2]


def read_picture(path: Path, place: int) -> np.ndarray:
    """Return one frame of a volume of colours, counted from 0, as uint8 RGB (H, W, 3).

    Of a file that is not compressed nothing else is read.

    Raises:
        DataError: as `picture_count`, or there is no such frame.
    """
    image = _open_pictures(path)
    if not 0 <= place < image.shape[2]:
        raise DataError(path, f"has no frame {place}, but {image.shape[2]}", "correct the masks' frames")
    try:
        plane = np.asanyarray(image.dataobj[:, :, place])
    except _DAMAGES as error:
        raise _unreadable(path, error) from error
    return np.stack([plane[channel].T for channel in "RGB"], axis=-1)


def holds_colours(path: Path) -> bool:
    """Say whether a file is a volume of colours; of what cannot be read it is not."""
    try:
        return _open_volume(path).get_data_dtype() == _COLOURS
    except DataError:
        return False


def _open_pictures(path: Path) -> Nifti1Pair:
    image = _open_volume(path)
    if image.get_data_dtype() != _COLOURS:
        raise DataError(path, f"holds {image.get_data_dtype()} values, not colours", _EXPORT_COLOURS)
    if not np.array_equal(_turn(image, path), _AS_WRITTEN):
        raise DataError(path, "has its axes in another order than x, y and frames", _EXPORT_COLOURS)
    return image


def _open(path: Path) -> Nifti1Pair:
    image = _open_volume(path)
    if (kind := image.get_data_dtype()).kind not in "iuf":
        what = "colours" if kind.fields else f"{kind} values"
        raise DataError(path, f"holds {what}", "export a label volume, one whole number per pixel")
    return image


def _open_volume(path: Path) -> Nifti1Pair:
    try:
        refuse_special(path)
        refuse_pointer(path)
        image = nib.load(path, keep_file_open=True)  # so that a compressed file is unpacked once
    except FileNotFoundError:
        raise DataError(path, *MISSING) from None
    except DataError:
        raise
    except (ImageFileError, HeaderDataError, *_DAMAGES) as error:
        raise _unreadable(path, error) from error
    if not isinstance(image, Nifti1Pair):
        raise DataError(path, f"is {type(image).__name__}, not NIfTI", "export the labels as .nii.gz")
    if len(image.shape) != 3 or min(image.shape) < 1:
        shape = "x".join(map(str, image.shape))
        raise DataError(path, f"is a volume of {shape}", "export one volume of three axes: x, y, and the frames")
    W, H, _ = image.shape
    refuse_large(path, (H, W))
    return image


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(
        path, f"is not a readable NIfTI volume (cut off or damaged: {reason:.120})", "export or copy it again"
    )


def _turn(image: Nifti1Pair, path: Path) -> np.ndarray:
    """Return what `apply_orientation` needs to bring the axes to (x, y, t)."""
    header = image.header
    if not header["sform_code"] and not header["qform_code"]:  # it says no directions
        return _AS_WRITTEN
    affine = image.affine
    found = orientations.io_orientation(affine) if np.isfinite(affine).all() else np.full((3, 2), np.nan)
    if np.isnan(found).any():
        raise DataError(path, "gives its axes no direction in its header", _AGAIN)
    return orientations.ornt_transform(found, _PICTURE)


def _turned_shape(image: Nifti1Pair, turn: np.ndarray) -> tuple[int, int, int]:
    """Return (T, H, W) of a volume that is stored in another order of axes."""
    places = turn[:, 0].astype(int).tolist()  # where each axis goes
    W, H, T = (image.shape[places.index(axis)] for axis in range(3))
    return T, H, W


def _chunks(image: Nifti1Pair, turn: np.ndarray, path: Path) -> Iterator[np.ndarray]:
    """Yield the volume in pieces along its frames, in their order in time, axes as they are stored."""
    T = image.shape[2]
    in_order, backwards = turn[2, 0] == 2, turn[2, 1] < 0
    packed = Path(image.file_map["image"].filename or path).suffix in (".gz", ".bz2", ".zst")
    few = max(1, _CHUNK_BYTES // (8 * image.shape[0] * image.shape[1]))
    step = few if in_order and not (packed and backwards) else T
    starts = range(0, T, step)
    try:
        for start in reversed(starts) if in_order and backwards else starts:
            yield np.asanyarray(image.dataobj[:, :, start : start + step])
    except _DAMAGES as error:
        if isinstance(error, DataError):
            raise
        raise _unreadable(path, error) from error


def _labels(values: np.ndarray, path: Path) -> np.ndarray:
    """Return values as uint16, where they are labels."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise DataError(path, "holds values that are no numbers (NaN)", "export a label volume")
        whole = np.rint(values)
        # a slope in the header turns whole numbers into nearly whole ones
        if (far := np.abs(values - whole) > 1e-3 + 1e-6 * np.abs(whole)).any():
            what = f"holds {float(values[far][0]):g}, which is no label"
            raise DataError(path, what, "export a label volume, saved without interpolation")
        values = whole
    if values.min() < 0 or values.max() > _LARGEST:
        bad = values.min() if values.min() < 0 else values.max()
        raise DataError(path, f"holds the label {int(bad)}", f"labels are from 0 to {_LARGEST}; correct it")
    return values.astype(np.uint16)
