"""CUDA graphs of a network's training pass, which take the place of a thousand launches of small kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

Key = tuple[tuple[torch.Size, torch.dtype], ...]


class Graphs:
    """Calls a network in training by graphs of its forward and backward pass, one for each shape of its inputs.

    A graph is captured at the first call with a shape, in the autocast of that call, which must not cache casts. What
    the network does may not follow from the values of its inputs. In evaluation the network is called as it is.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network, self._forward = network, network.forward
        self._captured: dict[Key, Callable[..., Tensor]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not self._network.training:
            return self._forward(*inputs)  # type: ignore[no-any-return]
        key = tuple((x.shape, x.dtype) for x in inputs)
        if key not in self._captured:
            plain, samples = _Plain(self._network, self._forward), tuple(x.clone() for x in inputs)
            graph = torch.cuda.make_graphed_callables(plain, samples, allow_unused_input=True)
            self._captured[key] = cast(Callable[..., Tensor], graph)
        return self._captured[key](*inputs)


class _Plain(nn.Module):
    """A network's parameters and its forward pass, which `make_graphed_callables` replaces here and not there."""

    def __init__(self, network: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self._run = network, forward

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._run(*inputs)


def use_graphs(network: nn.Module) -> None:
    """Let a network on a GPU be called by graphs wherever it trains."""
    network.forward = Graphs(network)  # type: ignore[assignment]
