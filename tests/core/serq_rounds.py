"""A server's round of SERQ on frames that are given: a small network, its frames and the round itself."""

import torch
from torch import nn

from shared_components.core import training as local
from shared_components.core.method import Aggregation, Models, load_method
from shared_components.core.partition import Role, cut, everything, partition_network
from shared_components.core.task import make_task
from shared_components.core.training_settings import Training
from shared_components.federation.setup.local_round import LocalRound

CLASSES = ("background", "shaft")


class Little(nn.Module):
    """An encoder of two maps with running statistics, a layer over time that frames alone do not pass, a decoder."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = Maps(dropout)
        self.temporal = nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, len(CLASSES), 1)

    def decode(self, features):
        first, last = features
        return nn.functional.interpolate(self.head(first + last.mean((2, 3), keepdim=True)), scale_factor=2.0)


class Maps(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 2, stride=2, bias=False)  # its gradient would be noise, which Adam enlarges
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 2, stride=2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image):
        first = self.norm(self.first(image))
        return [first, self.dropout(self.last(first.relu()))]


class Set:
    """Random frames or clips that are never changed, in place of a data set; the loop below is the same."""

    def __init__(self, size, frames=1, count=6):
        generator = torch.Generator().manual_seed(3)
        shape = (count, 3, *size) if frames == 1 else (count, frames, 3, *size)
        self.images = torch.rand(shape, generator=generator)
        self.labels = torch.randint(len(CLASSES), (count, *size), generator=generator)

    def batch(self, number, last_only=False):
        chosen = [(2 * number) % len(self.images), (2 * number + 1) % len(self.images)]
        image = self.images[chosen]
        return {"image": image[:, -1] if last_only else image, "label": self.labels[chosen]}


class Round(LocalRound):
    """A LocalRound whose batches are of a `Set`, in order, however they are asked for."""

    last_only = False

    def _augmented(self, iterations):
        for number in range(iterations):
            yield self.dataset.batch(number, self.last_only)

    def frames(self, count=None):
        yield from (self.dataset.batch(number, self.last_only) for number in range(3))


def server_round(network, rule=None, *, frames=1, size=(8, 16), kept=None, memory=None, round=0, **settings):
    training = Training(**{"batch_size": 2, "iterations": 1, "learning_rate": 0.01, "seed": 5} | settings)
    task = make_task("segmentation", classes=CLASSES)
    known = local.make_context(training, task, round=round, rounds=9, site=3, memory=dict(memory or {}))
    partition = partition_network(network, rule or everything(Role.GLOBAL))
    return Round(network, partition, known, load_method("fedavg"), Set(size, frames), training, kept=kept or {})


def before_of(work):
    state = work.network.state_dict()
    return Aggregation({"rounds": torch.tensor(7)}, Models(cut(state, work.partition, Role.GLOBAL), {"a": {}}))


def seeded(network=Little, **arguments):
    torch.manual_seed(11)
    return network(**arguments)
