"""CD2-pFed: Shen et al., CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in
Federated Learning, CVPR 2022."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Batch, Context, Local, Method, Requires, Server, Term, task_objective
from shared_components.core.partition import Role, Rule, Slice, TensorRule
from shared_components.core.ranges import Count, FromZero, ShareBelowOne
from shared_components.networks.parts import inside, resolve

HEADS = ("head",)


def build(*, personal_share: ShareBelowOne = 0.5, strength: FromZero = 1.0, ramp_rounds: Count = 10) -> Method:
    """Return CD2-pFed: the first output channels of every layer are shared, the last channels are private.

    ``personal_share`` of each layer's output channels never leaves the site. ``strength`` is the weight of the cyclic
    distillation after ``ramp_rounds``, in which it grows (`ramp`); 0 disables it.
    """
    return Method(
        partition=channels(personal_share),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        local=Local(objective=CyclicDistillation(personal_share, strength, ramp_rounds)),
        requires=Requires(kinds=("segmentation",)),
        about=About(
            label="CD2-pFed",
            paper="Shen et al., CVPR 2022, arXiv 2204.03880",
            idea="Half of each layer's channels stay at the hospital, and both halves distil each other in training.",
            partition="last half of each layer's output channels LOCAL, rest and classifiers GLOBAL",
            objective="segmentation loss; mutual distillation of LOCAL and GLOBAL channels",
            aggregator="sample-weighted mean",
            secure_sums="yes: the server needs only the weighted sum",
        ),
    )


def channel_slices(name: str, tensor: Tensor, share: float, heads: frozenset[str]) -> list[Slice]:
    """Return the slices of a tensor's rows (output channels): first shared rows, then private rows.

    All rows of a classifier are shared, since they are classes. A joint tensor of queries, keys and values is split in
    each of its parts. Split once, all keys would be shared and all values private, and neither sub-model could attend.
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    parts = 3 if ".qkv." in name or ".in_proj_" in name else 2 if ".kv." in name else 1  # rows are [Q, K, V], [K, V]
    width = rows // parts
    private = int(share * width)
    if not private or inside(name, heads):
        return [Slice(Role.GLOBAL)]
    slices = []
    for start in range(0, rows, width):
        middle, stop = start + width - private, start + width
        slices += [Slice(Role.GLOBAL, start, middle), Slice(Role.LOCAL, middle, stop)]
    return slices


def channels(share: float) -> Rule:
    """Return the rule that splits every tensor except the classifiers' along its output channels."""

    def rule(network: nn.Module) -> TensorRule:
        heads = resolve(network, HEADS, "cd2_pfed")
        return lambda name, tensor, module: channel_slices(name, tensor, share, heads)

    return rule


@dataclass(frozen=True)
class CyclicDistillation:
    """Objective: the whole network's task loss, and the cyclic distillation between the two sub-models."""

    share: float
    strength: float
    ramp_rounds: int

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        image = batch["image"]
        terms = task_objective(network, batch, context)
        weight = self.strength * ramp(context.round, self.ramp_rounds)
        if weight == 0 or self.share == 0:  # saves two forward passes
            return terms
        common, private = (self._part(network, image, private=p) for p in (False, True))
        return [*terms, Term("distillation", weight * mutual_divergence(common, private))]

    def _part(self, network: nn.Module, image: Tensor, *, private: bool) -> Tensor:
        """Predict with only the shared or private output channels; BatchNorm updates copies of its statistics."""
        weights = {name: buffer.clone() for name, buffer in network.named_buffers()}
        heads = resolve(network, HEADS, "cd2_pfed")
        for name, parameter in network.named_parameters():
            slices = channel_slices(name, parameter, self.share, heads)
            if not parameter.requires_grad or len(slices) == 1:
                weights[name] = parameter
                continue
            mask = parameter.new_zeros(parameter.shape[0], *(1,) * (parameter.dim() - 1))  # (rows, 1, ...)
            for rows in slices:
                mask[rows.start : rows.stop] = float((rows.role is Role.LOCAL) == private)
            weights[name] = parameter * mask
        return functional_call(network, weights, (image,))


def ramp(round: int, rounds: int) -> float:
    """Return the ramp of the distillation's weight: exp(-5 (1 - t)^2), where t = round / rounds, at most 1."""
    return math.exp(-5 * (1 - min(round / rounds, 1.0)) ** 2)


def mutual_divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean over pixels of both Kullback-Leibler divergences of logits (B, C, H, W); teachers are fixed."""
    logs = [value.float().log_softmax(1) for value in (one, other)]
    first, second = (
        F.kl_div(student, teacher.detach(), log_target=True, reduction="none").sum(1).mean()
        for student, teacher in (logs, logs[::-1])
    )
    return (first + second) / 2
