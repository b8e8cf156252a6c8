"""Let a network of another library take part: what a method, a task and a model's header must know of it.

A plain `nn.Module` of frames (B, 3, H, W) and maps (B, classes, H, W) says nothing of itself. `adapted` finds its last
layers and gives it what our networks declare: `parts`, `with_classes`, and the `definition` that a model's header has.
It stays the same object, with the names of its tensors, so that its weights are those of any other program.

A class may declare more itself, and what it declares counts: `parts` (by name, paths of its modules; `top` is what
personalised methods keep at a site, else its last layers), `stride` (sides of a frame are multiples of it, in pixels),
`takes_clips`, and what the protocols of `networks.protocols` ask for.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shared_components.networks.network_class import class_path, make, network_class, without_memory
from shared_components.networks.parts import inside, parts_of, resolve, upwards

CHANNELS = ("out_channels", "num_classes", "n_classes", "classes")
"""How constructors call the number of outputs; the first that one has is set by the site's task."""
USUAL = 4  # outputs where nothing says how many
STRIDES = (2, 4, 8, 16, 32, 64, 128)


def channels_argument(kind: type[nn.Module]) -> str:
    """Return by which argument a class is told its number of outputs; ValueError where it takes none."""
    taken = inspect.signature(kind.__init__).parameters
    for name in CHANNELS:
        if name in taken:
            return name
    raise ValueError(
        f"network_def: {kind.__name__} takes none of {', '.join(CHANNELS)}, so that it cannot have an output for each "
        "class of a site; derive a class from it whose constructor takes out_channels"
    )


def adapted(definition: Mapping[str, Any], out_channels: int | None = None) -> nn.Module:
    """Return a new network of another library, with `parts`, `with_classes` and `definition`.

    Args:
        definition: A `network_def`.
        out_channels: Of the last layer; None: as the definition says.

    Raises:
        ValueError: The class is not allowed, cannot be made, has no parameters, or has tensors that could not be
            averaged or saved.
    """
    kind = network_class(definition)
    argument = channels_argument(kind)
    arguments = {name: value for name, value in definition.items() if not name.startswith("_")}
    channels = int(out_channels or arguments.pop(argument, USUAL))
    arguments.pop(argument, None)
    network = make(kind, {**arguments, argument: channels})
    _check_tensors(network)
    _check_attributes(network)
    with torch.random.fork_rng(devices=[]), without_memory():
        other = make(kind, {**arguments, argument: 2 * channels})
    last = _last_layers(network, other, argument)
    plain = {"_target_": class_path(str(definition["_target_"])), **copy.deepcopy(arguments)}
    network.parts = _parts(network, last)  # type: ignore[assignment]  # no tensor and no module; so below
    network.definition = plain  # type: ignore[assignment]
    network.with_classes = partial(adapted, plain)  # type: ignore[assignment]
    return network


def definition_of(network: nn.Module) -> dict[str, Any]:
    """Return the definition of an adapted network as a job's ``network`` and a model's header say it; else nothing."""
    found = getattr(network, "definition", None)
    if found is None:
        return {}
    return {"class": found["_target_"], **{name: value for name, value in found.items() if name != "_target_"}}


def _check_tensors(network: nn.Module) -> None:
    """Refuse a network that could not be trained, averaged or saved, by ValueError."""
    who, state = f"network_def: {type(network).__name__}", network.state_dict(keep_vars=True)
    if not any(True for _ in network.parameters()):
        raise ValueError(f"{who} has no parameters, so that there is nothing to train; name another class")
    names: dict[int, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value):
            raise ValueError(f"{who} has {name}, whose size is not known when it is made; give its layer all its sizes")
        if id(value) in names:
            raise ValueError(
                f"{who} has one tensor under the names {names[id(value)]} and {name}, which a file of weights cannot "
                "hold; give each layer its own"
            )
        names[id(value)] = name


def _check_attributes(network: nn.Module) -> None:
    """Refuse attributes that mean something else than those of our networks, by ValueError."""
    who, stride = f"network_def: {type(network).__name__}", getattr(network, "stride", 1)
    if type(stride) is not int or stride < 1:
        raise ValueError(f"{who} has the attribute stride of {stride!r:.80}; here it is a number of pixels: rename it")
    for name in ("parts", "definition", "with_classes"):
        if name in {**dict(network.named_children()), **network.state_dict()} or (
            name == "parts" and not isinstance(parts_of(network), Mapping)
        ):
            raise ValueError(f"{who} has a module or a list named {name}, which means something else here; rename it")


