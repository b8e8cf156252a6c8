"""Load the initial weights of a network: random, the weights shipped with its bundle, or a file.

A network is first built from the seed; tensors that the checkpoint lacks keep the seed's values.
"""

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
from shared_components.core.training_settings import FILE, RANDOM, RENDERED
from shared_components.data.files.classes import coarser_ids
from shared_components.data.splits import SEEN
from shared_components.networks import checkpoints
from shared_components.networks.adapter import definition_of
from shared_components.networks.bundle_config import weights_of
from shared_components.networks.checkpoints import CheckpointError
from shared_components.networks.parts import inside, parts_of
from shared_components.networks.sam2_checkpoint import is_published, load_sam2, refuse_other_size
from shared_components.networks.sam2_video import Sam2Clips
from shared_components.networks.vit import Vit
from shared_components.networks.vit_checkpoint import in_timm_layout, is_another, load_vit

START_VARIABLE = "SURGFL_START_WEIGHTS"


def start_weights() -> Path | None:
    """Return the file in the environment variable ``SURGFL_START_WEIGHTS``."""
    value = os.environ.get(START_VARIABLE)
    return Path(value).expanduser() if value else None


def parse_start(text: str) -> tuple[str, Path | None]:
    """Parse ``random``, ``rendered``, ``file`` (from the environment variable) or a path to kind and file."""
    if text in (RANDOM, RENDERED):
        return text, None
    return FILE, start_weights() if text == FILE else Path(text).expanduser()


def describe_start(facts: Mapping[str, Any]) -> str:
    """Return a start as text, with the first digits of its hash: ``random``, ``rendered (1f0c22ab)``."""
    return f"{facts['start']} ({facts['sha256'][:8]})" if facts.get("sha256") else str(facts["start"])


def unused_file_warning(start: str, file: Path | None) -> str:
    """Return a warning if the environment variable is set but not used, else an empty text."""
    if file is None or start == FILE:
        return ""
    return f"{START_VARIABLE} is {file}, which is not used because training: start is {start!r}, not 'file'"


def source_of(start: str, bundle: str, file: Path | None = None) -> tuple[Path, str] | None:
    """Return a start's file and its SHA-256, or None for ``random``; CheckpointError if the file cannot be used."""
    if start == RANDOM:
        return None
    if start == RENDERED:
        owner = weights_of(bundle)
        try:
            return verified_weights(owner)
        except CheckpointError as error:
            if owner == bundle:
                raise
            raise CheckpointError(f"bundle {bundle!r} begins from the weights of {owner!r}: {error}") from None
    if file is None:
        raise CheckpointError(f"training: start is 'file', but no file is given; set {START_VARIABLE} or --start")
    if not file.is_file():
        raise CheckpointError(f"checkpoint {file} does not exist; give another file, or use start: random")
    about = file.stat()
    return file, _hash(file, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=16)  # the runs of a comparison start from few files
