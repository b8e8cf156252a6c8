"""What a method may ask of a network: a shared and a personal path, or a way from a frame's maps to its logits."""

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


@runtime_checkable
class Encodes(Protocol):
    """A network such as `networks.pvt_fpn_clips.PvtFpnClips`, which predicts from the maps of a frame alone."""

    encoder: nn.Module  # (B, 3, H, W) -> feature maps (B, C, h, w), the coarsest last

    def decode(self, features: list[Tensor]) -> Tensor:
        """Predict the logits (B, classes, H, W) from the encoder's maps as they are."""
        ...


_TWO_PATHS = "a network with a shared and a personal path, such as pvt_fpn's"
_ASKED: dict[type, str] = {
    SplitFeatures: _TWO_PATHS,
    TwoPaths: _TWO_PATHS,
    Encodes: "a network with a way from one encoder's maps to the logits, such as PvtFpnClips'",
}


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


def encodes(network: nn.Module, method: str) -> Encodes:
    """Return the network as one that predicts from its encoder's maps; ValueError as :func:`two_paths`."""
    require(network, Encodes, method)
    return cast(Encodes, network)


def require(network: nn.Module, wanted: type, method: str) -> None:
    """Refuse a network that is not what a method asks for.

    Raises:
        ValueError: The sentence names the method and the network.
    """
    # whose decode takes two halves, which a look at names does not tell
    halves = wanted is Encodes and isinstance(network, SplitFeatures)
    if halves or not isinstance(network, wanted):
        raise ValueError(
            f"{method} needs {_ASKED[wanted]}; {type(network).__name__} has none: choose another bundle or method"
        )
