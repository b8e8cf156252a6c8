"""SERQ, the server's part of FedST: what synthetic frames teach the shared model, without their domain.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.3. The text at hand has lost the formulas of Eqs. 10 to
12 and their constants: what stands here is read from the words around them, and every default but the 100 batches of a
round (Section 4.1) is ours.

A frame's representation F (C, h, w) is the encoder's last map, ours. That of the pre-trained model is the instruments'
and the synthetic domain's together, F_pre = F_ins + D; D (C, h, w) is the learnable descriptor of the domain. Frames
pass encoder and decoder alone: temporal layer and a site's text ("the RSC module") are ignored.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shared_components.arguments import between
from shared_components.method import Aggregation, Batch, Context, LocalWork, Losses, Objective, State, Term
from shared_components.partition import (
    Partition,
    Role,
    below,
    cut,
    everything,
    partition_network,
    paste,
    prefixed,
)
from shared_components.two_paths import encodes

PRETRAINED, AVERAGE = "pretrained/", "average"  # in the server's memory
DESCRIPTOR = "descriptor"  # D, a parameter of the pre-trained network, so that one optimizer has both
RATE = 0.1  # of the job's learning rate: at all of it synthetic frames undo what real ones have taught; ours
SPREAD = 0.02  # standard deviation of D before the first round, "initialized randomly"; ours


@dataclass(frozen=True)
class Quantification:
    """A method's `server_update`: Section 3.3, on the server's own synthetic frames.

    In a round the global model has been averaged already; then come Eq. 10, Eq. 11 and Eq. 12, each over `batches`
    augmented batches of its own. The pre-trained model begins, at the first round, as a copy of what the network holds
    then: the first average in its GLOBAL slices, the start's weights elsewhere. (The paper pre-trains before the
    first round and lets the sites begin with it; here a job's `start` says what they begin with.) It is the
    server's own, so that slices of every role are trained in it. Both models and D are trained by the job's AdamW, with
    its weight decay and `rate` of its learning rate; the paper says Adam, at a rate of the server's own that is lost.

    The memory keeps the pre-trained network with D, and the running mean; both models' optimizers go on from round
    to round.

    Attributes:
        batches: Of each of the three in a round; 100 as published.
        pretraining: Batches of segmentation alone that the copy is trained on before its first round.
        average: alpha, the share of earlier rounds in the running mean.
        descriptor_weight: lambda_1; 0 leaves the term out. Distances are means over elements, about 0.001 of a trained
            encoder: 300 lets them weigh about as much as segmentation.
        representation_weight: lambda_2; likewise.
        rate: The server's learning rate, as a multiple of the job's.
        who: Begins the sentence of a refusal.

    Raises:
        ValueError: An argument is out of its range; one sentence.
    """

    batches: int = 100
    pretraining: int = 100
    average: float = 0.9
    descriptor_weight: float = 300.0
    representation_weight: float = 300.0
    rate: float = RATE
    who: str = "serq"

    def __post_init__(self) -> None:
        between(self.who, "batches", self.batches, 1, whole=True)
        between(self.who, "pretraining", self.pretraining, 0, whole=True)
        between(self.who, "average", self.average, 0, 1, ends="[)")
        between(self.who, "descriptor_weight", self.descriptor_weight, 0)
        between(self.who, "representation_weight", self.representation_weight, 0)
        between(self.who, "rate", self.rate, 0, ends="(]")

    def __call__(self, work: LocalWork, aggregation: Aggregation) -> tuple[Aggregation, Losses]:
        """Train both models.

        Returns:
            The aggregation with the trained GLOBAL pieces and a report "serq"; the losses, weighted as they are
            minimised.

        Raises:
            ValueError: The network has no `encoder` and `decode`, or the memory is of frames of another size.
        """
        memory = work.context.memory
        seen = mean_features(work.network, work.batches(self.batches))
        pretrained, partition = _pretrained(work, seen.shape)
        losses: Losses = {}
        if AVERAGE not in memory and self.pretraining:
            losses |= work.train(
                Segmentation("pretraining segmentation"),
                network=pretrained, partition=partition, iterations=self.pretraining, key=PRETRAINED[:-1],
                rate=self.rate,
            )  # fmt: skip
        average = moving_average(memory.get(AVERAGE), seen, share=self.average)
        losses |= work.train(
            Descriptor(average, self.descriptor_weight),
            network=pretrained, partition=partition, iterations=self.batches, key=PRETRAINED[:-1],
            rate=self.rate,
        )  # fmt: skip
        losses |= train_shared(
            work, Representation(pretrained, self.representation_weight), self.batches, rate=self.rate
        )
        memory |= prefixed(PRETRAINED, pretrained.state_dict()) | {AVERAGE: average}
        return _returned(work, aggregation, {"serq": self._report(pretrained, average, losses)}), losses

    def _report(self, pretrained: nn.Module, average: Tensor, losses: Losses) -> dict[str, float]:
        """Return the norms of D and of the running mean, and the mean distances, unweighted."""
        norm, of_average = float(pretrained.get_parameter(DESCRIPTOR).detach().norm()), float(average.norm())
        weights = {"descriptor": self.descriptor_weight, "representation": self.representation_weight}
        distances = {f"{name}_distance": losses[name] / value for name, value in weights.items() if value}
        relative = {"descriptor_to_average": norm / of_average} if of_average else {}
        return {"descriptor_norm": norm, "average_norm": of_average} | relative | distances


@dataclass(frozen=True)
class FineTuning:
    """The alternative of the paper's Fig. 5: the averaged model is fine-tuned on the synthetic frames themselves.

    Attributes:
        batches: In a round; 100, as SERQ has.
        rate: The server's learning rate, as a multiple of the job's.
        who: Begins the sentence of a refusal.

    Raises:
        ValueError: There is less than one batch, or the rate is not above 0.
    """

    batches: int = 100
    rate: float = RATE
    who: str = "fine-tuning at the server"

    def __post_init__(self) -> None:
        between(self.who, "batches", self.batches, 1, whole=True)
        between(self.who, "rate", self.rate, 0, ends="(]")

    def __call__(self, work: LocalWork, aggregation: Aggregation) -> tuple[Aggregation, Losses]:
        """Train the GLOBAL slices; returns and errors as those of :class:`Quantification`, without a report."""
        losses = train_shared(work, Segmentation("global segmentation"), self.batches, rate=self.rate)
        return _returned(work, aggregation, {}), losses


# ---- the equations


def moving_average(average: Tensor | None, current: Tensor, *, share: float) -> Tensor:
    """Return the running mean map, Eq. 10: alpha Fbar_(r-1) + (1 - alpha) F_r.

    What is averaged is, ours, the mean over the round's frames, so that frames are compared with frames.

    Args:
        average: Fbar_(r-1), (C, h, w); None in the first round, whose mean is the current one.
        current: Mean over the round's frames of the global model's representations, (C, h, w).
        share: alpha.
    """
    return current if average is None else share * average.to(current) + (1 - share) * current


def descriptor_distance(pretrained: Tensor, descriptor: Tensor, average: Tensor) -> Tensor:
    """Return the distance in Eq. 11, ||mean_b F_pre(x_b) - D - Fbar||^2 / N.

    Args:
        pretrained: F_pre of a batch, (B, C, h, w).
        descriptor: D, (C, h, w), of N elements.
        average: Fbar, (C, h, w).
    """
    return (pretrained.mean(0) - descriptor - average).square().mean()


def representation_distance(features: Tensor, pretrained: Tensor, descriptor: Tensor) -> Tensor:
    """Return the distance in Eq. 12, the mean over frames of ||F_g(x_b) - (F_pre(x_b) - D)||^2 / N.

    Args:
        features: F_g of a batch, (B, C, h, w).
        pretrained: F_pre of the same frames, (B, C, h, w).
        descriptor: D, (C, h, w), of N elements.
    """
    return (features - (pretrained - descriptor)).square().mean()


# ---- the objectives


@dataclass(frozen=True)
class Segmentation:
    """L_seg: the task's loss of what a frame alone gives.

    Attributes:
        name: Of the term.
    """

    name: str

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        return self.with_features(network, batch, context)[0]

    def with_features(self, network: nn.Module, batch: Batch, context: Context) -> tuple[list[Term], Tensor]:
        """Return the term, and the representations (B, C, h, w) in float32."""
        maps = encodes(network, "serq").encoder(last_frame(batch))
        loss = context.task.loss(encodes(network, "serq").decode(maps), batch)
        if not loss.requires_grad:
            raise ValueError(
                "serq: training.fixed names all that predicts from a frame alone, so that the server has nothing to "
                "train; name fewer parts"
            )
        return [Term(self.name, loss)], maps[-1].float()


@dataclass(frozen=True)
class Descriptor:
    """Eq. 11, of the pre-trained network and D; what the global model says is fixed."""

    average: Tensor
    weight: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms, features = Segmentation("pretrained segmentation").with_features(network, batch, context)
        if self.weight == 0:
            return terms
        distance = descriptor_distance(features, network.get_parameter(DESCRIPTOR), self.average)
        return [*terms, Term("descriptor", self.weight * distance)]


@dataclass(frozen=True)
class Representation:
    """Eq. 12, of the global network; the pre-trained one and D are fixed, dropout off."""

    pretrained: nn.Module
    weight: float

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        terms, features = Segmentation("global segmentation").with_features(network, batch, context)
        if self.weight == 0:
            return terms
        target = representations(self.pretrained, batch)
        descriptor = self.pretrained.get_parameter(DESCRIPTOR).detach()
        return [
            *terms,
            Term("representation", self.weight * representation_distance(features, target, descriptor)),
        ]


# ---- the networks


def last_frame(batch: Batch) -> Tensor:
    """Return the frames that the labels belong to: (B, 3, H, W) of those, or of clips (B, T, 3, H, W)."""
    image = batch["image"]
    return image if image.dim() == 4 else image[:, -1]


@torch.no_grad()
def representations(network: nn.Module, batch: Batch) -> Tensor:
    """Return F of a batch, (B, C, h, w) in float32; dropout is off and nothing is differentiated."""
    return encodes(network.eval(), "serq").encoder(last_frame(batch))[-1].float()


def mean_features(network: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """Return the mean of F over all frames of some batches, (C, h, w) in float32, summed in float64."""
    total, frames = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        features = representations(network, batch)
        total, frames = total.to(features.device) + features.double().sum(0), frames + len(features)
    return (total / frames).float()


def check_beforehand(network: nn.Module, batch: Batch, context: Context) -> None:
    """A method's ``server_check``: refuse before the first round what either update could not train.

    Raises:
        ValueError: The network has no `encoder` and `decode` or does not take frames of this size, all of them is
            fixed, or the memory is of frames of another size.
    """
    _, features = Segmentation("segmentation").with_features(network.eval(), batch, context)
    _refuse_other_size(below(PRETRAINED, context.memory), features.shape[1:])


def train_shared(work: LocalWork, objective: Objective, iterations: int, *, rate: float = 1.0) -> Losses:
    """Train the GLOBAL slices of the network; whatever else it holds is bit-equal afterwards, and in every step.

    What frames alone do not pass has no gradient, and the optimizer leaves it. But the gradient of a tensor of two
    roles is zero in the rows that are not GLOBAL, which weight decay would shrink, and running statistics move with
    every forward pass: hence those are put back.
    """
    state = work.network.state_dict()
    held = cut(state, work.partition, Role.MIXED, Role.LOCAL)

    def of_shared(network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        paste(held, work.partition, state)
        return [replace(term, role=Role.GLOBAL) for term in objective(network, batch, context)]

    losses = work.train(of_shared, iterations=iterations, rate=rate)
    paste(held, work.partition, state)
    return losses


def _pretrained(work: LocalWork, shape: torch.Size) -> tuple[nn.Module, Partition]:
    """Return the pre-trained network with D as the memory has it, or a new one, and a partition that trains both."""
    kept = below(PRETRAINED, work.context.memory)
    _refuse_other_size(kept, shape)
    network = copy.deepcopy(work.network)
    drawn = SPREAD * torch.randn(shape, generator=work.context.generator) if not kept else kept[DESCRIPTOR]
    network.register_parameter(DESCRIPTOR, nn.Parameter(drawn.to(next(network.parameters()).device)))
    if kept:
        network.load_state_dict(kept)
    return network, partition_network(network, everything(Role.GLOBAL))


def _refuse_other_size(kept: State, shape: torch.Size) -> None:
    if kept and kept[DESCRIPTOR].shape != shape:
        raise ValueError(
            f"serq: the descriptor in the server's memory is {tuple(kept[DESCRIPTOR].shape)}, and the frames now "
            f"give maps of {tuple(shape)}; give training the height and width of the earlier rounds, or start a new run"
        )


def _returned(work: LocalWork, aggregation: Aggregation, report: dict[str, dict[str, float]]) -> Aggregation:
    """Return the aggregation with the GLOBAL pieces that the network holds now, and more to report."""
    shared = cut(work.network.state_dict(), work.partition, Role.GLOBAL)
    models = replace(aggregation.models, shared=shared)
    return replace(aggregation, models=models, report=aggregation.report | report)
