"""Read untrusted model files; all `.safetensors`, `.pt` and `.pth` weights are read here.

Memory is proportional to the file's size: a tensor's shape is compared with the file's bytes before the tensor is
created, and no pickled object is created (`pickled_tensors`).
"""

import io
import json
import mmap
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from shared_components.networks.pickled_tensors import Described, PickleError, read_pickle

NOTES = "extra/surgfl.json"  # header of a `.pt` file (a zip archive); torch ignores it
MOST_HEADER = 10_000_000  # maximum size of a safetensors header in bytes
MOST_TENSORS = 100_000
MOST_SHARED = 4  # maximum ratio of tensor bytes to file bytes; shared weights count several times
WRAPPERS = ("state_dict", "model", "network")  # usual keys of a state dict in a training checkpoint
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # torch.save before version 1.6
_PARTS = 5  # pickles of such a file: magic number, protocol, machine, weights, storage keys


class ModelFileError(ValueError):
    """Error for a file with other contents than weights; the message completes a sentence about the file."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, in the file's precision.

    Raises ModelFileError if the file contains other data than named dense tensors, or describes more data than it has;
    other exceptions mean a damaged file, which `checkpoints` reports.
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        return _read_zip(path) if zipfile.is_zipfile(path) else _read_old(path)
    except PickleError as error:
        raise ModelFileError(str(error)) from error


def read_notes(path: Path) -> dict[str, str]:
    """Return the strings in a file's header; empty for files of other programs. Raises as `read_tensors`."""
    if path.suffix == ".safetensors":
        _check_header_size(path)
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    if not zipfile.is_zipfile(path):  # the format of torch before version 1.6
        return {}
    with zipfile.ZipFile(path) as archive:
        _refuse_packed(archive, path)
        notes_files = [name for name in archive.namelist() if name.endswith(f"/{NOTES}")]
        notes = json.loads(archive.read(notes_files[0])) if notes_files else {}
    if not isinstance(notes, dict):
        raise ValueError(f"{NOTES} is no mapping")
    return {str(name): str(value) for name, value in notes.items()}


def _check_header_size(path: Path) -> None:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if MOST_HEADER < size < path.stat().st_size:  # safetensors refuses longer headers
        raise ModelFileError(f"has a header of {size} bytes, and the limit is {MOST_HEADER}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; safetensors itself checks types, shapes and offsets."""
    _check_header_size(path)
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        _check_shapes(names, (file.get_slice(name).get_shape() for name in names), path)
        return {name: file.get_tensor(name) for name in names}


def _check_shapes(names: Collection[str], shapes: Iterable[Sequence[int]], path: Path) -> None:
    """Refuse too many tensors, and a dimension larger than the file's bytes, which an empty tensor could have."""
    if len(names) > MOST_TENSORS:
        raise ModelFileError(f"has {len(names)} tensors, and the limit is {MOST_TENSORS}")
    for name, shape in zip(names, shapes, strict=True):
        if max(shape, default=0) > path.stat().st_size:
            raise ModelFileError(f"has {name[:80]!r} of shape {list(shape)}, but only {path.stat().st_size} bytes")


def _read_zip(path: Path) -> dict[str, Tensor]:
    """Read a `torch.save` archive: `data.pkl`, and one record per storage."""
    with zipfile.ZipFile(path) as archive:
        _refuse_packed(archive, path)
        names = archive.namelist()
        (top,) = (name.removesuffix("/data.pkl") for name in names if name.endswith("/data.pkl"))
        if not all(name.startswith(f"{top}/") for name in names):
            raise ValueError("a record lies outside the archive's folder")
        if f"{top}/byteorder" in names:
            _check_byte_order(archive.read(f"{top}/byteorder") == b"little")
        described, _ = read_pickle(io.BytesIO(archive.read(f"{top}/data.pkl")))
        return _made(_state(described, path), lambda key: bytearray(archive.read(f"{top}/data/{key}")))


def _refuse_packed(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse compressed or overlapping records (zip bombs), which torch does not write."""
    records = archive.infolist()
    if len({record.filename for record in records}) < len(records):
        raise ValueError("two records have the same name")
    if sum(record.file_size for record in records) > path.stat().st_size:
        raise ValueError("its records are compressed")


def _check_byte_order(little: bool) -> None:
    if little is not (sys.byteorder == "little"):
        raise ModelFileError("was saved with another byte order; save it again on a machine with this byte order")


def _read_old(path: Path) -> dict[str, Tensor]:
    """Read a file of torch before version 1.6: five pickles, then each storage after its length."""
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as file:
        pickles = [read_pickle(file) for _ in range(_PARTS)]
        (magic, protocol, machine, saved, keys), types = (value for value, _ in pickles), pickles[3][1]
        if (magic, protocol) != (_MAGIC, _PROTOCOL) or not all(isinstance(key, str) for key in keys):
            raise ValueError("not a torch.save file")
        _check_byte_order(machine["little_endian"])
        places = {}
        for key in keys:
            (numel,) = struct.unpack("<q", file.read(8))
            places[key] = file.tell(), numel * types[key].itemsize
            file.seek(max(0, numel) * types[key].itemsize, os.SEEK_CUR)  # ValueError beyond the end of the file
        return _made(_state(saved, path), lambda key: bytearray(file[places[key][0] : sum(places[key])]))


def _state(saved: object, path: Path) -> dict[str, Described]:
    """Return the state dict at the top level or under one of `WRAPPERS`, after checks of its sizes."""
    for key in WRAPPERS:
        if isinstance(saved, dict) and isinstance(saved.get(key), dict):
            saved = saved[key]
    if not isinstance(saved, dict) or not all(
        isinstance(name, str) and isinstance(value, Described) for name, value in saved.items()
    ):
        raise ModelFileError("contains no state dict")
    _check_shapes(saved, (value.size for value in saved.values()), path)
    if sum(value.bytes for value in saved.values()) > MOST_SHARED * path.stat().st_size:
        raise ModelFileError(f"has tensors that share their data more than {MOST_SHARED} times")
    return saved


def _made(state: Mapping[str, Described], read: Callable[[str], bytearray]) -> dict[str, Tensor]:
    """Create the tensors of a state; ``read`` returns the bytes of a storage, which its tensors share."""
    blocks = {key: read(key) for key in {tensor.storage.key for tensor in state.values() if tensor.bytes}}
    return {name: _tensor(tensor, blocks) for name, tensor in state.items()}


def _tensor(described: Described, blocks: Mapping[str, bytearray]) -> Tensor:
    if not described.bytes:
        return torch.empty(described.size, dtype=described.dtype)
    storage, block = described.storage, blocks[described.storage.key]
    begin, length = storage.first * storage.dtype.itemsize, storage.numel * storage.dtype.itemsize
    if begin + length > len(block):
        raise ValueError("a storage is shorter than described")
    count = length // described.dtype.itemsize
    numbers = torch.frombuffer(block, dtype=described.dtype, count=count, offset=begin)
    return numbers.as_strided(described.size, described.stride, described.offset)
