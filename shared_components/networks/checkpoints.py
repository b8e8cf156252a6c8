"""Weights on disk: written atomically as safetensors or `.pt`, and read by `model_files`."""

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
"""Exceptions of reading a file that is truncated or has a changed byte."""
_REMEDY = "save the network's state_dict alone, its tensors dense and contiguous"
MOST_OUTPUTS = 256  # classes that a mask of uint8 can hold
_COUNTER = ".num_batches_tracked"  # of batch normalisation
SHOWN = 3  # keys of each kind that an error names; a checkpoint of another network differs in hundreds


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what differs."""


def save_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict, on any device, as safetensors; at every moment `path` is either the old file or the new one.

    A missing folder is created. The metadata are short strings for the file's header, such as the method.
    """
    write_tensors(path, _on_cpu(state), metadata or {})


def _on_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors that share no memory as safetensors, see `atomic.atomically`.

    The same tensors and header give the same bytes; safetensors itself writes the header in random order.
    """
    with atomically(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata=dict(header))
        except SafetensorError as error:
            raise _system_error(error) from error
        _sort_header(beside)


def _system_error(error: SafetensorError) -> OSError:
    """Return the OSError whose number safetensors reports as text: ``... (os error 28)``."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _sort_header(path: Path) -> None:
    """Sort the strings in a safetensors file's header in place."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) == size:
            file.seek(8)
            file.write(text)


def save_pt(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a plain state dict as `torch.save` does, the form that MONAI's tools read; atomically, with a header.

    Otherwise as `save_weights`. The same tensors and header give the same bytes.
    """
    written = io.BytesIO()
    torch.save(_on_cpu(state), written)
    with zipfile.ZipFile(written, "a") as archive:
        top = archive.namelist()[0].partition("/")[0]
        archive.writestr(zipfile.ZipInfo(f"{top}/{NOTES}"), json.dumps(dict(metadata or {}), sort_keys=True))
    write_bytes(path, written.getvalue())


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, or from a `torch.save` file of tensors.

    Half precision, in which bundles ship their weights, becomes float32. A `.pt` or `.pth` file has the state dict
    alone or under one of the usual keys "state_dict", "model" or "network"; beside them it may hold plain values and a
    training's settings, which are not kept. Raises CheckpointError for a file that is missing, damaged, holds anything
    else, or describes more than it holds.
    """
    halves = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in halves else value for name, value in stored_weights(path).items()}


def stored_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict as `load_weights` does, in the precision of the file."""
    return _read(read_tensors, path, "is damaged or holds more than tensors")


def load_metadata(path: Path) -> dict[str, str]:
    """Read the strings that `save_weights` or `save_pt` wrote into the header; empty for other files.

    Raises CheckpointError for a file that is missing or damaged.
    """
    return _read(read_notes, path, "is damaged")


def _read(read: Callable[[Path], T], path: Path, damaged: str) -> T:
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist; give the path of a model.safetensors or model.pt")
    refuse_pointer(Path(path))
    try:
        return read(path)
    except ModelFileError as error:
        raise CheckpointError(f"checkpoint {path} {error}; {_REMEDY}") from error
    except _DAMAGES as error:
        raise CheckpointError(f"checkpoint {path} {damaged}; copy it again, or {_REMEDY}") from error


def refuse_pointer(path: Path) -> None:
    """Raise a CheckpointError where Git LFS has left a pointer in the place of a checkpoint."""
    if is_pointer_file(path):
        raise CheckpointError(f"checkpoint {path} {LFS_POINTER}; {LFS_PULL}")


def header_of(path: Path | None) -> dict[str, str]:
    """Return a checkpoint's header; empty if there is no such file.

    Raises CheckpointError for one that is damaged, holds an expression that MONAI would run, too many names of classes,
    or names with control characters.
    """
    if path is None or not path.is_file():
        return {}
    notes = load_metadata(path)
    for key, text in notes.items():
        if is_expression(text):
            raise CheckpointError(f"checkpoint {path}: its header's {key!r:.80} is the expression {text!r:.80}")
    for key in ("outputs", "classes"):
        names = notes.get(key, "").split(",")
        if len(names) > MOST_OUTPUTS or not all(is_plain(name) for name in names if name):
            raise CheckpointError(
                f"checkpoint {path}: its header's {key!r} are no names: at most {MOST_OUTPUTS}, each of one line"
            )
    return notes


