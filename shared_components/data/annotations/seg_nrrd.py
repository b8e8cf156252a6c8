"""Read 3D Slicer's segmentations, `.seg.nrrd`: one volume per video, whose third axis is the frame.

Format: https://slicer.readthedocs.io/en/latest/developer_guide/modules/segmentations.html. Slicer saves only the part
of the volume with labels; `Segmentation_ReferenceImageExtentOffset` is its first voxel.
"""

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from shared_components.data.annotations.shapes import AGAIN, Annotations, Draw, Frame, Shape, placed_at
from shared_components.data.files.images import MOST_PIXELS, SEGMENTATIONS, DataError, reading, refuse_pointer

TITLE = "3D Slicer"
_MOST_BYTES = 1 << 31  # of the labels of a video
_TYPES = {"unsigned char": "u1", "uint8": "u1", "uchar": "u1", "uint8_t": "u1", "short": "i2", "unsigned short": "u2",
          "int16": "i2", "uint16": "u2", "int": "i4", "unsigned int": "u4", "signed char": "i1"}  # fmt: skip
_LPS = ("left-posterior-superior", "LPS")


def recognises(head: str) -> bool:
    return head.startswith("NRRD")


def read(path: Path) -> Annotations:
    """Read a file; DataError if it is damaged, names another file, or has axes other than x, y and frames."""
    header, labels = _volume(path)
    left, top, first = _offset(header, path)
    segments = _segments(header, path, labels.shape[0])
    result = Annotations(path, list(dict.fromkeys(name for name, _, _ in segments)))
    result.notes["segments of equal names"] += len(segments) - len(result.classes)
    for place in range(labels.shape[3]):
        shapes = []
        for layer in range(labels.shape[0]):
            _refuse_unnamed(labels[layer, :, :, place], [0, *(v for _, v, of in segments if of == layer)], path)
        for name, value, layer in segments:
            of_frame = labels[layer, :, :, place].T  # (w, h) -> (h, w)
            if (of_frame == value).any():
                shapes.append(Shape(name, _segment(of_frame, value, left, top)))
        if shapes:
            video = path.name.removesuffix(SEGMENTATIONS)
            result.frames.append(Frame((video,), tuple(shapes), place=first + place))
    return result


def _segment(labels: np.ndarray, value: int, left: int, top: int) -> Draw:
    return lambda size: placed_at(labels == value, left, top)(size)


def _refuse_unnamed(labels: np.ndarray, values: list[int], path: Path) -> None:
    other = labels[~np.isin(labels, values)]
    if other.size:
        raise DataError(path, f"has the label {other[0]} without a segment", f"{AGAIN} from 3D Slicer")


def _volume(path: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Return the header and the labels (layers, w, h, frames)."""
    import nrrd

    cut_off = "is not a readable segmentation ({})"
    damages = (nrrd.NRRDError, ValueError, KeyError, zlib.error, TypeError, MemoryError, StopIteration)
    with reading(path, cut_off, f"{AGAIN} from 3D Slicer", *damages), path.open("rb") as file:
        refuse_pointer(path)
        header = dict(nrrd.read_header(line.decode("utf-8") for line in file))  # pynrrd drops other letters than ASCII
        if {"data file", "datafile", "line skip", "byte skip"} & set(header):
            raise DataError(path, "has its labels in another file", "save it as one file, Segmentation.seg.nrrd")
        sizes = [int(side) for side in header["sizes"]]
        kind = np.dtype(_TYPES[header["type"]]).newbyteorder("<" if header.get("endian") != "big" else ">")
        layers, W, H, frames = sizes if len(sizes) == 4 else [1, *sizes]
        length = layers * W * H * frames * kind.itemsize
        if min(sizes) < 1 or H * W > MOST_PIXELS or length > _MOST_BYTES:
            raise DataError(path, f"is a volume of {'x'.join(map(str, sizes))}", "cut the video in parts")
        data = _unpacked(file.read(_MOST_BYTES), header["encoding"], length)
        labels = np.frombuffer(data, kind).reshape((layers, W, H, frames), order="F")
    if header.get("space", "left-posterior-superior") not in _LPS or not _are_straight(header):
        what = "has its axes in other directions than x, y and frames"
        remedy = "export the segmentation as a NIfTI label map, with the frames' volume as reference"
        raise DataError(path, what, remedy)
    return header, labels


def _unpacked(data: bytes, encoding: str, length: int) -> bytes:
    if encoding in ("gzip", "gz"):
        data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, length + 1)
    elif encoding != "raw":
        raise ValueError(f"encoding {encoding!r:.20}, not raw or gzip")
    if len(data) != length:
        raise ValueError(f"{len(data)} bytes of labels, not {length}")
    return data


def _are_straight(header: dict[str, Any]) -> bool:
    """Return whether the axes x, y and frames point left, back and up, as in a volume of frames."""
    directions = np.asarray(header.get("space directions", np.eye(3)), np.float64)[-3:]
    diagonal = np.diag(directions)
    return bool((diagonal > 0).all() and np.allclose(directions, np.diag(diagonal)))


def _offset(header: dict[str, Any], path: Path) -> list[int]:
    text = str(header.get("Segmentation_ReferenceImageExtentOffset", "0 0 0"))
    if not re.fullmatch(r"(\d{1,6} ){2}\d{1,6}", text.strip()):
        what = f"lies outside of the frames (Segmentation_ReferenceImageExtentOffset {text:.40})"
        raise DataError(path, what, "crop the segments to the frames' volume, and save it again")
    return [int(number) for number in text.split()]


def _segments(header: dict[str, Any], path: Path, layers: int) -> list[tuple[str, int, int]]:
    """Return name, value and layer of each segment, in order."""
    keys = sorted((key for key in header if re.fullmatch(r"Segment\d+_ID", key)), key=lambda key: int(key[7:-3]))
    segments = []
    for key in keys:
        prefix = key.removesuffix("ID")
        name, value, layer = (str(header.get(prefix + part, "")) for part in ("Name", "LabelValue", "Layer"))
        if not value.isdecimal() or layer not in map(str, range(layers)):
            raise DataError(path, f"has no {prefix}LabelValue or Layer", f"{AGAIN} from 3D Slicer 4.11 or newer")
        segments.append((name, int(value), int(layer)))
    if not segments:
        raise DataError(path, "names no segments", "export it as a segmentation (.seg.nrrd), not as a volume")
    return segments
