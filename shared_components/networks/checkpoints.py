"""Weights on disk: safetensors written atomically; `.pt` and `.pth` files read without running their code."""

import io
import json
import os
import pickle  # nosec B403 # for the name of its error alone
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shared_components.common.atomic import atomically, write_bytes
from shared_components.common.reject_code import is_expression
from shared_components.common.sanitise import is_plain

_DAMAGES = (
    SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, LookupError, TypeError,
    AttributeError, ArithmeticError, AssertionError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
"""What reading a file raises that was cut off, or of which a byte has changed."""
MOST_OUTPUTS = 256
"""Classes that a mask of uint8 can hold."""
SHOWN = 3
"""Keys of each kind that an error names; a checkpoint of another network differs in hundreds."""
NOTES = "extra/surgfl.json"
"""Where a `.pt` file, which is a zip archive, keeps what a safetensors header says; `torch.load` passes it over."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what differs."""


def save_weights(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a state dict as safetensors; at every moment `path` is either the old file or the new one.

    Args:
        path: the file; its folder is made where it does not exist.
        state: tensors by name, on any device.
        metadata: short strings kept in the file's header, such as the method and the round.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_tensors(path, tensors, metadata or {})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write contiguous CPU tensors that share no memory as safetensors, see `atomic.atomically`.

    The same tensors and header give the same bytes: safetensors itself writes the header in an order of chance.
    """
    with atomically(path) as beside:
        try:
            save_file(dict(tensors), beside, metadata=dict(header))
        except SafetensorError as error:
            raise _said_by_the_system(error) from error
        _sort_header(beside)


def _said_by_the_system(error: SafetensorError) -> OSError:
    """Return the system's own error, whose number safetensors tells as text: ``... (os error 28)``."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _sort_header(path: Path) -> None:
    """Sort the strings in a safetensors file's header, whose length stays."""
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

    Args as in `save_weights`. The same tensors and header give the same bytes.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    written = io.BytesIO()
    torch.save(tensors, written)
    with zipfile.ZipFile(written, "a") as archive:
        top = archive.namelist()[0].partition("/")[0]
        archive.writestr(zipfile.ZipInfo(f"{top}/{NOTES}"), json.dumps(dict(metadata or {}), sort_keys=True))
    write_bytes(path, written.getvalue())


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, or from a `torch.save` file that holds tensors only.

    Numbers of half precision, in which bundles ship their weights, become float32.

    Args:
        path: a `.safetensors` file, or `.pt` / `.pth` with a state dict, alone or under one of the usual keys
            "state_dict", "model" or "network".

    Raises:
        CheckpointError: if the file is missing, damaged, or holds anything but named tensors.
    """
    return _at_full_precision(stored_weights(path))


def stored_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict as `load_weights` does, in the precision that the file has."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist; give the path of a model.safetensors or model.pt")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGES as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged or holds more than tensors; save the network's state_dict alone"
        ) from error
    return _only_tensors(path, loaded)


def load_metadata(path: Path) -> dict[str, str]:
    """Read the strings that `save_weights` or `save_pt` kept in the header; empty for other files.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        if Path(path).suffix != ".safetensors":
            return _notes_in_zip(path)
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except _DAMAGES as error:
        raise CheckpointError(f"checkpoint {path} is damaged; copy it again") from error


def _notes_in_zip(path: Path) -> dict[str, str]:
    if not zipfile.is_zipfile(path):  # as torch wrote them before version 1.6
        return {}
    with zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if name.endswith(f"/{NOTES}")]
        notes = json.loads(archive.read(found[0])) if found else {}
    if not isinstance(notes, dict):
        raise ValueError(f"{NOTES} is no mapping")
    return {str(name): str(value) for name, value in notes.items()}


def header_of(path: Path | None) -> dict[str, str]:
    """Return a checkpoint's header; nothing where there is no such file.

    Raises:
        CheckpointError: It is damaged, says something that MONAI would run, or names too many classes, or with what a
            terminal obeys.
    """
    if path is None or not path.is_file():
        return {}
    notes = load_metadata(path)
    for key, said in notes.items():
        if is_expression(said):
            raise CheckpointError(f"checkpoint {path}: its header's {key!r:.80} is the expression {said!r:.80}")
    for key in ("outputs", "classes"):
        names = notes.get(key, "").split(",")
        if len(names) > MOST_OUTPUTS or not all(is_plain(name) for name in names if name):
            raise CheckpointError(
                f"checkpoint {path}: its header's {key!r} are no names: at most {MOST_OUTPUTS}, each of one line"
            )
    return notes


def load_into(network: nn.Module, path: Path) -> None:
    """Load a checkpoint into a network of the same names and shapes.

    Modules that the network's class declares as `training_only` (a tuple of names) may be missing on either
    side: what is left out of the file keeps its weights, what the network lacks is left out.

    Raises:
        CheckpointError: if the checkpoint differs in any other name or shape, or holds NaN or infinity; the network
            keeps its weights.
    """
    own, state = network.state_dict(), load_weights(path)
    helpers = tuple(f"{module}." for module in getattr(type(network), "training_only", ()))
    needed = {name: own[name] for name in own if name in state or not name.startswith(helpers)}
    found = {name: state[name] for name in state if name in own or not name.startswith(helpers)}
    require_equal(needed, found, Path(path), type(network).__name__)
    _require_finite(found, path)
    network.load_state_dict(own | found)


def load_encoder(network: nn.Module, path: Path) -> None:
    """Load an official ImageNet checkpoint (`pvt_v2_b0.pth`) into `network.encoder`.

    The classification layer `head.*` of that file is left out.

    Raises:
        CheckpointError: if any other name or shape differs, or it holds NaN or infinity; the network keeps its
            weights.
    """
    state = {name: tensor for name, tensor in load_weights(path).items() if not name.startswith("head.")}
    encoder = network.get_submodule("encoder")
    require_equal(encoder.state_dict(), state, Path(path), "PVTv2-b0 encoder")
    _require_finite(state, path)
    encoder.load_state_dict(state)


def _at_full_precision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    halves = (torch.float16, torch.bfloat16)
    return {name: value.float() if value.dtype in halves else value for name, value in state.items()}


def _only_tensors(path: Path, loaded: Any) -> dict[str, Tensor]:
    for key in ("state_dict", "model", "network"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise CheckpointError(f"checkpoint {path} holds no state dict; save the network's state_dict alone")
    for name, value in loaded.items():
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise CheckpointError(
                f"checkpoint {path} holds {name} as a sparse, quantised or empty tensor; save dense ones"
            )
    return dict(loaded)


def require_equal(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path, what: str) -> None:
    """Refuse tensors that differ in names or shapes from those of a network.

    Args:
        expected: The network's.
        found: Those of the checkpoint.
        path: The checkpoint.
        what: Names the network in the sentence.

    Raises:
        CheckpointError: The sentence names the first of each kind.
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


def _require_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are no numbers: a network with them predicts one class everywhere, without a word."""
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
    counts = {(len(has), len(due)) for has, due in differing if has.dim() and due.dim()}
    if len(counts) != 1 or any(has.shape[1:] != due.shape[1:] for has, due in differing):
        return ""  # more than the last layer's channels
    has, due = counts.pop()
    return (
        f"; it was trained for {has} classes and the site has {due}, "
        "background included: use the checkpoint of a federation with the site's class map"
    )


def export_pt(checkpoint: Path, path: Path) -> None:
    """Turn a federation's `model.safetensors` into the `models/model.pt` of a bundle: a plain state dict.

    Its header goes along, so that the bundle still knows the task, the classes and the size of the input.

        python -c "from shared_components.networks.checkpoints import export_pt; \
            export_pt('RUN/site-1/model.safetensors', 'my-bundle/models/model.pt')"

    Raises:
        CheckpointError: as `load_weights`.
    """
    save_pt(path, load_weights(checkpoint), load_metadata(checkpoint))
