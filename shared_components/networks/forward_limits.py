"""Measure the tensors that a network computes, and stop before a tensor is made that is too large.

The size of a tensor is asked of torch without memory, operation by operation, before the operation runs. So a network
whose arguments multiply to more than a machine has is refused, whatever the arguments are.
"""

from __future__ import annotations

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
    """Numbers that a forward pass computes: in its largest tensor, and in all of them."""

    largest: int = 0
    total: int = 0


class _TooLarge(Exception):
    """A tensor that is not made."""


@functools.lru_cache(maxsize=4)  # a site asks at every task of a run
def forward_numbers(definition: str, channels: int, shape: tuple[int, ...], *, largest: int, total: int) -> Computed:
    """Build a network, run it once in evaluation and count; the run ends with the first count above its limit.

    Args:
        definition: A `network_def` in JSON.
        channels: Of its outputs.
        shape: Of the input, (1, 3, H, W) or (1, T, 3, H, W).
        largest, total: The limits.

    Raises:
        ValueError: One of our networks does not take this input. Others: see `adapter.check_outputs`.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_network(json.loads(definition), out_channels=channels).eval()
        counted = _Counted(largest, total)
        others = () if is_ours(type(network)) else (Exception,)
        with suppress(_TooLarge, *others), torch.no_grad(), counted:
            network(torch.zeros(shape))
    return counted.found


class _Counted(TorchDispatchMode):
    def __init__(self, largest: int, total: int) -> None:
        super().__init__()
        self.found, self._largest, self._total = Computed(), largest, total

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if not any(one.alias_info for one in function._schema.returns):  # a view, or changed in place
            numbers = _numbers(function, args, options)
            self.found.largest = max(self.found.largest, *numbers)
            self.found.total += sum(numbers)
            if self.found.largest > self._largest or self.found.total > self._total:
                raise _TooLarge
        return function(*args, **options)


def _numbers(function: Callable[..., Any], args: Any, options: Any) -> list[int]:
    """Return the sizes of an operation's results; 0 if a size depends on values, such as the result of `unique`."""
    try:
        args, options = tree_map_only(Tensor, lambda one: one.to("meta"), (args, options))
        if options.get("device") is not None:
            options = {**options, "device": "meta"}
        return [one.numel() for one in tree_leaves(function(*args, **options)) if isinstance(one, Tensor)] or [0]
    except (NotImplementedError, RuntimeError):
        return [0]
