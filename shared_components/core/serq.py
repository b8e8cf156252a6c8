"""SERQ, the server's part of FedST: what synthetic frames teach the shared model, without their domain.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.3. The text at hand has lost the formulas of Eqs. 10 to
12 and their constants: what stands here is read from the words around them, and every default but the 100 batches of a
round (Section 4.1) is ours.

A frame's representation F (C, h, w) is the encoder's last map, ours. That of the pre-trained model is the instruments'
and the synthetic domain's together, F_pre = F_ins + D; D (C, h, w) is the learnable descriptor of the domain. Frames
pass encoder and decoder alone: temporal layer and a site's text ("the RSC module") are ignored. All frames are the
server's own synthetic ones.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from shared_components.common.arguments import between
from shared_components.core.best_checkpoint import train_to_best
from shared_components.core.method import Aggregation, Batch, Context, LocalWork, Losses, Objective, State, Term
from shared_components.core.partition import Partition, Role, below, cut, everything, partition_network, paste, prefixed
from shared_components.core.serq_equations import (
    Explicit,
    FramesAlone,
    Representation,
    Segmentation,
    compared,
    mean_features,
    moved,
    moving_average,
)

PRETRAINED, AVERAGE, DESCRIPTOR = "pretrained/", "average", "descriptor"  # in the server's memory
RATE = 0.1  # of the job's learning rate: at all of it synthetic frames undo what real ones have taught; ours
COMPARED = 64  # frames at most, of which the report's distances are means
STILL = 0.002  # a descriptor that moves by less of its length in a round is said to stand still

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quantification:
    """A method's `server_update`: Section 3.3, on the server's own synthetic frames.

    In a round the global model has been averaged already; then come Eq. 10, Eq. 11 and Eq. 12, each over `batches`
    augmented batches of its own. The pre-trained model begins, at the first round, as a copy of what the network holds
    then: the first average in its GLOBAL slices, the start's weights elsewhere. It is trained on the synthetic frames
    until its score on the server's validation split stops rising (`train_to_best`). (The paper pre-trains before the
    first round and lets the sites begin with it; here a job's `start` says what they begin with.) It is the
    server's own, so that slices of every role are trained in it. Both models are trained by the job's AdamW, with
    its weight decay; the paper says Adam, at a rate of the server's own that is lost. D begins at zero and takes a step
    of gradient descent on Eq. 11 with each batch, at a rate of its own (`Explicit`).

    The memory keeps the pre-trained network, D and the running mean; both models' optimizers go on from round
    to round.

    Attributes:
        batches: Of each of the three in a round; 100 as published.
        pretraining: Batches of segmentation alone that the copy is trained on, at most, before its first round; all of
            them where the server's site.yaml has no validation split.
        average: alpha, the share of earlier rounds in the running mean.
        descriptor_weight: lambda_1; 0 leaves the term out, and D at zero. Until D has reached its optimum the term
            pulls all features one way, which takes of their variance: a fifth at 300, nothing at 30.
        representation_weight: lambda_2; 0 leaves the term out. Distances are means over elements.
        rate: The server's learning rate in a round, as a multiple of the job's.
        pretraining_rate: That of the pre-training.
        descriptor_rate: Share of its distance from the optimum that D takes with each batch; 0 keeps it at zero.
        who: Begins the sentence of a refusal.

    Raises:
        ValueError: An argument is out of its range; one sentence.
    """

    batches: int = 100
    pretraining: int = 1000
    average: float = 0.9
    descriptor_weight: float = 30.0
    representation_weight: float = 300.0
    rate: float = RATE
    pretraining_rate: float = 1.0
    descriptor_rate: float = 0.2
    who: str = "serq"

    def __post_init__(self) -> None:
        between(self.who, "batches", self.batches, 1, whole=True)
        between(self.who, "pretraining", self.pretraining, 0, whole=True)
        between(self.who, "average", self.average, 0, 1, ends="[)")
        for name in ("descriptor_weight", "representation_weight"):
            between(self.who, name, getattr(self, name), 0)
        for name in ("rate", "pretraining_rate"):
            between(self.who, name, getattr(self, name), 0, ends="(]")
        between(self.who, "descriptor_rate", self.descriptor_rate, 0, 1)

    def __call__(self, work: LocalWork, aggregation: Aggregation) -> tuple[Aggregation, Losses]:
        """Train both models.

        Returns:
            The aggregation with the trained GLOBAL pieces, a report "serq" and, where it pre-trains,
            "seconds_pretraining"; the losses, weighted as they are minimised.

        Raises:
            ValueError: The network has no `encoder` and `decode`, or the memory is of frames of another size.
        """
        memory = work.context.memory
        pretrained, partition = _pretrained(work)
        began = time.perf_counter()
        losses, report = ({}, {}) if AVERAGE in memory else self._pretrain(work, pretrained, partition)
        seconds = {"seconds_pretraining": time.perf_counter() - began} if report else {}
        # Eq. 10, on frames of their own
        seen, mean = mean_features([work.network, pretrained], work.batches(self.batches))
        _refuse_other_size(memory, seen.shape)
        average = moving_average(memory.get(AVERAGE), seen, share=self.average)
        # Eq. 11: the pre-trained model and D
        before = memory[DESCRIPTOR].to(seen) if DESCRIPTOR in memory else torch.zeros_like(seen)
        explicit = Explicit(average, self.descriptor_weight, self.descriptor_rate, mean, before.clone())
        losses |= work.train(
            explicit,
            network=pretrained, partition=partition, iterations=self.batches, key=PRETRAINED[:-1],
            rate=self.rate,
        )  # fmt: skip
        # Eq. 12: the shared model
        descriptor = explicit.descriptor
        synchronised = Representation(pretrained, descriptor, self.representation_weight)
        losses |= train_shared(work, synchronised, self.batches, rate=self.rate)
        memory |= prefixed(PRETRAINED, pretrained.state_dict()) | {AVERAGE: average, DESCRIPTOR: descriptor}
        report |= compared(work.network, pretrained, descriptor, work.frames(COMPARED))
        report |= {"average_square": float(average.square().mean()), "descriptor_moved": moved(before, descriptor)}
        if self.descriptor_weight and self.descriptor_rate and report["difference_square"]:
            _warn(report, round=work.context.round)
        return _returned(work, aggregation, {"serq": report, **seconds}), losses

    def _pretrain(self, work: LocalWork, network: nn.Module, partition: Partition) -> tuple[Losses, dict[str, float]]:
        """Train a network on the server's frames by segmentation alone; return the losses and what is reported."""
        shown = FramesAlone(network)
        objective, metric = Segmentation("pretraining segmentation"), work.context.task.metrics[0]

        def train(steps: int) -> Losses:
            return work.train(
                objective, network=network, partition=partition, iterations=steps, key=PRETRAINED[:-1],
                rate=self.pretraining_rate,
            )  # fmt: skip

        done = train_to_best(
            network, train, lambda: work.validate(shown), metric=metric, budget=self.pretraining,
            accumulate=work.context.accumulate,
        )  # fmt: skip
        if done.best is None and done.steps:
            _LOG.warning(
                "%s: the server's site.yaml has no validation split, so that pre-training took all of its %d batches "
                "and nobody knows how good it is; list videos under 'validation'", self.who, done.steps,
            )  # fmt: skip
        scores = {"pretraining_before": done.before, "pretraining_best": done.best}
        known = {name: value for name, value in scores.items() if value is not None and math.isfinite(value)}
        return done.losses, {"pretraining_batches": done.steps} | known


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


