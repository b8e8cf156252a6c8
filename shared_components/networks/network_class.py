"""Which classes a network may be of, and how one is made: ours, MONAI's of a list, and those that a machine allows.

A class is found by its name, as FLARE and MONAI find theirs: no file here imports MONAI, so that a site whose bundle or
job names none of MONAI's networks never pays for its import of five seconds.

A bundle, a person's command and a model's header may name our networks and those of `MONAI_NETWORKS`. A job comes from
a server: what it may name of these the environment variable ``SURGFL_NETWORKS`` of each machine says, and any class of
another library, whoever names it, must stand there, too: ``SURGFL_NETWORKS="monai,my_networks.small.Small"``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shared_components.common.schema import shown

OURS = "shared_components.networks."
MOST_NUMBERS = 2**31
"""Numbers in a network that a server builds for a job."""
MOST_STEPS = 50_000
"""Maximum number of torch calls while a network is built; SAM2 small makes 4,524."""
VARIABLE = "SURGFL_NETWORKS"
MONAI = "monai"  # in the variable: all of MONAI_NETWORKS
_NETS = "monai.networks.nets"
MONAI_NETWORKS = (
    "AttentionUnet", "BasicUNet", "MedNeXt", "SegResNet", "SegResNetDS", "SwinUNETR", "UNet", "UNETR",
)  # fmt: skip
"""Those that take frames (B, 3, H, W) and return one map (B, classes, H, W), and neither read files nor download."""


def class_path(target: str) -> str:
    """Return a class's full path; ``BasicUNet`` and ``monai.networks.nets.basic_unet.BasicUNet`` are one class."""
    module, _, name = target.rpartition(".")
    of_monai = not module or module == _NETS or module.startswith(f"{_NETS}.")
    return f"{_NETS}.{name}" if of_monai and name in MONAI_NETWORKS else target


def allowed_here() -> frozenset[str]:
    """Return the paths of the classes that ``SURGFL_NETWORKS`` names."""
    named = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    return frozenset(map(class_path, named - {MONAI})) | (_of_monai() if MONAI in named else frozenset())


def check_job_class(network: Mapping[str, Any]) -> None:
    """Refuse, by ValueError, a job's ``network`` that names a class which this machine's owner has not allowed."""
    if "class" not in network:
        return
    path = class_path(str(network["class"]))
    if path not in allowed_here():
        more = f", or {VARIABLE}={MONAI} for MONAI's networks" if path in _of_monai() else ""
        raise ValueError(
            f"network: class is {shown(network['class'])}, and no job may name a class that is not allowed here; if "
            f"you trust it, set {VARIABLE}={path}{more} in this machine's environment"
        )


def network_class(definition: Mapping[str, Any]) -> type[nn.Module]:
    """Return the class that ``_target_`` of a `network_def` names.

    Raises:
        ValueError: It is not allowed here, cannot be imported, or is no network.
    """
    target = definition.get("_target_", "")
    path = class_path(str(target))
    if not path.startswith(OURS) and path not in _of_monai() | allowed_here():
        raise ValueError(
            f"network_def: the class is {shown(target)}; only networks of {OURS.rstrip('.')}, MONAI's "
            f"{', '.join(MONAI_NETWORKS)}, and classes that {VARIABLE} names are built: set "
            f"{VARIABLE}=<module>.<class>, if you trust it"
        )
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"network_def: {path} cannot be imported ({error}); install its package, or name its folder in PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"network_def: {path} is no class of torch.nn.Module; name one")
    return found


def is_ours(kind: type[nn.Module]) -> bool:
    """Return whether a class is of `shared_components.networks`, whose networks say themselves what a method asks."""
    return kind.__module__.startswith(OURS)


def make(kind: type[nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Return a new network; ValueError where the class cannot be made with these arguments."""
    known = (TypeError, RuntimeError, ArithmeticError) if is_ours(kind) else (Exception,)  # of code that is not ours
    try:
        return kind(**arguments)
    except known as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"network_def: {kind.__name__} cannot be made with {dict(arguments)!s:.300}: {reason:.300}"
        ) from error


@contextmanager
def without_memory() -> Iterator[None]:
    """Give every tensor that is made in this context a shape and no memory.

    Building takes a bounded time, too: ValueError after `MOST_STEPS`.
    """
    with torch.device("meta"), _ShapesAlone():
        yield


def numbers_in(network: nn.Module) -> int:
    """Return how many numbers a network has: parameters, buffers, and tensors that its modules hold otherwise."""
    tensors = {id(one): one for one in (*network.parameters(), *network.buffers())}
    for module in network.modules():
        tensors |= {id(one): one for one in vars(module).values() if isinstance(one, Tensor)}
    return sum(one.numel() for one in tensors.values())


def check_numbers(network: nn.Module) -> None:
    """Refuse, by ValueError, a job's network that is too large for a server, which has no limits.yaml of its own."""
    if (numbers := numbers_in(network)) > MOST_NUMBERS:
        raise ValueError(
            f"network: it has {numbers} numbers, and a server builds at most {MOST_NUMBERS} (a site less, by the "
            "parameters of its limits.yaml); make its arguments smaller"
        )


class _ShapesAlone(TorchFunctionMode):
    """Draw no values for tensors without memory: torch would import its compiler for that, which takes 1.7 s.

    And keep ``torch.linspace`` on the CPU: SwinUNETR reads its rates of stochastic depth from it when it is made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {**kwargs} if kwargs else {}
        length = int(options.get("steps", (*args, 1, 1, 1)[2])) if function is torch.linspace else 1
        self.steps += length
        if self.steps > MOST_STEPS:
            raise ValueError(f"it has too many layers: building it takes more than {MOST_STEPS} steps")
        if getattr(function, "__module__", "") == nn.init.__name__ or function.__name__ in ("normal_", "uniform_"):
            drawn: Tensor = args[0] if args else options["tensor"]
            if drawn.is_meta:
                return drawn
        return function(*args, **({"device": "cpu"} | options if function is torch.linspace else options))


def _of_monai() -> frozenset[str]:
    return frozenset(f"{_NETS}.{name}" for name in MONAI_NETWORKS)
