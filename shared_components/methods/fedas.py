"""FedAS: Yang et al., Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.

A site first aligns the features of the received base with its previous base, then trains. The server weighs sites by
Fisher information (core/aggregators/site_weights.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.core.aggregators.site_weights import GROUP, FisherMean, fisher_trace
from shared_components.core.exchange import scalar
from shared_components.core.losses import IGNORED, shrink_label
from shared_components.core.method import About, Batch, Context, Local, LocalWork, Losses, Method, Requires, Server
from shared_components.core.optimizers import SGD
from shared_components.core.partition import Partition, Pieces, Role, Rule, TensorRule, below, cut, paste, prefixed
from shared_components.core.partition_rules import HEAD, modules
from shared_components.core.ranges import FromZero, ShareAboveZero, SomeNames
from shared_components.networks.parts import inside, resolve, shared_paths, trained_parameters
from shared_components.networks.protocols import SplitFeatures, split_features

BASE = "base/"  # memory prefix of the base that this site trained last
CAPPED = "no: a cap on the weights needs each site's Fisher information"
ALIGNED = ("encoder", "decoder_global")  # parts that compute the features


def build(
    *, personal: SomeNames = HEAD, alignment_rate: FromZero = 0.01, largest_weight: ShareAboveZero = 1.0
) -> Method:
    """Return FedAS: a shared base aligned with the ``personal`` head, and a mean weighted by Fisher information.

    ``alignment_rate`` is for the alignment by plain SGD; 0 disables it. ``largest_weight`` caps a site's weight.
    """
    about = About(
        label="FedAS",
        paper="Yang et al., CVPR 2024",
        idea="Hospitals keep the last decoder and align shared weights with it; more informative sites count more.",
        partition="last decoder and classifiers LOCAL, rest GLOBAL",
        objective="segmentation loss, after aligning the received base with the site's last base",
        aggregator="mean weighted by Fisher information",
        secure_sums="no: the server uses each site's Fisher information"
        if largest_weight == 1
        else "no: a cap on the weights needs each site's Fisher information",
    )
    return Method(
        partition=head(personal),
        server=Server(aggregator=FisherMean(largest_weight)),
        local=Local(
            update=Alignment(alignment_rate), measure=measure_fisher, measure_images=None, extras={GROUP: scalar}
        ),
        requires=Requires(kinds=("segmentation",), network=SplitFeatures),
        about=about if largest_weight == 1 else replace(about, secure_sums=CAPPED),
    )


def head(personal: Sequence[str]) -> Rule:
    """Return the rule that keeps the head at the site; ValueError if the head contains a part of the aligned base."""
    what = "fedas: personal"
    keep = modules(personal, what=what)

    def rule(network: nn.Module) -> TensorRule:
        if both := shared_paths(resolve(network, personal, what), resolve(network, ALIGNED, "fedas")):
            raise ValueError(f"{what} contains {both[0]}, whose features are aligned; remove it from the head")
        return keep(network)

    return rule


def measure_fisher(
    network: nn.Module, batches: Iterable[Batch], context: Context, partition: Partition
) -> dict[str, Pieces]:
    """Return the trace of the Fisher matrix of the trained model over the training frames."""
    return {GROUP: {"value": torch.tensor(fisher_trace(network, batches), dtype=torch.float64)}}


@dataclass(frozen=True)
class Alignment:
    """Align the received base, train, and remember the base; the site's first round has no alignment."""

    rate: float

    def __call__(self, work: LocalWork) -> Losses:
        memory = work.context.memory
        old = below(BASE, memory)
        losses = self._align(work, old) if old and self.rate else {}
        losses |= work.train()
        memory.update(prefixed(BASE, cut(work.network.state_dict(), work.partition, Role.GLOBAL)))
        return losses

    def _align(self, work: LocalWork, old: Pieces) -> Losses:
        """Align the base by one epoch of SGD without dropout; skip a frozen base."""
        network = work.network
        aligned = resolve(network, ALIGNED, "fedas")
        base = [p for name, p in trained_parameters(network).items() if inside(name, aligned)]
        if not base:
            return {}
        network.eval()
        received = cut(network.state_dict(), work.partition, Role.GLOBAL)
        paste(old, work.partition, network.state_dict())
        prototypes = class_prototypes(network, work.frames())  # from the base that this site trained last
        paste(received, work.partition, network.state_dict())
        optimizer, losses = SGD(base, lr=self.rate), []  # the head is not aligned
        for batch in work.frames():
            loss = alignment_loss(features(network, batch["image"]), batch["label"], prototypes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        optimizer.zero_grad()
        return {"alignment": sum(losses) / len(losses)}


def features(network: nn.Module, image: Tensor) -> Tensor:
    """Return the input of the shared classifier: (B, 3, H, W) -> (B, 128, H/4, W/4)."""
    split = split_features(network, "fedas")
    return split.decoder_global(split.encode(image)[0])


@torch.no_grad()
def class_prototypes(network: nn.Module, batches: Iterable[Batch]) -> dict[int, Tensor]:
    """Return the mean feature vector (F,) of each class that occurs."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches:
        for number, pixels in by_class(features(network, batch["image"]), batch["label"]).items():
            sums[number] = sums.get(number, 0) + pixels.double().sum(0)  # (pixels, F) -> (F,)
            counts[number] = counts.get(number, 0) + len(pixels)
    return {number: (total / counts[number]).to(torch.float32) for number, total in sums.items()}


def alignment_loss(feature_map: Tensor, label: Tensor, prototypes: Mapping[int, Tensor]) -> Tensor:
    """Return the mean squared distance of pixels to their class's prototype, summed over classes with a prototype."""
    losses = [
        F.mse_loss(pixels, prototypes[number].expand_as(pixels))
        for number, pixels in by_class(feature_map, label).items()
        if number in prototypes
    ]
    return torch.stack(losses).sum() if losses else feature_map.sum() * 0  # 0 with a gradient


def by_class(feature_map: Tensor, label: Tensor) -> dict[int, Tensor]:
    """Group features (B, F, h, w) by resized class ids (B, H, W): (labelled pixels, F) per class."""
    small = shrink_label(label, feature_map.shape[2:])  # (B, H, W) -> (B, h, w)
    vectors = feature_map.movedim(1, -1)  # (B, F, h, w) -> (B, h, w, F)
    return {int(number): vectors[small == number] for number in small.unique() if number != IGNORED}
