"""What a network begins from: the seed alone, the weights that its bundle ships, or a file of the site's own.

A network is always built from the seed first, and weights are then pasted over it: what a checkpoint lacks stays as the
seed has it, and `start: random` is always the same.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from shared_components.core.card import Card
from shared_components.core.method import State
from shared_components.core.shipped_weights import sha256_of, verified_weights
from shared_components.data.classes import coarser_ids
from shared_components.data.splits import SEEN
from shared_components.networks.adapter import definition_of
from shared_components.networks.bundle_config import weights_of
from shared_components.networks.checkpoints import (
    CheckpointError,
    load_encoder,
    load_metadata,
    load_weights,
    require_equal,
    require_finite,
)
from shared_components.networks.parts import inside, parts_of
from shared_components.networks.sam2_checkpoint import is_published, load_sam2, refuse_other_size
from shared_components.networks.sam2_video import Sam2Clips
from shared_components.networks.vit import Vit
from shared_components.networks.vit_checkpoint import in_timm_layout, is_another, load_vit

START_VARIABLE = "SURGFL_START_WEIGHTS"
RANDOM, RENDERED, FILE = "random", "rendered", "file"


def start_weights() -> Path | None:
    """Return the file that ``SURGFL_START_WEIGHTS`` names."""
    value = os.environ.get(START_VARIABLE)
    return Path(value).expanduser() if value else None


def chosen_start(text: str) -> tuple[str, Path | None]:
    """Parse a start, ``random``, ``rendered``, ``file`` (of the environment variable) or a path, to kind and file."""
    if text in (RANDOM, RENDERED):
        return text, None
    return FILE, start_weights() if text == FILE else Path(text).expanduser()


def describe_start(facts: Mapping[str, Any]) -> str:
    """Return a start in words: ``random``, or with the first digits of its hash ``rendered (1f0c22ab)``."""
    return f"{facts['start']} ({facts['sha256'][:8]})" if facts.get("sha256") else str(facts["start"])


def unused(start: str, file: Path | None) -> str:
    """Return a warning where a file is named but not used; else an empty text."""
    if file is None or start == FILE:
        return ""
    return f"{START_VARIABLE} names {file}, which is not used, since training's start is {start!r} and not 'file'"


def source_of(start: str, bundle: str, file: Path | None = None) -> tuple[Path, str] | None:
    """Return the file that a start reads and its SHA-256, None for ``random``.

    Raises:
        CheckpointError: The bundle, or the one whose weights it begins from, ships none or other ones than its card
            says, or no file is given.
    """
    if start == RANDOM:
        return None
    if start == RENDERED:
        return _shipped(bundle)
    if file is None:
        raise CheckpointError(
            f"training: start is 'file', and none is given; name it in the environment variable {START_VARIABLE} or by "
            "--start, or write start: random or rendered"
        )
    if not file.is_file():
        raise CheckpointError(f"checkpoint {file} does not exist; name the weights to begin from, or use start: random")
    about = file.stat()
    return file, _hash(file, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=16)  # the rows of a comparison begin from few files
def _hash(file: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file; its size in bytes and its time in ns tell it from an earlier one of its name."""
    return sha256_of(file)


def _shipped(bundle: str) -> tuple[Path, str]:
    whose = weights_of(bundle)
    try:
        return verified_weights(whose)
    except CheckpointError as error:
        if whose == bundle:
            raise
        raise CheckpointError(f"bundle {bundle!r} begins from the weights of {whose!r}: {error}") from None


