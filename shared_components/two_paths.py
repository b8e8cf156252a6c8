"""What a method may ask of a network whose feature maps are split between a shared and a personal path."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class SplitFeatures(Protocol):
    """A network of which one decoder reads a half of the feature maps."""

    decoder_global: nn.Module

    def encode(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return both halves of the feature maps: of the shared decoder and of the own one."""
        ...


@runtime_checkable
class TwoPaths(SplitFeatures, Protocol):
    """A network such as `networks.pvt_fpn.PvtFpn`, whose methods say shapes and errors."""

    def decode(self, shared: list[Tensor], own: list[Tensor]) -> dict[str, Tensor]:
        """Predict from both halves: "pred", "global" and, with an appearance head, "restored"."""
        ...

    def forward_parts(self, image: Tensor) -> dict[str, Tensor]:
        """Encode and decode."""
        ...

    def forward_global(self, image: Tensor) -> Tensor:
        """Predict by the shared path alone."""
        ...

    def forward_features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Predict, and return the map that the classifiers read."""
        ...


def split_features(network: nn.Module, method: str) -> SplitFeatures:
    """Return the network as one of split features; ValueError as :func:`two_paths`."""
    require(network, SplitFeatures, method)
    return cast(SplitFeatures, network)


def two_paths(network: nn.Module, method: str) -> TwoPaths:
    """Return the network as one of two paths.

    Raises:
        ValueError: It has no such paths; the sentence names the method and the network.
    """
    require(network, TwoPaths, method)
    return cast(TwoPaths, network)


def require(network: nn.Module, wanted: type, method: str) -> None:
    """Refuse a network that is not what a method asks for.

    Raises:
        ValueError: The sentence names the method and the network.
    """
    if not isinstance(network, wanted):
        raise ValueError(
            f"{method} needs a network with a shared and a personal path, such as pvt_fpn's; "
            f"{type(network).__name__} has none: choose another bundle or method"
        )
