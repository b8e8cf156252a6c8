"""Load a trained model as described in its checkpoint's header: network, task and input size.

Sites with coarser classes than the model's can use it: the probabilities of merged classes are added.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from shared_components.common.schema import short_repr
from shared_components.core.bundle import load_bundle
from shared_components.core.calibration import Calibration, calibration_of
from shared_components.core.prompted_streams import Prompted
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.site_conditioning import describe_site, needs_site
from shared_components.core.task import Task, make_task
from shared_components.data.files.classes import coarser_ids
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import build_network, bundle_names
from shared_components.networks.checkpoints import CheckpointError, header_of, load_into, load_weights, tensors_of
from shared_components.networks.network_class import numbers_in, without_memory
from shared_components.networks.parts import parts_of
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)
MOST_SIDE = 4096  # maximum side of a network's input in a header, in pixels
MOST_CONSTANTS = 2**26  # maximum number of constants that a checkpoint lacks, such as positions


class Rebuildable(Protocol):
    """A network that can be rebuilt with another number of output channels."""

    def with_classes(self, out_channels: int) -> nn.Module: ...


@dataclass(frozen=True)
class Trained:
    """A trained network with its task, the (height, width) of its input, and its calibration."""

    network: nn.Module
    task: Task
    size: tuple[int, int]
    calibration: Calibration | None = None


def load_trained(path: Path, *, bundle: str, site: Site | None = None) -> Trained:
    """Load a model as described in a checkpoint's header; ``bundle`` has the defaults for values that the header lacks.

    Raises CheckpointError if the checkpoint or its calibration is missing, damaged or for another network, SiteError if
    the ``site``'s text cannot be used (`condition_on_given_site`), and ValueError for an unknown bundle.
    """
    notes = header_of(path)
    known = load_bundle(_own_bundle(notes, bundle))
    network = network_of(cast(Rebuildable, build_network(known.network)), path, bundle=bundle)
    condition_on_given_site(network, path, site)
    task = task_of_checkpoint(known.tasks, path, network)
    size = input_size(notes, known.training.height, known.training.width)
    return Trained(network, task, size, calibration_of(path))


def open_trained(
    model: Path | None, *, bundle: str, site: Path | None = None, instead: str = "name a checkpoint"
) -> tuple[Path, Trained]:
    """Return path and model of a checkpoint, or of a bundle's shipped weights; ``instead`` is the remedy if none."""
    load_bundle(bundle)  # raises for an unknown name
    path = model or shipped_weights(bundle, instead=instead)
    return path, load_trained(path, bundle=bundle, site=load_site(site) if site else None)


def input_size(notes: Mapping[str, str], height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) of a model's training; the given values if the header lacks them.

    Raises CheckpointError if a value in the header is not a whole number from 1 to `MOST_SIDE`.
    """
    sizes = []
    for name, given in (("height", height), ("width", width)):
        text = notes.get(name)
        if text is not None and not (
            text.isascii() and text.isdecimal() and 1 <= int(text[:9]) and int(text[:99]) <= MOST_SIDE
        ):
            raise CheckpointError(f"checkpoint: its header's {name} is {text!r:.80}, not a size in pixels; save again")
        sizes.append(given if text is None else int(text))
    return sizes[0], sizes[1]


def network_of(definition: Rebuildable, path: Path, *, bundle: str, channels: int | None = None) -> nn.Module:
    """Return the network of a checkpoint, with its weights.

    ``definition`` is the network of ``bundle``, used unless the header names another bundle or other arguments. By
    default, the number of output ``channels`` is from the checkpoint. Raises CheckpointError if the file is missing,
    damaged or for another network.
    """
    named, state = header_of(path).get("bundle", bundle), load_weights(path)
    try:
        build = _builder(definition, path, bundle)
        with without_memory():  # a file's header may name a network of any size
            network = build(None)
            stored, built = (channels_of(network, tensors) for tensors in (state, network.state_dict()))
            if channels is None and stored != built:
                channels = stored
            channels = channels or len(_outputs_of(header_of(path))) or None
            network = build(channels)
        tensors_of(network, state, path)
        stored_numbers, numbers = sum(value.numel() for value in state.values()), numbers_in(network)
        if numbers > stored_numbers + MOST_CONSTANTS:  # such as constants computed when it is built
            sizes = f"has {stored_numbers} numbers, but its header describes a network of {numbers}"
            raise CheckpointError(f"checkpoint {path} {sizes}; save it again")
        network = build(channels)
        load_into(network, path)
    except ValueError as error:
        text = str(error) if isinstance(error, CheckpointError) else f"checkpoint {path}: {error}"
        if named not in bundle_names():
            text += f"; its bundle {named!r:.80} is not installed, only {', '.join(bundle_names())}"
        raise CheckpointError(text) from None
    return network


def network_arguments_of(path: Path | None) -> Mapping[str, Any]:
    """Return the network arguments in a checkpoint's header, unchecked; CheckpointError if they are not JSON."""
    arguments = header_of(path).get("network", "{}")
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        message = f"checkpoint {path}: its header's network is {arguments!r:.80}, not JSON; save it again"
        raise CheckpointError(message) from None


