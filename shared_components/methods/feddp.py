"""FedDP: Wang et al., Feddp: Dual personalization in federated medical image segmentation, IEEE TMI 2023.

Stage 1 keeps the encoder's queries at the sites. The optional stage 2 freezes all sites' models; each site then
fine-tunes its own model on pixels where the frozen models disagree.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared_components.core.aggregators.mean import in_site_order, mean_pieces, weighted_sum
from shared_components.core.exchange import Aggregation, Models, Profile, State, Update, site_order
from shared_components.core.losses import IGNORED, labelled_mean
from shared_components.core.method import About, Batch, Context, Local, Method, Requires, Server, Term, task_objective
from shared_components.core.partition import Partition, Pieces, Role, Rule, Slice, TensorRule, below
from shared_components.core.ranges import Count, FromZero
from shared_components.networks.parts import fixed_tensors

TEACHERS = "teachers"


def build(
    *, weighting: Literal["equal", "samples"] = "equal", fine_tune_from: Count | None = None, strength: FromZero = 1.0
) -> Method:
    """Return FedDP.

    Args:
        weighting: Weights of the sites in the mean: ``equal`` as released, or by number of ``samples``.
        fine_tune_from: Number of rounds of stage 1; in stage 2 every site receives all sites' whole models. None: only
            stage 1, and queries never leave the site.
        strength: Weight of the disagreement term in stage 2.
    """
    two_stages = fine_tune_from is not None
    return Method(
        partition=queries(Role.MIXED, Role.MIXED) if two_stages else queries(Role.LOCAL, Role.GLOBAL),
        server=Server(aggregator=TwoStages(weighting, fine_tune_from)),
        local=Local(objective=Disagreement(strength) if two_stages else task_objective),
        requires=Requires(kinds=("segmentation",) if two_stages else None, min_rounds=(fine_tune_from or 0) + 1),
        about=About(
            label="FedDP",
            paper="Wang et al., IEEE TMI 2023",
            idea="Each hospital keeps the queries of the encoder's attention, and the other weights are averaged.",
            partition="encoder queries LOCAL, rest GLOBAL (all MIXED with stage 2)",
            objective="task loss; stage 2: + cross-entropy where sites' models disagree",
            aggregator="unweighted mean",
            secure_sums="no: the mean is unweighted, and stage 2 sends whole models to all sites",
        ),
    )


def queries(private: Role, rest: Role) -> Rule:
    """Return the rule that assigns one role to the encoder's query projections and another role to the rest."""

    def rule(network: nn.Module) -> TensorRule:
        if not any(map(is_query, network.state_dict())):
            raise ValueError(f"feddp: {type(network).__name__} has no query projections (encoder.<block>.attn.q)")
        return lambda name, tensor, module: (Slice(private if is_query(name) else rest),)

    return rule


def is_query(name: str) -> bool:
    """Return whether a name is a query projection's: ``encoder.<block>.<number>.attn.q.<weight or bias>``."""
    parts = name.split(".")
    return parts[0] == "encoder" and parts[-3:-1] == ["attn", "q"]


@dataclass(frozen=True)
class TwoStages:
    """Average all tensors except queries in stage 1; in stage 2 every site keeps its model. The state counts rounds."""

    weighting: str
    fine_tune_from: int | None

    def init(self, partition: Partition, models: Models, profiles: Sequence[Profile]) -> State:
        return {} if self.fine_tune_from is None else {"rounds": torch.tensor(0)}

    def apply(self, state: State, partition: Partition, models: Models, updates: Sequence[Update]) -> Aggregation:
        updates = in_site_order(updates)
        if self.fine_tune_from is None:
            return Aggregation(state, Models(self._mean(updates, models.shared), models.mixed))
        done = int(state["rounds"]) + 1
        mixed = {**models.mixed, **{update.site: dict(update.pieces) for update in updates}}
        averages = done <= self.fine_tune_from  # stage 1
        if averages:
            shared = self._mean(updates, {n: v for n, v in updates[0].pieces.items() if not is_query(n)})
            mixed = {site: {**pieces, **shared} for site, pieces in mixed.items()}
        frozen = {n: v for n, v in state.items() if n != "rounds"}
        if done == self.fine_tune_from:  # the last average: its models are the teachers of stage 2
            sites = enumerate(site_order(mixed))
            frozen = {f"{number}/{n}": v for number, site in sites for n, v in mixed[site].items()}
        sent = Models(models.shared, mixed, {TEACHERS: dict(frozen)} if frozen else {})
        return Aggregation({"rounds": torch.tensor(done), **frozen}, sent, {"stage": 1 if averages else 2})

    def _mean(self, updates: Sequence[Update], names: Mapping[str, object]) -> Pieces:
        if self.weighting == "samples":
            return mean_pieces(updates, names)
        share = 1 / len(updates)  # equal weights, as released
        return {n: weighted_sum([u.pieces[n] for u in updates], [share] * len(updates)) for n in names}


@dataclass
class Disagreement:
    """Objective of stage 2: the task's loss, and cross-entropy weighted by the disagreement of the frozen models."""

    strength: float
    _round: int = -1  # round of the cached teachers
    _teachers: list[nn.Module] = field(default_factory=list)

    def __call__(self, network: nn.Module, batch: Batch, context: Context) -> list[Term]:
        if TEACHERS not in context.broadcast:
            return task_objective(network, batch, context)
        if self._round != context.round:
            self._teachers, self._round = teachers(network, context.broadcast[TEACHERS]), context.round
        weight = disagreement([teacher(batch["image"]) for teacher in self._teachers])
        logits = network(batch["image"])
        loss = F.cross_entropy(logits.float(), batch["label"], reduction="none", ignore_index=IGNORED)
        return [
            Term("segmentation", context.task.loss(logits, batch)),
            Term("disagreement", self.strength * labelled_mean(weight * loss, batch["label"])),
        ]


def teachers(network: nn.Module, pieces: Pieces) -> list[nn.Module]:
    """Build one frozen network per site from ``<number>/<tensor>``; FIXED tensors come from the network."""
    state = network.state_dict()
    fixed = {name: state[name] for name in fixed_tensors(network)}
    built = []
    for number in sorted({int(name.partition("/")[0]) for name in pieces}):
        teacher = copy.deepcopy(network).eval().requires_grad_(False)
        teacher.load_state_dict(fixed | below(f"{number}/", pieces))
        built.append(teacher)
    return built


def disagreement(logits: Sequence[Tensor]) -> Tensor:
    """Return the softmax's standard deviation over models, averaged over classes, relative to the image's maximum.

    K logits (B, C, H, W) -> (B, H, W) in [0, 1]; 0 everywhere if all models agree. The mean over classes generalises
    the paper, which has one foreground class.
    """
    probability = torch.stack([value.float().softmax(1) for value in logits])  # (K, B, C, H, W)
    spread = probability.std(0, correction=0).mean(1)  # (B, C, H, W) -> (B, H, W)
    return spread / spread.amax((1, 2), keepdim=True).clamp_min(1e-12)
