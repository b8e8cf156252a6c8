"""Payload that follows from a job and a site's task: shapes of the network's pieces, and its initial weights."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shared_components.core.initial_weights import FILE, RANDOM, load_initial_weights
from shared_components.core.method import Method, State
from shared_components.core.partition import Partition, Pieces, Role, partition_network
from shared_components.core.task import Task
from shared_components.federation.messages import Job
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.networks.parts import freeze


@dataclass(frozen=True)
class Expected:
    """Method, task, and the network's partitioned state, whose tensors need no memory."""

    method: Method
    task: Task
    state: Pieces
    partition: Partition

    def pieces(self, *roles: Role) -> Pieces:
        return {name: piece.view(self.state) for name, piece in self.partition.with_roles(*roles).items()}


def expect(job: Job, method: Method, task: Task) -> Expected:
    """Build the reference for replies of sites with this task; ValueError if the job does not fit the task."""
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
    """Initial weights of every site's network in a job."""

    start: dict[str, str] | None  # as in a profile; None if the job's start is a file that is not on this machine
    state: State  # of the network; from the seed if the file is missing


def first_weights(job: Job, task: Task, *, file: Path | None) -> FirstWeights:
    """Build the network like a site, from the job's seed and start, without a change to torch's own generator.

    ``file`` has the weights of a ``start: file``, if this machine has them. ValueError: the network cannot be built, or
    its start cannot be read.
    """
    bundle = job.open_bundle()
    settings = bundle.training
    known = settings.start != FILE or file is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = build_network(bundle.network, out_channels=task.channels)
        kind = settings.start if known else RANDOM
        began = load_initial_weights(network, kind, card=task.card, bundle=bundle.name, file=file)
    start = {key: began[key] for key in ("start", "sha256")} if known else None
    return FirstWeights(start, network.state_dict())