def _builder(definition: Rebuildable, path: Path, bundle: str) -> Callable[[int | None], nn.Module]:
    """Return a function that builds the checkpoint's network with a number of output channels (None: the default)."""
    named, chosen = _own_bundle(header_of(path), bundle), network_arguments_of(path)
    if named == bundle and chosen == {}:
        return lambda channels: definition.with_classes(channels) if channels else cast(nn.Module, definition)
    if named != bundle:
        logger.info("checkpoint %s is from bundle %s: its network is built", path, named)
    if chosen:
        logger.info("checkpoint %s has a network with %s, which is built", path, short_repr(chosen))
    known = load_bundle(named, network=chosen).network
    return lambda channels: build_network(known, **({"out_channels": channels} if channels else {}))


def condition_on_given_site(network: nn.Module, path: Path, site: Site | None) -> nn.Module:
    """Condition a network for held-out sites on the given site, and return it (`describe_site`).

    Without a site, such a model uses the mean of its training sites' inputs, with a warning. Raises SiteError if the
    site's text, vectors or encoder cannot be used, and CheckpointError if the model takes no site.
    """
    unconditioned = needs_site(header_of(path))
    if site is not None and not unconditioned:
        raise CheckpointError(f"checkpoint {path} needs no site, or contains its own site; leave {site.path} out")
    if site is not None:
        describe_site(network, path, site)
    elif unconditioned:
        logger.warning(
            "checkpoint %s is a model for held-out hospitals and uses the mean of its training sites' texts; give the "
            "site.yaml of the hospital where it is used", path,
        )  # fmt: skip
    return network


def task_of_checkpoint(tasks: Mapping[str, Any], path: Path, network: nn.Module) -> Task:
    """Build the task in a checkpoint's header, by default segmentation; CheckpointError if the kind does not exist."""
    notes = header_of(path)
    kind = notes.get("task", "segmentation")
    classes = _outputs_of(notes)
    if not classes:
        classes = [str(number) for number in range(channels_of(network, network.state_dict()) or 0)]
    try:
        return make_task(kind, with_learnt_numbers(tasks.get(kind), notes, kind), classes=classes)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from None


def with_learnt_numbers(own: Mapping[str, Any] | None, notes: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Return a task's settings, updated from a checkpoint's header; CheckpointError if these are not a JSON object."""
    numbers = dict(own or {})
    if kind != notes.get("task"):
        return numbers
    try:
        learnt = dict(json.loads(notes.get("numbers", "{}")))
    except (TypeError, ValueError, RecursionError):
        raise CheckpointError("the checkpoint's task settings are not a JSON object; save it again") from None
    if changed := {name: value for name, value in learnt.items() if numbers.get(name) != value}:
        logger.info("tasks: %s: uses the checkpoint's settings %s", kind, changed)
    return numbers | learnt


def channels_of(network: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Return the number of output channels in a state of the network, or None if the output layer is missing."""
    weights = (state.get(f"{head}.weight") for head in parts_of(network).get("head", ()))
    return next((len(weight) for weight in weights if weight is not None and weight.dim()), None)


def _outputs_of(notes: Mapping[str, str]) -> list[str]:
    """Return the names of outputs in a header; SAM2's weights have no output layer per class to count."""
    outputs = notes.get("outputs") or notes.get("classes", "")  # older versions have only these
    return [name for name in outputs.split(",") if name]


def _own_bundle(notes: Mapping[str, str], otherwise: str) -> str:
    named = notes.get("bundle", otherwise)
    return named if named in bundle_names() else otherwise


def merged_logits(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Merge logits (B, C, H, W) to (B, K, H, W) so that softmax probabilities add up: log-sum-exp of merged classes.

    ``ids`` are the new ids of the C classes; every id from 0 to K - 1 occurs.
    """
    members = [[old for old, new in enumerate(ids) if new == merged] for merged in range(max(ids) + 1)]
    # (B, C, H, W) -> K times (B, group, H, W) -> K times (B, H, W) -> (B, K, H, W)
    return torch.stack([logits[:, group].logsumexp(1) for group in members], 1)


class MergedClasses(nn.Module):
    """Segmentation network with logits (B, C, H, W), converted to coarser classes; ValueError if that is impossible."""

    def __init__(self, network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__()
        ids = coarser_ids(learnt, wanted)
        if ids is None:
            raise ValueError(
                f"a model of the classes {', '.join(learnt)} cannot predict {', '.join(wanted)}; classes can be "
                "merged but not divided; use another model or classes"
            )
        self.network, self.ids = network, ids
        pairs = list(zip(learnt, ids, strict=True))
        self.merges = {name: [old for old, new in pairs if wanted[new] == name] for name in wanted}

    def forward(self, image: Tensor) -> Tensor:
        return merged_logits(self.network(image), self.ids)


def with_wanted_classes(network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> nn.Module:
    """Return a network with the wanted classes, or unchanged with these classes or boxes; errors as `MergedClasses`."""
    same = tuple(learnt) == tuple(wanted) or provides(network, Prompted)
    return network if same else MergedClasses(network, learnt, wanted)
