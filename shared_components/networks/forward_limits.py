"""Measure the memory of a forward pass, and stop before a tensor that is too large is created.

The size of each result is computed on the meta device before the operation runs. So a network that exceeds a machine's
memory is refused, whatever its arguments are.
"""

import functools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from shared_components.networks.bundle_config import build_network
from shared_components.networks.network_class import is_ours


@dataclass
class Computed:
    """Number of elements in a forward pass: of its largest tensor, and of all tensors."""

    largest: int = 0
    total: int = 0


class _TooLarge(Exception):
    """Signal that a tensor exceeds a limit."""


@functools.lru_cache(maxsize=4)  # called at every task of a run
def forward_numbers(definition: str, channels: int, shape: tuple[int, ...], *, largest: int, total: int) -> Computed:
    """Build a network, run it once in evaluation mode, and count the elements until a limit is exceeded.

    `definition` is a `network_def` in JSON, and `shape` the input's, (1, 3, H, W) or (1, T, 3, H, W). One tensor may
    have `largest` elements, and all tensors `total` elements. Raises ValueError if one of our networks does not take
    this input; for other networks see `adapter.check_outputs`.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_network(json.loads(definition), out_channels=channels).eval()
        counted = _Counted(largest, total)
        others = () if is_ours(type(network)) else (Exception,)
        with suppress(_TooLarge, *others), torch.no_grad(), counted:
            network(torch.zeros(shape))
    return counted.computed


class _Counted(TorchDispatchMode):
    def __init__(self, largest: int, total: int) -> None:
        super().__init__()
        self.computed, self._largest, self._total = Computed(), largest, total

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if not any(result.alias_info for result in function._schema.returns):  # not a view or in-place operation
            numbers = _numbers(function, args, options)
            self.computed.largest = max(self.computed.largest, *numbers)
            self.computed.total += sum(numbers)
            if self.computed.largest > self._largest or self.computed.total > self._total:
                raise _TooLarge
        return function(*args, **options)


def _numbers(function: Callable[..., Any], args: Any, options: Any) -> list[int]:
    """Return the sizes of an operation's results; 0 if a size depends on values, as for `unique`."""
    try:
        args, options = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, options))
        if options.get("device") is not None:
            options = {**options, "device": "meta"}
        return [leaf.numel() for leaf in tree_leaves(function(*args, **options)) if isinstance(leaf, Tensor)] or [0]
    except (NotImplementedError, RuntimeError):
        return [0]
