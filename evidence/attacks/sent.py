"""A site's round with its update and its frames, for attacks and their scores."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shared_components.core import training as local
from shared_components.core.method import Batch, Method
from shared_components.core.partition import Partition, Role, cut, partition_network, paste
from shared_components.core.task import Task
from shared_components.core.training_settings import Training
from shared_components.data.dataset import SampleDataset
from shared_components.federation.setup.local_round import LocalRound

State = dict[str, Tensor]


@dataclass(frozen=True)
class Sent:
    """Record of a site's round.

    Attributes:
        before: State of the network as received.
        after: State after the local steps; the site sends its GLOBAL and MIXED slices.
        batches: Augmented batches of the steps, in order.
    """

    before: nn.Module
    after: State
    batches: list[Batch]
    partition: Partition
    task: Task
    training: Training

    def masks(self, *roles: Role) -> State:
        """Return a mask of every trained parameter: 1 at elements with one of the roles, else 0."""
        ones = {name: torch.ones_like(value) for name, value in self.after.items()}
        state = {name: torch.zeros_like(value) for name, value in self.after.items()}
        paste(cut(ones, self.partition, *roles), self.partition, state)
        return {name: state[name] for name, _ in self.before.named_parameters()}

    def direction(self) -> State:
        """Return AdamW's step of every parameter against the gradient, without weight decay.

        After one step from a fresh optimizer it is nearly the gradient's sign; after several steps it is their sum.
        """
        rate, decay = self.training.learning_rate, self.training.weight_decay
        kept = (1 - rate * decay) ** len(self.batches)
        start = dict(self.before.named_parameters())
        return {name: (start[name].detach() * kept - self.after[name]) / rate for name in start}


def train_round(
    network: nn.Module,
    method: Method,
    task: Task,
    dataset: SampleDataset,
    training: Training,
    *,
    round: int = 0,
    site: int = 0,
) -> Sent:
    """Run a site's local round like its runner, and record it; the given network is not changed."""
    before, network = copy.deepcopy(network), copy.deepcopy(network)
    partition = partition_network(network, method.partition)
    seen: list[Batch] = []

    def objective(network, batch, context):
        seen.append({name: value.clone() for name, value in batch.items()})
        return method.local.objective(network, batch, context)

    context = local.make_context(
        training, task, round=round, rounds=round + 1, site=site,
        received=cut(network.state_dict(), partition, Role.GLOBAL, Role.MIXED),
    )  # fmt: skip
    LocalRound(
        network=network,
        partition=partition,
        context=context,
        method=replace(method, local=replace(method.local, objective=objective)),
        dataset=dataset,
        settings=training,
    ).run()
    after = {name: value.detach().clone() for name, value in network.state_dict().items()}
    return Sent(before, after, seen, partition, task, training)


def joined(parts: Mapping[str, Tensor], rest: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> State:
    """Return a state with ``parts`` at elements with mask 1, and ``rest`` elsewhere."""
    return {name: torch.where(masks[name] > 0, parts[name], v) if name in masks else v for name, v in rest.items()}