def begin(network: nn.Module, start: str, *, card: Card, bundle: str, file: Path | None = None) -> dict[str, Any]:
    """Let a freshly built network begin from some weights; in place.

    What may keep the seed's values: the last layers, where their outputs are others, modules that the network's class
    declares as ``training_only``, and layers of its ``additions`` that the checkpoint has not, or of other shapes; what
    the checkpoint has of both beyond the network is left. Of a segmentation's last layers, classes of the same name
    are copied, and one that the checkpoint tells apart further gets the mean of its classes' rows. Of an official file
    of the encoder alone, of SAM2, or of another network with the same ViT, everything else keeps them.

    Of a checkpoint of another bundle that does not fit so, such as a pre-trained autoencoder, tensors of equal names
    and shapes are taken, last layers as above, and its others are left; the network's others keep the seed's values. A
    network's class may name what may do so, ``fresh_elsewhere``: paths of modules and tensors.

    Args:
        network: Built from the seed; in no wise trained.
        start: ``random``, ``rendered`` or ``file``.
        card: What the network is to learn.
        bundle: Whose shipped weights ``rendered`` means, see `bundle_config.weights_of`.
        file: Of ``file``: a checkpoint of the same network, the official ImageNet weights of its encoder, or
            of a SAM2 network published ones; of a ViT any that `load_vit` takes.

    Returns:
        ``start``; ``sha256`` of the file; ``from``, its name; ``fresh``, what it does not cover: names of tensors,
        and of additions and whole modules theirs; and ``seen``, where its header says it: videos, see `data.splits`.

    Raises:
        CheckpointError: There is no such file, or it fits the network in part only, or being of another bundle not at
            all; the network keeps its weights.
    """
    source = source_of(start, bundle, file)
    if source is None:
        return {"start": start, "sha256": "", "from": "", "fresh": []}
    path, sha256 = source
    notes = load_metadata(path)
    if start == RENDERED and json.loads(notes.get("network", "{}")).get("class") != definition_of(network).get("class"):
        raise CheckpointError(
            f"training: start is 'rendered', and what {bundle!r} ships is not of {type(network).__name__}; "
            "write start: random, or file to name weights of its own"
        )
    state = load_weights(path)
    if isinstance(network, Sam2Clips):
        refuse_other_size(network, state, path)
    if isinstance(network, Vit):
        state = in_timm_layout(state, path)
    if isinstance(network, Vit) and is_another(network, state):
        fresh = load_vit(network, path)
    elif _is_of_encoder(network, state):
        load_encoder(network, path)
        outside = [name for name in network.state_dict() if not name.startswith("encoder.")]
        fresh = list(dict.fromkeys(name.partition(".")[0] for name in outside))
    elif is_published(network, state):
        fresh = load_sam2(cast(Sam2Clips, network), path)
    elif notes.get("bundle", bundle) != bundle and not _fits(network, state, path):
        fresh = _take_common(network, state, path, card)
    else:
        fresh = _paste(network, state, path, card)
    seen = {"seen": notes[SEEN]} if SEEN in notes else {}
    return {"start": start, "sha256": sha256, "from": path.name, "fresh": fresh, **seen}


