"""Use a model of a finer class map where the classes are coarser: probabilities are merged, its weights stay.

Public data sets do not name the same classes. A model of shaft, wrist and clasper is scored at a site that labels shaft
and manipulator, or the instrument alone, by the sum of the probabilities of the classes that become one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shared_components.data.classes import coarser_ids


def merged_logits(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Merge classes so that their probabilities add: the softmax of the result is the sum of theirs.

    Args:
        logits: (B, C, H, W).
        ids: The new id of each of the C classes; every number from 0 to the largest, K - 1, occurs.

    Returns:
        (B, K, H, W): the logarithm of the sum of exponentials of the classes that become one.
    """
    members = [[old for old, new in enumerate(ids) if new == one] for one in range(max(ids) + 1)]
    # (B, C, H, W) -> K times (B, group, H, W) -> K times (B, H, W) -> (B, K, H, W)
    return torch.stack([logits[:, group].logsumexp(1) for group in members], 1)


class MergedClasses(nn.Module):
    """A segmentation network of logits (B, C, H, W), read in coarser classes than the C that it has learnt.

    Raises:
        ValueError: The classes learnt cannot be merged to those wanted.
    """

    def __init__(self, network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__()
        ids = coarser_ids(learnt, wanted)
        if ids is None:
            raise ValueError(
                f"a model of the classes {', '.join(learnt)} cannot be read as one of {', '.join(wanted)}; "
                "classes can be merged, and not told apart"
            )
        self.network = network
        self.ids = ids
        self.merges = {
            name: [old for old, new in zip(learnt, ids, strict=True) if wanted[new] == name] for name in wanted
        }

    def forward(self, image: Tensor) -> Tensor:
        """Return logits (B, K, H, W) of the coarser classes."""
        return merged_logits(self.network(image), self.ids)


def read_as(network: nn.Module, learnt: Sequence[str], wanted: Sequence[str]) -> nn.Module:
    """Return a network of the classes wanted: itself where it has learnt just these; errors as of `MergedClasses`."""
    return network if tuple(learnt) == tuple(wanted) else MergedClasses(network, learnt, wanted)
