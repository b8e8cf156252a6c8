"""FedAS: Yang et al., Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.

A site first aligns the received base with the features of the base it trained last, then trains; the server
weighs sites by Fisher information (core/aggregators/fisher.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.common.arguments import between, require_list
from shared_components.core.aggregators.fisher import GROUP, FisherMean, fisher_trace
from shared_components.core.extras import scalar
from shared_components.core.losses import IGNORED, shrink_label
from shared_components.core.method import (
    About,
    Batch,
    Context,
    Extras,
    Local,
    LocalWork,
    Losses,
    Method,
    Requires,
    Server,
)
from shared_components.core.partition import Partition, Pieces, Role, Rule, TensorRule, below, cut, paste, prefixed
from shared_components.core.rules import HEAD, modules
from shared_components.networks.parts import inside, resolve, shared_paths, trained_parameters
from shared_components.networks.protocols import SplitFeatures, split_features

BASE = "base/"  # in the memory: the base as this site trained it last
ALIGNED = ("encoder", "decoder_global")  # what the features come from


def build(*, personal: Sequence[str] = HEAD, alignment_rate: float = 0.01, largest_weight: float = 1.0) -> Method:
    """Return FedAS: a shared base, a head of one's own, and two remedies for their drifting apart.

    Args:
        personal: Parts or modules that stay at the site: the head.
        alignment_rate: Learning rate of the alignment, plain SGD; 0 trains from the received base as it is.
        largest_weight: No site weighs more than this at the server; 1 as published.
    """
    between("fedas", "alignment_rate", alignment_rate, 0)
    between("fedas", "largest_weight", largest_weight, 0, 1, ends="(]")
    require_list(personal, "fedas: personal")
    if chosen := sorted(set(personal) & set(ALIGNED)):
        raise ValueError(
            f"fedas: personal names {chosen[0]}, whose features are aligned; it must be shared with all sites"
        )
    return Method(
        name="fedas",
        partition=head(personal),
        server=Server(aggregator=FisherMean(largest_weight)),
        local=Local(
            update=Alignment(alignment_rate), measure=measure_fisher, measure_images=None, extras={GROUP: scalar}
        ),
        requires=Requires(kinds=("segmentation",), network=SplitFeatures),
        about=About(
            label="FedAS",
            paper="Yang et al., CVPR 2024",
            idea="The last decoder stays at the hospital; the shared rest is first aligned with what the "
            "site knew before, and sites whose model has learnt more count more.",
            partition="last decoder and classifiers LOCAL, the rest GLOBAL",
            objective="segmentation, after the received base was aligned with the site's last one",
            aggregator="mean weighted by Fisher information",
            secure_sums="no: two sums would do, but here the server sees each site's Fisher information"
            if largest_weight == 1
            else "no: a cap on the weights needs each site's own",
        ),
    )


def head(personal: Sequence[str]) -> Rule:
    """Return the rule that keeps the head at the site; the base whose features are aligned is no part of it."""
    what = "fedas: personal"
    keep = modules(personal, what=what)

    def rule(network: nn.Module) -> TensorRule:
        if both := shared_paths(resolve(network, personal, what), _aligned(network)):
            raise ValueError(f"{what} holds {both[0]}, whose features are aligned; it must be shared with all sites")
        return keep(network)

    return rule


def _aligned(network: nn.Module) -> frozenset[str]:
    return resolve(network, ALIGNED, "fedas")


def measure_fisher(network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition) -> Extras:
    """Return the trace of the Fisher matrix of the trained model on every training frame."""
    return {GROUP: {"value": torch.tensor(fisher_trace(network, batches), dtype=torch.float64)}}


@dataclass(frozen=True)
class Alignment:
    """A site's round: prototypes of the old base, alignment of the received one, training, keeping the base."""

    rate: float

    def __call__(self, work: LocalWork) -> Losses:
        """Train; from the second round of this site on, after an alignment."""
        memory = work.context.memory
        old = below(BASE, memory)
        losses = self._align(work, old) if old and self.rate else {}
        losses |= work.train()
        trained = cut(work.network.state_dict(), work.partition, Role.GLOBAL)
        memory.update(prefixed(BASE, trained))
        return losses

    def _align(self, work: LocalWork, old: Pieces) -> Losses:
        """One pass of SGD over the training frames; dropout is off. What is fixed needs none."""
        network = work.network
        aligned = _aligned(network)
        base = [p for name, p in trained_parameters(network).items() if inside(name, aligned)]
        if not base:
            return {}
        network.eval()
        received = cut(network.state_dict(), work.partition, Role.GLOBAL)
        paste(old, work.partition, network.state_dict())
        prototypes = class_prototypes(network, work.frames())
        paste(received, work.partition, network.state_dict())
        optimizer, losses = torch.optim.SGD(base, lr=self.rate), []
        for batch in work.frames():
            loss = alignment_loss(features(network, batch["image"]), batch["label"], prototypes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        optimizer.zero_grad()
        return {"alignment": sum(losses) / len(losses)}


def features(network: nn.Module, image: Tensor) -> Tensor:
    """Return what the shared decoder gives to its classifier: (B, 128, H/4, W/4)."""
    split = split_features(network, "fedas")
    return split.decoder_global(split.encode(image)[0])


@torch.no_grad()
def class_prototypes(network: nn.Module, batches: Iterable[Batch]) -> dict[int, Tensor]:
    """Return the mean feature vector of the pixels of each class that occurs."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches:
        found = features(network, batch["image"])
        for number, pixels in by_class(found, batch["label"]).items():
            sums[number] = sums.get(number, 0) + pixels.double().sum(0)
            counts[number] = counts.get(number, 0) + len(pixels)
    return {number: (total / counts[number]).to(torch.float32) for number, total in sums.items()}


def alignment_loss(found: Tensor, label: Tensor, prototypes: Mapping[int, Tensor]) -> Tensor:
    """Return the sum over the batch's classes of the mean squared distance of their pixels to the prototype.

    A class without a prototype is skipped.
    """
    losses = [
        F.mse_loss(pixels, prototypes[number].expand_as(pixels))
        for number, pixels in by_class(found, label).items()
        if number in prototypes
    ]
    return torch.stack(losses).sum() if losses else found.sum() * 0


def by_class(found: Tensor, label: Tensor) -> dict[int, Tensor]:
    """Sort feature vectors by the label at their place, which is shrunk to the map by nearest neighbour.

    Args:
        found: (B, F, h, w).
        label: (B, H, W) class ids.

    Returns:
        (pixels, F) of each class that occurs; what is not labelled is left out.
    """
    small = shrink_label(label, found.shape[2:])
    vectors = found.movedim(1, -1)  # (B, h, w, F)
    return {int(number): vectors[small == number] for number in small.unique() if number != IGNORED}
