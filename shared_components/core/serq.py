"""Implement SERQ, FedST's training at the server: learn from synthetic frames without their domain.

Fang et al., "Spatio-temporal representation decoupling and enhancement for federated instrument segmentation in
surgical videos", IEEE TMI 2026 (arXiv 2506.23759), Section 3.3. The available text lacks the formulas of Eqs. 10 to 12
and their constants. All defaults except the 100 batches per round (Section 4.1) are ours.

The representation F (C, h, w) of a frame is the encoder's last feature map (our choice). The pre-trained model's
representation contains instruments and synthetic domain: F_pre = F_ins + D, with the learnable domain descriptor D (C,
h, w). Frames pass only through encoder and decoder, without the temporal layer and the text ("the RSC module").
"""

import copy
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from shared_components.core import serq_equations as equations
from shared_components.core.best_checkpoint import train_to_best
from shared_components.core.method import Aggregation, Batch, Context, LocalWork, Losses, Objective, State, Term
from shared_components.core.partition import Partition, Role, below, cut, everything, partition_network, paste, prefixed

PRETRAINED, AVERAGE, DESCRIPTOR = "pretrained/", "average", "descriptor"  # names in the server's memory
RATE = 0.1  # factor of the job's learning rate (ours): at 1, synthetic frames undo the training on real frames
COMPARED = 64  # maximum number of frames for the mean distances in the report
STILL = 0.002  # warn if the descriptor changes by less than this fraction of its length in a round

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quantification:
    """`Server.update` of FedST, Section 3.3, on the server's synthetic frames.

    After the aggregation of a round, Eq. 10, Eq. 11 and Eq. 12 follow, each over `batches` augmented batches.

    - The pre-trained model is a copy of the network in the first round. It is trained on the synthetic frames with
      early stopping on the server's validation split (`train_to_best`), in slices of all roles. (The paper pre-trains
      before the first round, and the sites start from this model; here a job's `start` sets the initial weights.)
    - Both models are trained with the job's AdamW and weight decay. The paper uses Adam with an unknown learning rate.
    - D starts at zero and takes a step of gradient descent on Eq. 11 with each batch (`Explicit`).

    The memory contains the pre-trained network, D and the running mean. Both optimizers continue from round to round.
    Until D reaches its optimum, the term of `descriptor_weight` shifts all features and reduces their variance: by a
    fifth at 300, not at all at 30.
    """

    batches: int = 100  # number of batches for each equation in a round, as published
    pretraining: int = 1000  # maximum number of batches; all are used without a validation split
    average: float = 0.9  # weight alpha of earlier rounds in the running mean
    descriptor_weight: float = 30.0  # lambda_1; 0 drops the term and keeps D at zero
    representation_weight: float = 300.0  # lambda_2; 0 drops the term; distances are means over elements
    rate: float = RATE  # learning rate at the server, as a factor of the job's
    pretraining_rate: float = 1.0  # the same for pre-training
    descriptor_rate: float = 0.2  # fraction of the distance to its optimum that D moves with each batch

    def __call__(self, work: LocalWork, aggregation: Aggregation) -> tuple[Aggregation, Losses]:
        """Train both models.

        Returns the aggregation with the trained GLOBAL pieces and the report "serq" (and "seconds_pretraining" in the
        first round), and the weighted losses. Raises ValueError if the network has no `encoder` and `decode`, or the
        memory is for frames of another size.
        """
        memory, pretrained = work.context.memory, copy.deepcopy(work.network)
        if stored := below(PRETRAINED, memory):
            pretrained.load_state_dict(stored)
        partition = partition_network(pretrained, everything(Role.GLOBAL))
        began = time.perf_counter()
        losses, report = ({}, {}) if AVERAGE in memory else self._pretrain(work, pretrained, partition)
        seconds = {"seconds_pretraining": time.perf_counter() - began} if report else {}
        # Eq. 10, on separate batches
        seen, mean = equations.mean_features([work.network, pretrained], work.batches(self.batches))
        _refuse_other_size(memory, seen.shape)
        average = equations.moving_average(memory.get(AVERAGE), seen, share=self.average)
        # Eq. 11: the pre-trained model and D
        before = memory[DESCRIPTOR].to(seen) if DESCRIPTOR in memory else torch.zeros_like(seen)
        explicit = equations.Explicit(average, self.descriptor_weight, self.descriptor_rate, mean, before.clone())
        losses |= work.train(
            explicit,
            network=pretrained, partition=partition, iterations=self.batches, key=PRETRAINED[:-1],
            rate=self.rate,
        )  # fmt: skip
        # Eq. 12: the shared model
        descriptor = explicit.descriptor
        synchronised = equations.Representation(pretrained, descriptor, self.representation_weight)
        losses |= train_shared(work, synchronised, self.batches, rate=self.rate)
        memory |= prefixed(PRETRAINED, pretrained.state_dict()) | {AVERAGE: average, DESCRIPTOR: descriptor}
        report |= equations.compared(work.network, pretrained, descriptor, work.frames(COMPARED))
        report["average_square"] = float(average.square().mean())
        report["descriptor_moved"] = equations.moved(before, descriptor)
        if self.descriptor_weight and self.descriptor_rate and report["difference_square"]:
            _warn(report, round=work.context.round)
        return _returned(work, aggregation, {"serq": report, **seconds}), losses

    def _pretrain(self, work: LocalWork, network: nn.Module, partition: Partition) -> tuple[Losses, dict[str, float]]:
        """Train a network on the server's frames with only the segmentation loss; return the losses and the report."""
        frames_only = equations.FramesAlone(network)
        objective, metric = equations.Segmentation("pretraining segmentation"), work.context.task.metrics[0]

        def train(steps: int) -> Losses:
            return work.train(
                objective, network=network, partition=partition, iterations=steps, key=PRETRAINED[:-1],
                rate=self.pretraining_rate,
            )  # fmt: skip

        done = train_to_best(
            network, train, lambda: work.validate(frames_only), metric=metric, budget=self.pretraining,
            accumulate=work.context.accumulate,
        )  # fmt: skip
        if done.best is None and done.steps:
            _LOG.warning(
                "serq: the server's site.yaml has no validation split, so pre-training used all %d batches and has no "
                "validation score; list videos under 'validation'", done.steps,
            )  # fmt: skip
        scores = {"pretraining_before": done.before, "pretraining_best": done.best}
        known = {name: value for name, value in scores.items() if value is not None and math.isfinite(value)}
        return done.losses, {"pretraining_batches": done.steps} | known