def _last_layers(network: nn.Module, other: nn.Module, argument: str) -> tuple[str, ...]:
    """Return the modules whose tensors follow the number of outputs; ``other`` has twice as many."""
    own, others = network.state_dict(), other.state_dict()
    if own.keys() == others.keys() and (changed := [name for name in own if own[name].shape != others[name].shape]):
        return tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in changed))
    raise ValueError(
        f"network_def: {argument} of {type(network).__name__} does not change the size of a last layer, so that it "
        "cannot have an output for each class; let its constructor use it"
    )


def _parts(network: nn.Module, last: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return what a class declares, with its last layers, and as the encoder all else; a module of that name counts."""
    declared, above = dict(parts_of(network)), {place for path in last for place in upwards(path)}
    if declared:
        resolve(network, list(declared), "parts")
    paths = [list(upwards(name))[::-1] for name in network.state_dict() if not inside(name, last)]
    rest = dict.fromkeys(next(place for place in path if place not in above) for path in paths)
    named = any("encoder" in path for path in paths)
    return {"head": last, "top": last} | ({"encoder": tuple(rest)} if rest and not named else {}) | declared


def check_outputs(
    network: nn.Module, *, channels: int, size: tuple[int, int], frames: int = 1, maps: bool = True
) -> None:
    """Run an adapted network once, in training and in evaluation, and refuse outputs that a task could not use.

    Our own networks check their inputs themselves and are not run. Weights and running statistics stay as they are.

    Args:
        network: On any device.
        channels: Of the outputs.
        size: (height, width) of the frames.
        frames: Of a clip; 1: pictures.
        maps: Whether outputs are (B, channels, H, W); else (B, channels, ...).

    Raises:
        ValueError: It takes no such frames, or gives another number of tensors, size or number of channels, or
            probabilities.
    """
    if not definition_of(network):
        return
    shape = (2, 3, *size) if frames == 1 else (2, frames, 3, *size)
    image = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(next(network.parameters()).device)
    due = (2, channels, *size) if maps else (2, channels)  # else these come first
    who = f"network_def: {type(network).__name__}"
    for training in (True, False):
        with torch.random.fork_rng(devices=[]):
            outputs = _run(copy.deepcopy(network).train(training), image)
        when = "in training" if training else "in evaluation"
        if isinstance(outputs, Exception):
            raise ValueError(_takes_no(network, image, outputs)) from outputs
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{who} returns a {type(outputs).__name__} {when}, and a task reads one tensor {list(due)}; switch its "
                "further outputs off, such as deep supervision, or derive a class that returns the first"
            )
        if tuple(outputs.shape if maps else outputs.shape[:2]) != due:
            raise ValueError(
                f"{who} returns {list(outputs.shape)} {when} for frames {list(shape)}, and the task reads {list(due)}; "
                "let it return an output of each class, of the frame's size"
            )
        if channels > 1 and _are_probabilities(outputs):
            raise ValueError(f"{who} returns probabilities {when}, and a task reads logits; leave its softmax out")


def _run(network: nn.Module, image: Tensor) -> Any:
    """Return a network's outputs, or why it has none."""
    try:
        with torch.no_grad():
            return network(image)
    except Exception as error:  # any: the code is not ours, and the caller says what it takes
        return error


def _takes_no(network: nn.Module, image: Tensor, error: Exception) -> str:
    """Return the sentence on frames that a network does not take, with a size that it does, if there is one."""
    *front, height, width = image.shape
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    network = copy.deepcopy(network).eval()
    for stride in STRIDES:
        rows, columns = (max(1, round(side / stride)) * stride for side in (height, width))
        if isinstance(_run(network, image.new_zeros(*front, rows, columns)), Tensor):
            remedy = f"write training.height: {rows} and training.width: {columns}"
            break
    else:
        remedy = "let it take RGB frames; MONAI's take them with spatial_dims: 2 and in_channels: 3"
    return f"network_def: {type(network).__name__} takes no frames {list(image.shape)} ({reason}); {remedy}"


def _are_probabilities(outputs: Tensor) -> bool:
    sums = outputs.sum(1)
    return bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)
