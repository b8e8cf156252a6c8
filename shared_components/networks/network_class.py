"""Allowed network classes: our networks, MONAI's `MONAI_NETWORKS`, and classes that a machine allows.

A class is imported by its path, as in FLARE and MONAI. No file here imports MONAI, so a site without MONAI networks
avoids its import of five seconds.

A bundle, a command and a model's header may name our networks and `MONAI_NETWORKS`. A job comes from a server, so it
may only name classes that the machine's environment variable ``SURGFL_NETWORKS`` lists. Classes of other libraries must
always be listed: ``SURGFL_NETWORKS="monai,my_networks.small.Small"``.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shared_components.common.schema import short_repr

OURS = "shared_components.networks."
MOST_NUMBERS = 2**31  # maximum number of elements in a network that a server builds for a job
MOST_STEPS = 50_000  # maximum number of torch calls while a network is built; SAM2 small makes 4,524
VARIABLE = "SURGFL_NETWORKS"
MONAI = "monai"  # entry of the variable for all MONAI_NETWORKS
_NETS = "monai.networks.nets"
MONAI_NETWORKS = (
    "AttentionUnet", "BasicUNet", "MedNeXt", "SegResNet", "SegResNetDS", "SwinUNETR", "UNet", "UNETR",
)  # fmt: skip
"""MONAI networks from frames (B, 3, H, W) to one map (B, classes, H, W), which neither read files nor download."""


def class_path(target: str) -> str:
    """Return a class's full path: ``BasicUNet`` and ``monai.networks.nets.basic_unet.BasicUNet`` are the same class."""
    module, _, name = target.rpartition(".")
    of_monai = not module or module == _NETS or module.startswith(f"{_NETS}.")
    return f"{_NETS}.{name}" if of_monai and name in MONAI_NETWORKS else target


def allowed_here() -> frozenset[str]:
    """Return the paths of the classes in ``SURGFL_NETWORKS``."""
    named = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    return frozenset(map(class_path, named - {MONAI})) | (_of_monai() if MONAI in named else frozenset())


def check_job_class(network: Mapping[str, Any]) -> None:
    """Raise ValueError if a job's ``network`` names a class that this machine does not allow."""
    if "class" not in network:
        return
    path = class_path(str(network["class"]))
    if path not in allowed_here():
        more = f", or {VARIABLE}={MONAI} for MONAI's networks" if path in _of_monai() else ""
        raise ValueError(
            f"network: class {short_repr(network['class'])} is not allowed in jobs here; if you trust it, set "
            f"{VARIABLE}={path}{more} in this machine's environment"
        )


def network_class(definition: Mapping[str, Any]) -> type[nn.Module]:
    """Return the class of a `network_def`; ValueError if it is not allowed, not importable or not a network."""
    target = definition.get("_target_", "")
    path = class_path(str(target))
    if not path.startswith(OURS) and path not in _of_monai() | allowed_here():
        raise ValueError(
            f"network_def: class {short_repr(target)} is not allowed; use a network of {OURS.rstrip('.')}, MONAI's "
            f"{', '.join(MONAI_NETWORKS)}, or, if you trust the class, set {VARIABLE}=<module>.<class>"
        )
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"network_def: {path} cannot be imported ({error}); install its package, or add its folder to PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"network_def: {path} is not a subclass of torch.nn.Module; give a network class")
    return kind


def is_ours(kind: type[nn.Module]) -> bool:
    """Return whether a class belongs to `shared_components.networks`."""
    return kind.__module__.startswith(OURS)


def make(kind: type[nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Return a new network; ValueError if the constructor refuses these arguments."""
    known = (TypeError, RuntimeError, ArithmeticError) if is_ours(kind) else (Exception,)  # any error of foreign code
    try:
        return kind(**arguments)
    except known as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"network_def: {kind.__name__} cannot be built with {dict(arguments)!s:.300}: {reason:.300}"
        ) from error


@contextmanager
def without_memory() -> Iterator[None]:
    """Create tensors without memory (meta device) in this context; ValueError after `MOST_STEPS` torch calls."""
    with torch.device("meta"), _ShapesOnly():
        yield


def numbers_in(network: nn.Module) -> int:
    """Return the number of elements of a network: parameters, buffers, and other tensor attributes of its modules."""
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    for module in network.modules():
        tensors |= {id(value): value for value in vars(module).values() if isinstance(value, Tensor)}
    return sum(tensor.numel() for tensor in tensors.values())


def check_numbers(network: nn.Module) -> None:
    """Raise ValueError if a job's network is too large for a server, which has no limits.yaml."""
    if (numbers := numbers_in(network)) > MOST_NUMBERS:
        raise ValueError(
            f"network: it has {numbers} numbers, and a server builds at most {MOST_NUMBERS} (a site's limit is "
            "'parameters' in its limits.yaml); choose smaller arguments"
        )


class _ShapesOnly(TorchFunctionMode):
    """Skip random initialisation of meta tensors, for which torch would import its compiler in 1.7 s.

    ``torch.linspace`` stays on the CPU, since SwinUNETR reads its stochastic-depth rates in the constructor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {**kwargs} if kwargs else {}
        length = int(options.get("steps", (*args, 1, 1, 1)[2])) if function is torch.linspace else 1
        self.steps += length
        if self.steps > MOST_STEPS:
            raise ValueError(f"it has too many layers: building it takes more than {MOST_STEPS} torch calls")
        if getattr(function, "__module__", "") == nn.init.__name__ or function.__name__ in ("normal_", "uniform_"):
            drawn: Tensor = args[0] if args else options["tensor"]
            if drawn.is_meta:
                return drawn
        return function(*args, **({"device": "cpu"} | options if function is torch.linspace else options))


def _of_monai() -> frozenset[str]:
    return frozenset(f"{_NETS}.{name}" for name in MONAI_NETWORKS)