def load_into(network: nn.Module, path: Path) -> None:
    """Load a checkpoint into a network of the same names and shapes, see `tensors_of`.

    Raises CheckpointError where another name or shape differs, and for NaN or infinity; the network keeps its weights.
    """
    found = tensors_of(network, load_weights(path), path)
    require_finite(found, path)
    network.load_state_dict(network.state_dict() | found)


def tensors_of(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return what a network takes of a checkpoint's state; CheckpointError where a name or a shape differs.

    Modules that the network's class declares as `training_only` (a tuple of names) may be missing on either side: what
    the file lacks keeps its weights, what the network lacks is ignored.
    """
    own, helpers = network.state_dict(), tuple(f"{one}." for one in getattr(type(network), "training_only", ()))
    needed = {name: own[name] for name in own if name in state or not name.startswith(helpers)}
    found = {name: state[name] for name in state if name in own or not name.startswith(helpers)}
    require_equal(needed, found, Path(path), type(network).__name__)
    return found


def load_encoder(network: nn.Module, path: Path) -> None:
    """Load an official ImageNet checkpoint into `network.encoder`, without its classifier.

    The encoder's class names its architecture and the file's classifier in ``official``. Files of older versions of
    PyTorch lack the counters of batch normalisation, which then keep their values.

    Raises:
        CheckpointError: A name or a shape differs, a number is NaN or infinite, or a variance is negative. The network
            keeps its weights.
    """
    encoder = network.get_submodule("encoder")
    architecture, classifier = getattr(encoder, "official", (type(encoder).__name__, "head"))
    left = (f"{classifier}.weight", f"{classifier}.bias")
    state = {name: tensor for name, tensor in load_weights(path).items() if name not in left}
    own, counted = encoder.state_dict(), any(name.endswith(_COUNTER) for name in state)
    expected = {name: tensor for name, tensor in own.items() if counted or not name.endswith(_COUNTER)}
    require_equal(expected, state, Path(path), f"{architecture} encoder")
    require_finite(state, path)
    for name, tensor in state.items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise CheckpointError(f"checkpoint {path} has a negative variance in {name}; copy it again")
    encoder.load_state_dict(own | state)


def require_equal(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path, what: str) -> None:
    """Refuse a checkpoint whose tensors differ in names or shapes from those of a network, ``what`` in the sentence.

    Raises CheckpointError, which names the first of each kind.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    shapes = [
        f"{name} is {list(found[name].shape)} and should be {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    if missing or unexpected:
        differences = [_listed("lacks", missing), _listed("has", unexpected), _listed("", shapes)]
        reasons = "; ".join(difference for difference in differences if difference)
        raise CheckpointError(f"checkpoint {path} is a checkpoint of another network than {what}: it {reasons}")
    if shapes:
        raise CheckpointError(
            f"checkpoint {path} has the names of {what} but other shapes: {_listed('', shapes)}"
            + _about_classes(expected, found)
        )


def require_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse NaN and infinity, with which a network silently predicts one class everywhere."""
    bad = [name for name, value in state.items() if not torch.isfinite(value).all()]
    if bad:
        raise CheckpointError(
            f"checkpoint {path} holds NaN or infinity in {_listed('', bad)}; take one from before its training failed"
        )


def _listed(verb: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{verb} {', '.join(names[:SHOWN])}{more}".strip() if names else ""


def _about_classes(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Explain the commonest difference: a checkpoint trained with another class map."""
    differing = [(found[n], expected[n]) for n in expected if found[n].shape != expected[n].shape]
    counts = {(len(a), len(b)) for a, b in differing if a.dim() and b.dim()}
    if len(counts) != 1 or any(a.shape[1:] != b.shape[1:] for a, b in differing):
        return ""  # more than the last layer's channels
    ((trained, needed),) = counts
    return (
        f"; it was trained for {trained} classes and the site has {needed}, "
        "background included: use the checkpoint of a federation with the site's class map"
    )


def export_pt(checkpoint: Path, path: Path) -> None:
    """Convert a federation's `model.safetensors` to the `models/model.pt` of a bundle: a plain state dict.

    The header is copied, so that the bundle still knows the task, the classes and the size of the input.

        python -c "from shared_components.networks.checkpoints import export_pt; \
            export_pt('RUN/site-1/model.safetensors', 'my-bundle/models/model.pt')"

    Raises CheckpointError as `load_weights`.
    """
    save_pt(path, load_weights(checkpoint), load_metadata(checkpoint))
