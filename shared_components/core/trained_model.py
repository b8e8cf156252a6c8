"""A model as its checkpoint's header describes it: the network, the task it has learnt, the size of its input.

Public data sets do not name the same classes. A model of shaft, wrist and clasper is scored at a site that labels shaft
and manipulator, or the instrument alone, by the sum of the probabilities of the classes that become one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from shared_components.common.schema import shown
from shared_components.core.calibration import Calibration, calibration_of
from shared_components.core.shipped_weights import shipped_weights
from shared_components.core.site_conditioning import describe_site, knows_no_site
from shared_components.core.streams import Prompted
from shared_components.core.task import Task, make_task
from shared_components.data.classes import coarser_ids
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.networks.bundle_config import build_network, bundle_names, load_bundle
from shared_components.networks.checkpoints import CheckpointError, header_of, load_into, load_weights, tensors_of
from shared_components.networks.network_class import numbers_in, without_memory
from shared_components.networks.parts import parts_of
from shared_components.networks.protocols import provides

logger = logging.getLogger(__name__)
MOST_SIDE = 4096  # pixels of a side of a network's input by a checkpoint's header
MOST_CONSTANTS = 2**26  # constants of a network that its checkpoint lacks, such as positions


class RebuildableNetwork(Protocol):
    """A network that can be built anew with another last layer."""

    def with_classes(self, out_channels: int) -> nn.Module:
        """Return a fresh network that differs in the channels of its last layer alone."""
        ...


@dataclass(frozen=True)
class Trained:
    """A network with its weights, what it has learnt, the (height, width) of its input, and how sure it may be."""

    network: nn.Module
    task: Task
    size: tuple[int, int]
    calibration: Calibration | None = None


def load_trained(path: Path, *, bundle: str, site: Site | None = None) -> Trained:
    """Build what a checkpoint's header describes.

    Args:
        path: The checkpoint.
        bundle: Its network, numbers and size are the defaults of what the header lacks.
        site: Where it is used, see `told_as_asked`.

    Raises:
        CheckpointError: It is missing, damaged, of another network or no kind of task; or its calibration is damaged.
        SiteError: The site's text cannot be used.
        ValueError: There is no such bundle.
    """
    notes = header_of(path)
    known = load_bundle(_own_bundle(notes, bundle))
    network = network_of(cast(RebuildableNetwork, build_network(known.network)), path, bundle=bundle)
    told_as_asked(network, path, site)
    task = task_learnt(known.tasks, path, network)
    size = input_size(notes, known.training.height, known.training.width)
    return Trained(network, task, size, calibration_of(path))


def open_trained(
    model: Path | None, *, bundle: str, site: Path | None = None, instead: str = "name a checkpoint"
) -> tuple[Path, Trained]:
    """Return the path and the model of a checkpoint, or of the weights that a bundle ships.

    Args:
        model: The checkpoint; None: the bundle's own.
        bundle: As of `load_trained`, whose errors are raised.
        site: site.yaml of where it is used.
        instead: What to do where the bundle ships none, for the error.
    """
    load_bundle(bundle)  # refuses an unknown name
    path = model or shipped_weights(bundle, instead=instead)
    return path, load_trained(path, bundle=bundle, site=load_site(site) if site else None)


def input_size(notes: Mapping[str, str], height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) that a model was trained at; the given ones where its header has none.

    Raises:
        CheckpointError: One of the header's is no whole number from 1 to `MOST_SIDE`.
    """
    sizes = []
    for name, given in (("height", height), ("width", width)):
        said = notes.get(name)
        if said is not None and not (
            said.isascii() and said.isdecimal() and 1 <= int(said[:9]) and int(said[:99]) <= MOST_SIDE
        ):
            raise CheckpointError(
                f"checkpoint: its header's {name} is {said!r:.80}, which is no number of pixels; save it again"
            )
        sizes.append(given if said is None else int(said))
    return sizes[0], sizes[1]


def network_of(definition: RebuildableNetwork, path: Path, *, bundle: str, channels: int | None = None) -> nn.Module:
    """Return the network that a checkpoint is of, with its weights.

    Args:
        definition: The network of `bundle`, taken unless the header names another bundle or other arguments.
        path: The checkpoint.
        bundle: Whose definition this is.
        channels: Of the last layer; None: as many as the checkpoint has, or as its header names outputs.

    Raises:
        CheckpointError: It is missing, damaged, or of another network or number of channels.
    """
    named, state = header_of(path).get("bundle", bundle), load_weights(path)
    try:
        build = _builder(definition, path, bundle)
        with without_memory():  # a file's header may name a network of any size
            network = build(None)
            if channels is None and (found := channels_of(network, state)) != channels_of(
                network, network.state_dict()
            ):
                channels = found
            channels = channels or len(_outputs_of(header_of(path))) or None
            network = build(channels)
        tensors_of(network, state, path)
        _check_size(network, state, path)
        network = build(channels)
        load_into(network, path)
    except ValueError as error:
        said = str(error) if isinstance(error, CheckpointError) else f"checkpoint {path}: {error}"
        if named not in bundle_names():
            said += f"; it is of bundle {named!r:.80}, which is not among those here ({', '.join(bundle_names())})"
        raise CheckpointError(said) from None
    return network


