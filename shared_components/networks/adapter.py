"""Adapt networks of other libraries to methods, tasks and model headers.

`adapted` finds the last layers of an `nn.Module` from frames (B, 3, H, W) to maps (B, classes, H, W). It adds the
attributes of our networks: `parts`, `with_classes`, and the `definition` for a model's header. Tensor names do not
change, so that other programs can load the weights.

A class may declare these attributes itself:

- `parts`: module paths by name; `top` is the personal part of personalised methods, by default the last layers
- `stride`: sides of a frame are multiples of it, in pixels
- `takes_clips`, and the members of `networks.protocols`
"""

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
"""Constructor arguments for the number of outputs; the first existing argument is set by the site's task."""
STRIDES = (2, 4, 8, 16, 32, 64, 128)


def channels_argument(kind: type[nn.Module]) -> str:
    """Return the constructor's argument for the number of outputs; ValueError if there is none."""
    parameters = inspect.signature(kind.__init__).parameters
    if names := [name for name in CHANNELS if name in parameters]:
        return names[0]
    raise ValueError(
        f"network_def: {kind.__name__} takes none of {', '.join(CHANNELS)}, so its number of outputs cannot be set; "
        "derive a class from it whose constructor takes out_channels"
    )


def adapted(definition: Mapping[str, Any], out_channels: int | None = None) -> nn.Module:
    """Return the new network of a `network_def` of another library, with `parts`, `with_classes` and `definition`.

    `out_channels` is the number of outputs, by default the definition's. Raises ValueError if the class is not allowed
    or cannot be built, has no parameters, or has tensors that cannot be averaged or saved.
    """
    kind = network_class(definition)
    argument = channels_argument(kind)
    arguments = {name: value for name, value in definition.items() if not name.startswith("_")}
    default = arguments.pop(argument, 4)
    channels = int(out_channels or default)
    network = make(kind, {**arguments, argument: channels})
    _check_tensors(network)
    _check_attributes(network)
    with torch.random.fork_rng(devices=[]), without_memory():
        other = make(kind, {**arguments, argument: 2 * channels})
    last = _last_layers(network, other, argument)
    plain = {"_target_": class_path(str(definition["_target_"])), **copy.deepcopy(arguments)}
    network.parts = _parts(network, last)  # type: ignore[assignment]  # neither tensor nor module; also below
    network.definition = plain  # type: ignore[assignment]
    network.with_classes = partial(adapted, plain)  # type: ignore[assignment]
    return network


def definition_of(network: nn.Module) -> dict[str, Any]:
    """Return an adapted network's definition in the form of a job's ``network``; empty for our networks."""
    own = getattr(network, "definition", None)
    if own is None:
        return {}
    return {"class": own["_target_"], **{name: value for name, value in own.items() if name != "_target_"}}


def _check_tensors(network: nn.Module) -> None:
    """Raise ValueError for a network that cannot be trained, averaged or saved."""
    who, state = f"network_def: {type(network).__name__}", network.state_dict(keep_vars=True)
    if not any(True for _ in network.parameters()):
        raise ValueError(f"{who} has no parameters to train; choose another class")
    names: dict[int, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or is_lazy(value):
            raise ValueError(f"{who}: the size of {name} is unknown after construction; give its layer all sizes")
        if id(value) in names:
            raise ValueError(
                f"{who} has one tensor under the names {names[id(value)]} and {name}, which a weight file cannot "
                "contain; give each layer its own tensor"
            )
        names[id(value)] = name


def _check_attributes(network: nn.Module) -> None:
    """Raise ValueError if attributes conflict with the attributes of our networks."""
    who, stride = f"network_def: {type(network).__name__}", getattr(network, "stride", 1)
    if type(stride) is not int or stride < 1:
        raise ValueError(f"{who} has the attribute stride {stride!r:.80}; here it is a number of pixels: rename it")
    for name in ("parts", "definition", "with_classes"):
        if name in {**dict(network.named_children()), **network.state_dict()} or (
            name == "parts" and not isinstance(parts_of(network), Mapping)
        ):
            raise ValueError(f"{who} has a module or a list named {name}, a name with another meaning here; rename it")


def _last_layers(network: nn.Module, other: nn.Module, argument: str) -> tuple[str, ...]:
    """Return the modules whose shapes depend on the number of outputs; ``other`` has twice as many outputs."""
    own, others = network.state_dict(), other.state_dict()
    if own.keys() == others.keys() and (changed := [name for name in own if own[name].shape != others[name].shape]):
        return tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in changed))
    raise ValueError(
        f"network_def: {argument} of {type(network).__name__} does not change the size of a last layer; let the "
        "constructor use it, so that the network has an output for each class"
    )


def _parts(network: nn.Module, last: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the declared parts, the last layers and, unless a module has this name, the rest as the encoder."""
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
    """Run an adapted network in training and evaluation mode, and check that a task can use its outputs.

    The outputs are one tensor of logits, (B, channels, H, W) with `maps`, else (B, channels, ...); else ValueError.
    Our own networks check their inputs and are not run. Weights and running statistics do not change.
    """
    if not definition_of(network):
        return
    shape = (2, 3, *size) if frames == 1 else (2, frames, 3, *size)
    image = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(next(network.parameters()).device)
    expected = (2, channels, *size) if maps else (2, channels)  # without maps, the first dimensions
    who = f"network_def: {type(network).__name__}"
    for training, when in ((True, "in training"), (False, "in evaluation")):
        with torch.random.fork_rng(devices=[]):
            outputs = _run(copy.deepcopy(network).train(training), image)
        if isinstance(outputs, Exception):
            raise ValueError(_shape_error(network, image, outputs)) from outputs
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{who} returns a {type(outputs).__name__} {when}, but a task reads one tensor {list(expected)}; "
                "switch off further outputs, such as deep supervision, or derive a class that returns the first output"
            )
        if tuple(outputs.shape if maps else outputs.shape[:2]) != expected:
            raise ValueError(
                f"{who} returns {list(outputs.shape)} {when} for frames {list(shape)}, but the task reads "
                f"{list(expected)}; let it return an output per class at the frame's size"
            )
        sums = outputs.sum(1)
        if channels > 1 and bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
            raise ValueError(f"{who} returns probabilities {when}, but a task reads logits; remove its softmax")


def _run(network: nn.Module, image: Tensor) -> Any:
    """Return a network's outputs, or the exception."""
    try:
        with torch.no_grad():
            return network(image)
    except Exception as error:  # foreign code may raise any exception
        return error


def _shape_error(network: nn.Module, image: Tensor, error: Exception) -> str:
    """Return the error message for an unsupported frame shape, with a supported size if there is one."""
    *front, height, width = image.shape
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    network = copy.deepcopy(network).eval()
    for stride in STRIDES:
        rows, columns = (max(1, round(side / stride)) * stride for side in (height, width))
        if isinstance(_run(network, image.new_zeros(*front, rows, columns)), Tensor):
            remedy = f"set training.height: {rows} and training.width: {columns}"
            break
    else:
        remedy = "let it take RGB frames, for MONAI's networks with spatial_dims: 2 and in_channels: 3"
    return f"network_def: {type(network).__name__} does not take frames {list(image.shape)} ({reason}); {remedy}"