@dataclass(frozen=True)
class FineTuning:
    """Alternative in the paper's Fig. 5: fine-tune the averaged model on the synthetic frames."""

    batches: int = 100  # number of batches per round, as for SERQ
    rate: float = RATE  # learning rate at the server, as a factor of the job's

    def __call__(self, work: LocalWork, aggregation: Aggregation) -> tuple[Aggregation, Losses]:
        """Train the GLOBAL slices; results and errors as for :class:`Quantification`, without a report."""
        losses = train_shared(work, equations.Segmentation("global segmentation"), self.batches, rate=self.rate)
        return _returned(work, aggregation, {}), losses


def check_beforehand(network: nn.Module, batch: Batch, context: Context) -> None:
    """Check before the first round that both updates can train; a `Server.check`.

    Raises ValueError if the network has no `encoder` and `decode`, does not take frames of this size, or is completely
    fixed; or if the memory is for frames of another size.
    """
    _, features = equations.Segmentation("segmentation").with_features(network.eval(), batch, context)
    _refuse_other_size(context.memory, features.shape[1:])


def train_shared(work: LocalWork, objective: Objective, iterations: int, *, rate: float = 1.0) -> Losses:
    """Train the GLOBAL slices of the network; all other slices stay bit-equal in every step.

    Unused layers have no gradient, so the optimizer does not change them. The other slices are restored in every step,
    because weight decay would shrink the other rows of a tensor with two roles, and running statistics change with
    every forward pass.
    """
    state = work.network.state_dict()
    other_slices = cut(state, work.partition, Role.MIXED, Role.LOCAL)

    def shared_terms(network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        paste(other_slices, work.partition, state)
        return [replace(term, role=Role.GLOBAL) for term in objective(network, batch, context)]

    losses = work.train(shared_terms, iterations=iterations, rate=rate)
    paste(other_slices, work.partition, state)
    return losses


def _warn(report: dict[str, float], *, round: int) -> None:
    """Warn if the descriptor did not change, or if it increases the distance between the models' features."""
    if report["descriptor_moved"] < STILL:
        _LOG.warning(
            "serq: in round %d the domain descriptor changed only by %.2g of its length; raise descriptor_rate",
            round, report["descriptor_moved"],
        )  # fmt: skip
    if report["distance_square"] >= report["difference_square"]:
        _LOG.warning(
            "serq: in round %d the domain descriptor explains nothing: the mean squared distance of the models' "
            "features is %.3g with it and %.3g without it; lower descriptor_rate or average",
            round, report["distance_square"], report["difference_square"],
        )  # fmt: skip


def _refuse_other_size(memory: State, shape: torch.Size) -> None:
    if below(PRETRAINED, memory) and memory[DESCRIPTOR].shape != shape:
        raise ValueError(
            f"serq: the descriptor in the server's memory is {tuple(memory[DESCRIPTOR].shape)}, but the frames now "
            f"give maps of {tuple(shape)}; set training's height and width as in earlier rounds, or start a new run"
        )


def _returned(work: LocalWork, aggregation: Aggregation, report: dict[str, Any]) -> Aggregation:
    models = replace(aggregation.models, shared=cut(work.network.state_dict(), work.partition, Role.GLOBAL))
    return replace(aggregation, models=models, report=aggregation.report | report)
