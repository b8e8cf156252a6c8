"""Read and write weights: atomic writing of safetensors and `.pt` files, reading by `model_files`."""

import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from shared_components.common.atomic import atomically, write_bytes
from shared_components.common.git_lfs import WHAT as LFS_POINTER
from shared_components.common.git_lfs import WHAT_TO_DO as LFS_PULL
from shared_components.common.git_lfs import is_pointer_file
from shared_components.common.reject_code import is_expression
from shared_components.common.sanitise import is_plain
from shared_components.networks.model_files import NOTES, ModelFileError, read_notes, read_tensors

T = TypeVar("T")

_DAMAGES = (
    SafetensorError, RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError,
    AttributeError, ArithmeticError, AssertionError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
"""Exceptions raised while reading a truncated or damaged file."""
_REMEDY = "save only the network's state_dict, with dense and contiguous tensors"
MOST_OUTPUTS = 256  # maximum number of classes of a uint8 mask
SHOWN = 3  # maximum number of tensor names of each kind in an error message


class CheckpointError(ValueError):
    """Error for an unusable checkpoint; the message names the file and the difference."""


def save_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict from any device atomically as safetensors.

    A missing folder is created. The metadata are short strings for the file's header, such as the method.
    """
    write_tensors(path, _on_cpu(state), metadata or {})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors without shared memory as safetensors, see `atomic.atomically`.

    The same tensors and header give the same bytes, since the header is sorted.
    """
    with atomically(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata=dict(header))
        except SafetensorError as error:
            number = re.search(r"\(os error (\d+)\)", str(error))
            raise OSError(*((int(number[1]), os.strerror(int(number[1]))) if number else (str(error),))) from error
        _sort_header(beside)


def _sort_header(path: Path) -> None:
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) == size:
            file.seek(8)
            file.write(text)