# ---- parts of an update


def check_beforehand(network: nn.Module, batch: Batch, context: Context) -> None:
    """A method's ``server_check``: refuse before the first round what either update could not train.

    Raises:
        ValueError: The network has no `encoder` and `decode` or does not take frames of this size, all of them is
            fixed, or the memory is of frames of another size.
    """
    _, features = Segmentation("segmentation").with_features(network.eval(), batch, context)
    _refuse_other_size(context.memory, features.shape[1:])


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


def _pretrained(work: LocalWork) -> tuple[nn.Module, Partition]:
    """Return the pre-trained network of the memory, or a copy of the shared one, and a partition that trains it."""
    network = copy.deepcopy(work.network)
    if stored := below(PRETRAINED, work.context.memory):
        network.load_state_dict(stored)
    return network, partition_network(network, everything(Role.GLOBAL))


def _warn(report: dict[str, float], *, round: int) -> None:
    """Warn of a descriptor that has learnt nothing, or that adds to the distance which it should explain."""
    if report["descriptor_moved"] < STILL:
        _LOG.warning(
            "serq: in round %d the domain descriptor stood still (it moved by %.2g of its length); raise "
            "descriptor_rate", round, report["descriptor_moved"],
        )  # fmt: skip
    if report["distance_square"] >= report["difference_square"]:
        _LOG.warning(
            "serq: in round %d the domain descriptor explains nothing: with it the two models' features are %.3g apart "
            "(mean square), without it %.3g; lower descriptor_rate or average",
            round, report["distance_square"], report["difference_square"],
        )  # fmt: skip


def _refuse_other_size(memory: State, shape: torch.Size) -> None:
    if not below(PRETRAINED, memory):
        return
    if memory[DESCRIPTOR].shape != shape:
        raise ValueError(
            f"serq: the descriptor in the server's memory is {tuple(memory[DESCRIPTOR].shape)}, and the frames now "
            f"give maps of {tuple(shape)}; give training the height and width of the earlier rounds, or start a new run"
        )


def _returned(work: LocalWork, aggregation: Aggregation, report: dict[str, Any]) -> Aggregation:
    """Return the aggregation with the GLOBAL pieces that the network holds now, and more to report."""
    shared = cut(work.network.state_dict(), work.partition, Role.GLOBAL)
    models = replace(aggregation.models, shared=shared)
    return replace(aggregation, models=models, report=aggregation.report | report)
