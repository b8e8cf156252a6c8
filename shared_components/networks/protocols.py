"""Protocols that a method or a task may require of its network: two paths, maps of one frame, a memory, a mask."""

from __future__ import annotations

from typing import Protocol, TypeVar, cast

from torch import Tensor, nn
from typing_extensions import TypeIs, get_protocol_members

P = TypeVar("P")


class SplitFeatures(Protocol):
    """A network whose shared decoder reads half of the channels of the feature maps."""

    decoder_global: nn.Module

    def encode(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return both halves of the feature maps: the shared decoder's and the personal one's."""


class TwoPaths(SplitFeatures, Protocol):
    """A network such as `networks.pvt_fpn.PvtFpn`, which documents shapes and errors."""

    def decode(self, shared: list[Tensor], own: list[Tensor]) -> dict[str, Tensor]:
        """Predict from both halves: "pred", "global" and, with an appearance head, "restored"."""

    def forward_parts(self, image: Tensor) -> dict[str, Tensor]:
        """Encode and decode."""

    def forward_global(self, image: Tensor) -> Tensor:
        """Predict with the shared path alone."""

    def forward_features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Predict, and return the map that the classifiers read, too."""


class Encodes(Protocol):
    """A network such as `networks.pvt_fpn_clips.PvtFpnClips`, which can predict from the maps of a single frame."""

    encoder: nn.Module  # (B, 3, H, W) -> feature maps (B, C, h, w), the coarsest last

    def decode(self, features: list[Tensor]) -> Tensor:
        """Predict the logits (B, classes, H, W) from the encoder's maps."""


class Remembers(Protocol):
    """A network that follows objects through a video by a memory, as SAM2 does (`networks.sam2_video.Sam2Clips`)."""

    memory_attention: nn.Module
    memory_encoder: nn.Module
    mask_decoder: nn.Module


class SeesVisible(Protocol):
    """A masked autoencoder, such as `networks.mae_vit.MaeVit`: it is given the mask, and sees visible patches alone."""

    patch: int  # side in pixels
    mask_token: nn.Parameter

    def __call__(self, image: Tensor, hidden: Tensor) -> Tensor:
        """Predict normalised pixels (B, 3, H, W) of a picture in 0..1, of which ``hidden`` (B, H, W) are not seen."""


_TWO_PATHS = "a network with a shared and a personal path, such as pvt_fpn's"
_DESCRIPTIONS: dict[type, str] = {
    SplitFeatures: _TWO_PATHS,
    TwoPaths: _TWO_PATHS,
    Encodes: "a network with a way from one encoder's maps to the logits, such as PvtFpnClips'",
    Remembers: "a network with a memory of objects, such as Sam2Clips",
}


def provides(network: object, protocol: type[P]) -> TypeIs[P]:
    """Return whether a network has everything that a protocol names, of whatever type.

    `isinstance` does not ask `__getattr__` since Python 3.12, and so misses parts, parameters and buffers of a module.
    """
    return all(hasattr(network, name) for name in get_protocol_members(protocol))


def split_features(network: nn.Module, method: str) -> SplitFeatures:
    """Return the network as SplitFeatures; ValueError as :func:`require`."""
    require(network, SplitFeatures, method)
    return cast(SplitFeatures, network)


def two_paths(network: nn.Module, method: str) -> TwoPaths:
    """Return the network as TwoPaths; ValueError as :func:`require`."""
    require(network, TwoPaths, method)
    return cast(TwoPaths, network)


def encodes(network: nn.Module, method: str) -> Encodes:
    """Return the network as Encodes; ValueError as :func:`require`."""
    require(network, Encodes, method)
    return cast(Encodes, network)


def require(network: nn.Module, wanted: type, method: str) -> None:
    """Refuse a network that does not satisfy the protocol that a method requires: ValueError with the names of both."""
    # SplitFeatures has a decode of two halves, and names alone are compared
    halves = wanted is Encodes and provides(network, SplitFeatures)
    if halves or not provides(network, wanted):
        kind, needed = type(network).__name__, _DESCRIPTIONS[wanted]
        raise ValueError(f"{method} needs {needed}; {kind} has none: choose another bundle or method")