def save_pt(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict as `save_weights` does, but in the format of `torch.save`, which MONAI's tools read."""
    written = io.BytesIO()
    torch.save(_on_cpu(state), written)
    with zipfile.ZipFile(written, "a") as archive:
        top = archive.namelist()[0].partition("/")[0]
        archive.writestr(zipfile.ZipInfo(f"{top}/{NOTES}"), json.dumps(dict(metadata or {}), sort_keys=True))
    write_bytes(path, written.getvalue())


def _on_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors or `torch.save` file; half precision becomes float32.

    A `.pt` or `.pth` file contains the state dict at the top level or under "state_dict", "model" or "network"; plain
    values and training settings are ignored. Raises CheckpointError for a missing or damaged file, and other contents.
    """
    halves = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in halves else value for name, value in stored_weights(path).items()}


def stored_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict as `load_weights` does, but in the file's precision."""
    return _read(read_tensors, path, "is damaged or contains other data than tensors")


def load_metadata(path: Path) -> dict[str, str]:
    """Read the header of `save_weights` or `save_pt`, else nothing; CheckpointError for a missing or damaged file."""
    return _read(read_notes, path, "is damaged")


def _read(read: Callable[[Path], T], path: Path, damaged: str) -> T:
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist; give the path of a model.safetensors or model.pt")
    refuse_pointer(path)
    try:
        return read(path)
    except ModelFileError as error:
        raise CheckpointError(f"checkpoint {path} {error}; {_REMEDY}") from error
    except _DAMAGES as error:
        raise CheckpointError(f"checkpoint {path} {damaged}; copy it again, or {_REMEDY}") from error


def refuse_pointer(path: Path) -> None:
    """Raise CheckpointError if the file is a Git LFS pointer."""
    if is_pointer_file(path):
        raise CheckpointError(f"checkpoint {path} {LFS_POINTER}; {LFS_PULL}")


def header_of(path: Path | None) -> dict[str, str]:
    """Return a checkpoint's header; empty if the file is missing.

    Raises CheckpointError for a damaged file, an expression that MONAI would run, too many class names, or class names
    with control characters.
    """
    if path is None or not path.is_file():
        return {}
    notes = load_metadata(path)
    for key, text in notes.items():
        if is_expression(text):
            raise CheckpointError(
                f"checkpoint {path}: {key!r:.80} in its header is the expression {text!r:.80}; use another checkpoint"
            )
    for key in ("outputs", "classes"):
        names = notes.get(key, "").split(",")
        if len(names) > MOST_OUTPUTS or not all(is_plain(name) for name in names if name):
            raise CheckpointError(
                f"checkpoint {path}: {key!r} in its header must be at most {MOST_OUTPUTS} names of one line each"
            )
    return notes


def load_into(network: nn.Module, path: Path) -> None:
    """Load a checkpoint with the same names and shapes into a network, see `tensors_of`.

    Raises CheckpointError for other names or shapes, NaN or infinity; the network keeps its weights.
    """
    state = tensors_of(network, load_weights(path), path)
    require_finite(state, path)
    network.load_state_dict(network.state_dict() | state)


def tensors_of(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's state for a network; CheckpointError if names or shapes differ.

    Modules in the class's tuple `training_only` may be missing in the file or in the network.
    """
    own, helpers = network.state_dict(), tuple(f"{name}." for name in getattr(type(network), "training_only", ()))
    needed = {name: own[name] for name in own if name in state or not name.startswith(helpers)}
    loaded = {name: state[name] for name in state if name in own or not name.startswith(helpers)}
    require_equal(needed, loaded, Path(path), type(network).__name__)
    return loaded


def load_encoder(network: nn.Module, path: Path) -> None:
    """Load an official ImageNet checkpoint into `network.encoder`, without its classifier.

    ``official`` of the encoder's class contains the architecture and the classifier's name. Raises CheckpointError if
    names or shapes differ, a number is NaN or infinite, or a variance is negative; the network keeps its weights.
    """
    encoder = network.get_submodule("encoder")
    architecture, classifier = getattr(encoder, "official", (type(encoder).__name__, "head"))
    unused = (f"{classifier}.weight", f"{classifier}.bias")
    state = {name: tensor for name, tensor in load_weights(path).items() if name not in unused}
    # files of old PyTorch versions lack the counters of batch normalisation, which then keep their values
    own, counter = encoder.state_dict(), ".num_batches_tracked"
    counted = any(name.endswith(counter) for name in state)
    expected = {name: tensor for name, tensor in own.items() if counted or not name.endswith(counter)}
    require_equal(expected, state, Path(path), f"{architecture} encoder")
    require_finite(state, path)
    for name, tensor in state.items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise CheckpointError(f"checkpoint {path} has a negative variance in {name}; copy it again")
    encoder.load_state_dict(own | state)


def require_equal(expected: Mapping[str, Tensor], loaded: Mapping[str, Tensor], path: Path, what: str) -> None:
    """Raise CheckpointError if a checkpoint's names or shapes differ from the expected ones of the network `what`."""
    missing = [name for name in expected if name not in loaded]
    unexpected = [name for name in loaded if name not in expected]
    shapes = [
        f"{name} is {list(loaded[name].shape)} and should be {list(expected[name].shape)}"
        for name in expected
        if name in loaded and loaded[name].shape != expected[name].shape
    ]
    if missing or unexpected:
        differences = [_listed("lacks", missing), _listed("has", unexpected), _listed("", shapes)]
        reasons = "; ".join(difference for difference in differences if difference)
        raise CheckpointError(f"checkpoint {path} is a checkpoint of another network than {what}: it {reasons}")
    if shapes:
        raise CheckpointError(
            f"checkpoint {path} has the names of {what} but other shapes: {_listed('', shapes)}"
            + _about_classes(expected, loaded)
        )


def require_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for NaN and infinity, with which a network would silently predict one class."""
    if bad := [name for name, value in state.items() if not torch.isfinite(value).all()]:
        raise CheckpointError(f"checkpoint {path} contains NaN or infinity in {_listed('', bad)}; use an earlier one")


def _listed(verb: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{verb} {', '.join(names[:SHOWN])}{more}".strip() if names else ""


def _about_classes(expected: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str:
    """Explain the most common difference, a checkpoint trained with another class map."""
    differing = [(loaded[n], expected[n]) for n in expected if loaded[n].shape != expected[n].shape]
    counts = {(len(a), len(b)) for a, b in differing if a.dim() and b.dim()}
    if len(counts) != 1 or any(a.shape[1:] != b.shape[1:] for a, b in differing):
        return ""  # other differences than the last layer's channels
    ((trained, needed),) = counts
    return (
        f"; it was trained for {trained} classes and the site has {needed}, "
        "background included: use the checkpoint of a federation with the site's class map"
    )


def export_pt(checkpoint: Path, path: Path) -> None:
    """Convert a `model.safetensors` with its header to a bundle's `models/model.pt`; CheckpointError as `load_weights`.

    For example ``export_pt('RUN/site-1/model.safetensors', 'my-bundle/models/model.pt')``.
    """
    save_pt(path, load_weights(checkpoint), load_metadata(checkpoint))
