"""Protocols that a method or a task can require of its network."""

from typing import Protocol, TypeVar, cast

from torch import Tensor, nn
from typing_extensions import TypeIs, get_protocol_members

P = TypeVar("P")


class SplitFeatures(Protocol):
    """A network whose shared decoder reads half of the channels of the feature maps."""

    decoder_global: nn.Module

    def encode(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the feature maps of the shared decoder and of the personal decoder."""


class TwoPaths(SplitFeatures, Protocol):
    """A network such as `networks.pvt_fpn.PvtFpn`, which documents shapes and errors."""

    def decode(self, shared: list[Tensor], own: list[Tensor]) -> dict[str, Tensor]:
        """Predict from both halves: "pred", "global" and, with an appearance head, "restored"."""

    def forward_parts(self, image: Tensor) -> dict[str, Tensor]:
        """Encode and decode."""

    def forward_global(self, image: Tensor) -> Tensor:
        """Predict with only the shared path."""

    def forward_features(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and the input map of the classifiers."""


class Encodes(Protocol):
    """A network that can predict from the feature maps of a frame, such as `networks.pvt_fpn_clips.PvtFpnClips`."""

    encoder: nn.Module  # (B, 3, H, W) -> feature maps (B, C, h, w), the coarsest last

    def decode(self, features: list[Tensor]) -> Tensor:
        """Predict the logits (B, classes, H, W) from the encoder's maps."""


class Remembers(Protocol):
    """A network that tracks objects with a memory, such as SAM2 (`networks.sam2_video.Sam2Clips`)."""

    memory_attention: nn.Module
    memory_encoder: nn.Module
    mask_decoder: nn.Module


class SeesVisible(Protocol):
    """A masked autoencoder that encodes only visible patches, such as `networks.mae_vit.MaeVit`."""

    patch: int  # side of a patch in pixels
    mask_token: nn.Parameter

    def __call__(self, image: Tensor, hidden: Tensor) -> Tensor:
        """Predict normalised pixels (B, 3, H, W) of images in 0..1, with the pixels ``hidden`` (B, H, W) masked."""


_DESCRIPTIONS: dict[type, str] = {
    **dict.fromkeys((SplitFeatures, TwoPaths), "a network with a shared and a personal path, such as pvt_fpn's"),
    Encodes: "a network that predicts from one encoder's maps, such as PvtFpnClips",
    Remembers: "a network with a memory of objects, such as Sam2Clips",
}


def provides(network: object, protocol: type[P]) -> TypeIs[P]:
    """Return whether a network has all members of a protocol, of any type.

    Since Python 3.12 `isinstance` does not call `__getattr__`, and so misses submodules, parameters and buffers.
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
    """Raise ValueError if a network does not satisfy the protocol that a method requires."""
    # only names are compared, and SplitFeatures has another `decode`
    if not provides(network, wanted) or (wanted is Encodes and provides(network, SplitFeatures)):
        kind, needed = type(network).__name__, _DESCRIPTIONS[wanted]
        raise ValueError(f"{method} needs {needed}; {kind} does not qualify: choose another bundle or method")
