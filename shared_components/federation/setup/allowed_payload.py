"""What follows from a job and a site's task: the network's tensors without memory, in pieces, and its first weights."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shared_components.core.initial_weights import FILE, RANDOM, begin
from shared_components.core.method import Method, State
from shared_components.core.partition import Partition, Pieces, Role, partition_network
from shared_components.core.task import Task
from shared_components.federation.messages import Job
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.networks.parts import freeze


@dataclass(frozen=True)
class Expected:
    """A site's task and method, and its network's state as tensors without memory, partitioned."""

    method: Method
    task: Task
    state: Pieces
    partition: Partition

    def pieces(self, *roles: Role) -> Pieces:
        """Return the pieces of these roles by name."""
        return {name: piece.view(self.state) for name, piece in self.partition.with_roles(*roles).items()}


def expect(job: Job, method: Method, task: Task) -> Expected:
    """Build what replies of sites with this task are compared with; ValueError where the job does not fit it."""
    bundle = job.open_bundle()
    network = _shapes(json.dumps(bundle.network), task.channels, bundle.training.fixed)
    return Expected(method, task, network.state_dict(), partition_network(network, method.partition))


@functools.lru_cache(maxsize=4)
def _shapes(definition: str, channels: int, fixed: tuple[str, ...]) -> nn.Module:
    network = weightless(json.loads(definition), out_channels=channels)
    freeze(network, fixed)
    return network


@dataclass(frozen=True)
class FirstWeights:
    """What every site's network of a job begins from."""

    start: dict[str, str] | None  # as in a profile; None where the job's start is a file that is not on this machine
    state: State  # of the network; without the file the seed's


def first_weights(job: Job, task: Task, *, file: Path | None) -> FirstWeights:
    """Build the network as a site does, from the job's seed and start; torch's own generator stays as it is.

    ``file`` is what a ``start: file`` begins from on this machine, if there is one. ValueError where the network cannot
    be built, or its start not be read.
    """
    bundle = job.open_bundle()
    settings = bundle.training
    here = settings.start != FILE or file is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = build_network(bundle.network, out_channels=task.channels)
        kind = settings.start if here else RANDOM
        began = begin(network, kind, card=task.card, bundle=bundle.name, file=file)
    start = {key: began[key] for key in ("start", "sha256")} if here else None
    return FirstWeights(start, network.state_dict())