def _is_of_encoder(network: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Return whether a state has tensors by the names that they have in the encoder itself."""
    children = dict(network.named_children())
    own = children["encoder"].state_dict() if "encoder" in children else {}
    return any(name in own for name in state)


def _paste(network: nn.Module, state: Mapping[str, Tensor], path: Path, card: Card) -> list[str]:
    """Paste a checkpoint of the same network; return what it does not cover."""
    own, needed, found, unlike = _compared(network, state, path)
    fresh = [name for name in own if name not in needed and not inside(name, unlike)]
    fresh += [layer for layer in unlike if any(inside(name, [layer]) for name in own)]
    return fresh + _load(network, found, path, card)


def _compared(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> tuple[State, State, State, list[str]]:
    """Return the network's tensors, those that the checkpoint covers, those taken of it, and additions that differ.

    Raises:
        CheckpointError: It fits in part only.
    """
    own, heads = network.state_dict(), parts_of(network).get("head", ())
    helpers = tuple(f"{module}." for module in getattr(type(network), "training_only", ()))
    unlike = _unlike_additions(own, state, getattr(type(network), "additions", ()))
    own_rest, state_rest = ({n: s[n] for n in s if not inside(n, unlike)} for s in (own, state))
    needed = {n: own[n] for n in own_rest if n in state or not n.startswith(helpers)}
    found = {n: state[n] for n in state_rest if n in own or not n.startswith(helpers)}
    require_equal(_one_row(needed, heads), _one_row(found, heads), path, type(network).__name__)
    return own, needed, found, unlike


def _load(network: nn.Module, found: State, path: Path, card: Card) -> list[str]:
    """Load tensors, the rows of last layers by the names of their outputs; return what those do not cover."""
    own, heads, notes = network.state_dict(), parts_of(network).get("head", ()), load_metadata(path)
    fresh: list[str] = []
    for name in [name for name in own if name in found and own[name].dim() and inside(name, heads)]:
        sources = _sources(notes, card, given=len(found[name]), due=len(own[name]))
        found[name] = _rows(own[name], found[name], sources)
        fresh += _uncovered(name, card.outputs, sources)
    network.load_state_dict(own | found)
    return fresh


def _fits(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> bool:
    try:
        _compared(network, state, path)
    except CheckpointError:
        return False
    return True


def _take_common(network: nn.Module, state: Mapping[str, Tensor], path: Path, card: Card) -> list[str]:
    """Take what a checkpoint of another bundle has in common with the network; return what it does not cover.

    Raises:
        CheckpointError: That is nothing but last layers, or less than the network's class needs.
    """
    own, heads, kind = network.state_dict(), parts_of(network).get("head", ()), type(network).__name__
    alike = _one_row(own, heads)
    given = _one_row(state, heads)
    found = {name: state[name] for name in own if name in state and given[name].shape == alike[name].shape}
    missing = [name for name in own if name not in found]
    whose = f"checkpoint {path} is of bundle {load_metadata(path)['bundle']!r}"
    if all(inside(name, heads) for name in found):
        raise CheckpointError(f"{whose}, and shares no tensor with {kind}; name weights of a network like it")
    allowed = getattr(type(network), "fresh_elsewhere", None)
    if allowed is not None and (needed := [name for name in missing if not inside(name, [*allowed, *heads])]):
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise CheckpointError(
            f"{whose}, and has no {needed[0]}{more} of the shape of {kind}'s; name weights of its size and architecture"
        )
    require_finite(found, path)
    return [*_whole_modules(missing, own), *_load(network, found, path, card)]


def _whole_modules(missing: Sequence[str], own: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors, and of the network's own modules of which all tensors are missing."""
    present = {name.partition(".")[0] for name in own if name not in missing}
    return list(dict.fromkeys(n if (top := n.partition(".")[0]) in present else top for n in missing))


def _unlike_additions(own: Mapping[str, Tensor], state: Mapping[str, Tensor], additions: Sequence[str]) -> list[str]:
    """Return the layers of additions, such as ``temporal.16``, that differ in names or shapes: taken whole or not."""
    shapes: dict[str, list[dict[str, Any]]] = {}
    for side, tensors in enumerate((own, state)):
        for name, value in tensors.items():
            if inside(name, additions):
                layer = ".".join(name.split(".")[:2])
                shapes.setdefault(layer, [{}, {}])[side][name] = value.shape
    return [layer for layer, (ours, theirs) in shapes.items() if ours != theirs]


def _one_row(state: Mapping[str, Tensor], heads: Sequence[str]) -> dict[str, Tensor]:
    """Return a state whose last layers have one output, to compare all the rest."""
    return {name: value[:1] if value.dim() and inside(name, heads) else value for name, value in state.items()}


def _sources(notes: Mapping[str, str], card: Card, *, given: int, due: int) -> list[list[int]]:
    """Return, for each of the ``due`` outputs of the task, those of the checkpoint's ``given`` outputs to average.

    An output without any stays fresh. ``notes`` are the checkpoint's header.
    """
    if notes.get("task", card.kind) != card.kind:
        return [[] for _ in range(due)]
    learnt = [name for name in (notes.get("outputs") or notes.get("classes") or "").split(",") if name]
    if len(learnt) != given or len(card.outputs) != due:  # nothing names them
        return [[place] if given == due else [] for place in range(due)]
    ids = coarser_ids(learnt, card.outputs) or ()
    merged = [[old for old, new in enumerate(ids) if new == place] for place in range(due)]
    return [[learnt.index(name)] if name in learnt else merged[place] for place, name in enumerate(card.outputs)]


def _rows(own: Tensor, given: Tensor, sources: Sequence[Sequence[int]]) -> Tensor:
    """Return a last layer's tensor (outputs, ...): means of the given rows, and its own where there are none."""
    rows = [given[list(of)].mean(0) if of else own[place] for place, of in enumerate(sources)]
    return torch.stack([row.to(own) for row in rows])  # outputs times (...) -> (outputs, ...)


def _uncovered(name: str, outputs: Sequence[str], sources: Sequence[Sequence[int]]) -> list[str]:
    """Name the outputs of a last layer's tensor that stay as the seed has them."""
    missing = [place for place, of in enumerate(sources) if not of]
    if len(missing) == len(sources):
        return [name]
    return [f"{name} of {', '.join(outputs[place] for place in missing)}"] if missing else []