def _check_size(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a network that has many more numbers than its file: constants that are computed when it is built."""
    given, built = sum(value.numel() for value in state.values()), numbers_in(network)
    if built > given + MOST_CONSTANTS:
        raise CheckpointError(
            f"checkpoint {path} has {given} numbers, and its header describes a network of {built}; save it again"
        )


def chosen_for(path: Path | None) -> Mapping[str, Any]:
    """Return the arguments of a checkpoint's network that are not its bundle's; empty for most.

    Raises:
        CheckpointError: The header's are no JSON. `bundle_config.load_bundle` checks the arguments.
    """
    said = header_of(path).get("network", "{}")
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        raise CheckpointError(
            f"checkpoint {path}: its header's network is {said!r:.80}, which is no JSON; save it again"
        ) from None


def _builder(definition: RebuildableNetwork, path: Path, bundle: str) -> Callable[[int | None], nn.Module]:
    """Return what builds the checkpoint's network with a number of channels; None: as the network has them itself."""
    named, chosen = _own_bundle(header_of(path), bundle), chosen_for(path)
    if named == bundle and chosen == {}:
        return lambda channels: definition.with_classes(channels) if channels else cast(nn.Module, definition)
    if named != bundle:
        logger.info("checkpoint %s is of bundle %s: that bundle's network is built", path, named)
    if chosen:
        logger.info("checkpoint %s is of a network with %s, which is built", path, shown(chosen))
    known = load_bundle(named, network=chosen).network
    return lambda channels: build_network(known, **({"out_channels": channels} if channels else {}))


def told_as_asked(network: nn.Module, path: Path, site: Site | None) -> nn.Module:
    """Condition a network that knows no site on the one that a person names; return it (`describe_site`).

    Without a site such a model uses the mean of its sites' inputs, and a warning is logged.

    Raises:
        SiteError: The site's text, vectors or encoder cannot be used.
        CheckpointError: A site is named in vain, or the header names no method that is here.
    """
    unconditioned = knows_no_site(header_of(path))
    if site is not None and not unconditioned:
        raise CheckpointError(
            f"checkpoint {path} is told of no site, or has been told of its own; leave {site.path} out"
        )
    if site is not None:
        describe_site(network, path, site)
    elif unconditioned:
        logger.warning(
            "checkpoint %s is a federation's model for other hospitals, told the mean of its sites' texts; name the "
            "site.yaml of the site where it is used, and it is told that site's own",
            path,
        )
    return network


def task_learnt(tasks: Mapping[str, Any], path: Path, network: nn.Module) -> Task:
    """Build the task of a checkpoint's header; where it has none, segmentation.

    ``tasks`` has numbers by kind for what the header lacks; without class names the network's outputs are counted.

    Raises:
        CheckpointError: There is no such kind of task.
    """
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
    """Return a task's numbers, replaced by those of a checkpoint's header.

    Raises:
        CheckpointError: The header's are no mapping in JSON.
    """
    numbers = dict(own or {})
    if kind != notes.get("task"):
        return numbers
    try:
        learnt = dict(json.loads(notes.get("numbers", "{}")))
    except (TypeError, ValueError, RecursionError):
        raise CheckpointError(
            f"the checkpoint's header says of its task's numbers {notes['numbers']!r:.80}, which is no mapping in "
            "JSON; save it again"
        ) from None
    if changed := {name: value for name, value in learnt.items() if numbers.get(name) != value}:
        logger.info("tasks: %s: the checkpoint has learnt with %s, which counts", kind, changed)
    return numbers | learnt


def channels_of(network: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Return how many channels the last layer has in a state of the network; None where it is not there."""
    found = (state.get(f"{head}.weight") for head in parts_of(network).get("head", ()))
    return next((len(weight) for weight in found if weight is not None and weight.dim()), None)


def _outputs_of(notes: Mapping[str, str]) -> list[str]:
    """Return the outputs that a header names; SAM2's weights, which have none per class, do not show their number."""
    outputs = notes.get("outputs") or notes.get("classes", "")  # headers of older versions have these alone
    return [name for name in outputs.split(",") if name]


def _own_bundle(notes: Mapping[str, str], otherwise: str) -> str:
    named = notes.get("bundle", otherwise)
    return named if named in bundle_names() else otherwise


def merged_logits(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Merge classes so that their probabilities add: the softmax of the result is the sum of theirs.

    Args:
        logits: (B, C, H, W).
        ids: The new id of each of the C classes; every number from 0 to the largest, K - 1, occurs.

    Returns:
        (B, K, H, W): the logarithm of the sum of exponentials of the classes that become one.
    """
    members = [[old for old, new in enumerate(ids) if new == one] for one in range(max(ids) + 1)]
    # (B, C, H, W) -> K times (B, group, H, W) -> K times (B, H, W) -> (B, K, H, W)
    return torch.stack([logits[:, group].logsumexp(1) for group in members], 1)


class MergedClasses(nn.Module):
    """A segmentation network of logits (B, C, H, W), read in coarser classes than the C that it has learnt.

    Raises:
        ValueError: The classes learnt cannot be merged to those wanted.
    """

    def __init__(self, network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__()
        ids = coarser_ids(learnt, wanted)
        if ids is None:
            raise ValueError(
                f"a model of the classes {', '.join(learnt)} cannot be read as one of {', '.join(wanted)}; "
                "classes can be merged, and not told apart"
            )
        self.network = network
        self.ids = ids
        self.merges = {
            name: [old for old, new in zip(learnt, ids, strict=True) if wanted[new] == name] for name in wanted
        }

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, K, H, W) of the coarser classes."""
        return merged_logits(self.network(image), self.ids)


def read_as(network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> nn.Module:
    """Return a network of the classes wanted; errors as of `MergedClasses`.

    It is the network itself where it has learnt just these, or follows boxes: then it has no classes of its own, and a
    box of a coarser class tells it what that class is.
    """
    same = tuple(learnt) == tuple(wanted) or provides(network, Prompted)
    return network if same else MergedClasses(network, learnt, wanted)