def _hash(file: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file, cached by its size in bytes and modification time in ns."""
    return sha256_of(file)


def load_initial_weights(
    network: nn.Module, start: str, *, card: Card, bundle: str, file: Path | None = None
) -> dict[str, Any]:
    """Load initial weights into a newly built network, in place; tensors that the file lacks keep the seed's values.

    A checkpoint of the same network must cover all tensors, except

    - output layers: rows of classes with the same name are copied, a class that the checkpoint divides further gets the
      mean of its rows, and other rows keep the seed's values;
    - modules in the network class's ``training_only``, and layers of its ``additions`` that the checkpoint lacks or
      that differ in shape.

    Official files of only the encoder, of SAM2, or of another network with the same ViT cover their part. A checkpoint
    of another bundle covers tensors with equal names and shapes, and output layers as above. If the network's class has
    ``fresh_elsewhere`` (paths of modules and tensors), only these and output layers may keep the seed's values.

    ``start`` is ``random``, ``rendered`` (the weights of ``bundle``, see `bundle_config.weights_of`) or ``file``.
    ``card`` is the task to learn. Returns ``start``; ``sha256`` and name (``from``) of the file; ``fresh``: names of
    uncovered tensors, additions and whole modules; ``seen``: videos in its header, if it has them (see `data.splits`).
    Raises CheckpointError, with the network unchanged, if the file is missing or covers too little.
    """
    source = source_of(start, bundle, file)
    if source is None:
        return {"start": start, "sha256": "", "from": "", "fresh": []}
    path, sha256 = source
    notes = checkpoints.load_metadata(path)
    if start == RENDERED and json.loads(notes.get("network", "{}")).get("class") != definition_of(network).get("class"):
        raise CheckpointError(
            f"training: start is 'rendered', but {bundle!r} ships no weights for {type(network).__name__}; "
            "write start: random, or start: file with other weights"
        )
    state = checkpoints.load_weights(path)
    if isinstance(network, Sam2Clips):
        refuse_other_size(network, state, path)
    if isinstance(network, Vit):
        state = in_timm_layout(state, path)
    if isinstance(network, Vit) and is_another(network, state):
        fresh = load_vit(network, path)
    elif "encoder" in (own := dict(network.named_children())) and set(state) & set(own["encoder"].state_dict()):
        checkpoints.load_encoder(network, path)
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


def _paste(network: nn.Module, state: Mapping[str, Tensor], path: Path, card: Card) -> list[str]:
    """Load a checkpoint of the same network; return the names of uncovered tensors and layers."""
    own, needed, covered, unlike = _compared(network, state, path)
    fresh = [name for name in own if name not in needed and not inside(name, unlike)]
    fresh += [layer for layer in unlike if any(inside(name, [layer]) for name in own)]
    return fresh + _load(network, covered, path, card)


def _compared(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> tuple[State, State, State, list[str]]:
    """Return the network's tensors, the tensors to cover, the checkpoint's tensors to load, and differing additions.

    Raises CheckpointError if the checkpoint covers only a part of the network.
    """
    own, heads = network.state_dict(), parts_of(network).get("head", ())
    helpers = tuple(f"{module}." for module in getattr(type(network), "training_only", ()))
    unlike = _unlike_additions(own, state, getattr(type(network), "additions", ()))
    own_rest, state_rest = ({n: s[n] for n in s if not inside(n, unlike)} for s in (own, state))
    needed = {n: own[n] for n in own_rest if n in state or not n.startswith(helpers)}
    covered = {n: state[n] for n in state_rest if n in own or not n.startswith(helpers)}
    checkpoints.require_equal(_one_row(needed, heads), _one_row(covered, heads), path, type(network).__name__)
    return own, needed, covered, unlike


def _load(network: nn.Module, covered: State, path: Path, card: Card) -> list[str]:
    """Load tensors, with output layers by the names of their outputs; return the names of uncovered outputs."""
    own, heads, notes = network.state_dict(), parts_of(network).get("head", ()), checkpoints.load_metadata(path)
    fresh: list[str] = []
    for name in [name for name in own if name in covered and own[name].dim() and inside(name, heads)]:
        stored, seeded = covered[name], own[name]
        sources = _sources(notes, card, given=len(stored), needed=len(seeded))
        rows = [stored[numbers].mean(0) if numbers else seeded[place] for place, numbers in enumerate(sources)]
        covered[name] = torch.stack([row.to(seeded) for row in rows])  # outputs times (...) -> (outputs, ...)
        missing = [place for place, numbers in enumerate(sources) if not numbers]
        if len(missing) == len(sources):
            fresh.append(name)
        elif missing:
            fresh.append(f"{name} of {', '.join(card.outputs[place] for place in missing)}")
    network.load_state_dict(own | covered)
    return fresh


def _fits(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> bool:
    try:
        _compared(network, state, path)
    except CheckpointError:
        return False
    return True


def _take_common(network: nn.Module, state: Mapping[str, Tensor], path: Path, card: Card) -> list[str]:
    """Load the tensors that a checkpoint of another bundle shares with the network; return the uncovered names."""
    own, heads, kind = network.state_dict(), parts_of(network).get("head", ()), type(network).__name__
    wanted, stored = _one_row(own, heads), _one_row(state, heads)
    common = {name: state[name] for name in own if name in state and stored[name].shape == wanted[name].shape}
    missing = [name for name in own if name not in common]
    source = f"checkpoint {path} is of bundle {checkpoints.load_metadata(path)['bundle']!r}"
    if all(inside(name, heads) for name in common):
        raise CheckpointError(f"{source} and shares no tensor with {kind}; give weights of a similar network")
    allowed = getattr(type(network), "fresh_elsewhere", None)
    if allowed is not None and (needed := [name for name in missing if not inside(name, [*allowed, *heads])]):
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise CheckpointError(f"{source} and lacks {needed[0]}{more} with the shape in {kind}; give other weights")
    checkpoints.require_finite(common, path)
    present = {name.partition(".")[0] for name in common}  # of other modules, only the module's name is returned
    fresh = dict.fromkeys(n if (top := n.partition(".")[0]) in present else top for n in missing)
    return [*fresh, *_load(network, common, path, card)]


def _unlike_additions(own: Mapping[str, Tensor], state: Mapping[str, Tensor], additions: Sequence[str]) -> list[str]:
    """Return the layers of additions, such as ``temporal.16``, that differ in names or shapes."""
    shapes: dict[str, list[dict[str, Any]]] = {}
    for side, tensors in enumerate((own, state)):
        for name, value in tensors.items():
            if inside(name, additions):
                layer = ".".join(name.split(".")[:2])
                shapes.setdefault(layer, [{}, {}])[side][name] = value.shape
    return [layer for layer, (ours, theirs) in shapes.items() if ours != theirs]


def _one_row(state: Mapping[str, Tensor], heads: Sequence[str]) -> dict[str, Tensor]:
    """Return a state with one output in the output layers, to compare all other shapes."""
    return {name: value[:1] if value.dim() and inside(name, heads) else value for name, value in state.items()}


def _sources(notes: Mapping[str, str], card: Card, *, given: int, needed: int) -> list[list[int]]:
    """Return for each output the checkpoint's outputs to average, by number; none keeps the seed's values."""
    if notes.get("task", card.kind) != card.kind:
        return [[] for _ in range(needed)]
    learnt = [name for name in (notes.get("outputs") or notes.get("classes") or "").split(",") if name]
    if len(learnt) != given or len(card.outputs) != needed:  # outputs without names
        return [[place] if given == needed else [] for place in range(needed)]
    ids = coarser_ids(learnt, card.outputs) or ()
    merged = [[old for old, new in enumerate(ids) if new == place] for place in range(needed)]
    return [[learnt.index(name)] if name in learnt else merged[place] for place, name in enumerate(card.outputs)]
