"""Toy federations for the methods' tests: a few numbers per site, by hand."""

from collections.abc import Mapping, Sequence

import torch

from shared_components.core.card import Card
from shared_components.core.method import Context, Models, Profile, State, Update
from shared_components.core.partition import Partition, Piece, Role
from shared_components.core.task import make_task

SEGMENTATION = make_task("segmentation", classes=("background", "shaft", "wrist", "clasper"))
THETA = [1.0, 2.0]
SITES = [[2.0, 2.0], [1.0, 4.0], [4.0, 2.0], [1.5, 2.5], [10.0, -10.0]]
SAMPLES = [1, 1, 2, 1, 1]


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def names(count: int) -> list[str]:
    return [f"site-{i + 1}" for i in range(count)]


def updates(
    values: Sequence[Sequence[float]] = SITES,
    samples: Sequence[int] | None = None,
    extras: Mapping[str, Sequence[object]] | None = None,
) -> list[Update]:
    """One update per site with the one piece ``w``; an extra that is a number per site is ``{"value": it}``."""
    samples = samples or SAMPLES[: len(values)]
    found = []
    for i, (site, value) in enumerate(zip(names(len(values)), values, strict=True)):
        own = {group: {"value": tensor(given[i])} for group, given in (extras or {}).items()}
        found.append(Update(site, 0, {"w": tensor(value)}, own, samples[i]))
    return found


def shared(theta: Sequence[float] = THETA) -> Models:
    return Models({"w": tensor(theta)}, {})


def mixed(values: Sequence[Sequence[float]]) -> Models:
    return Models({}, {site: {"w": tensor(v)} for site, v in zip(names(len(values)), values, strict=True)})


def own_models(draw, count: int) -> Models:
    """Every site has MIXED pieces of its own, each set made by one call of ``draw``."""
    return Models({}, {site: draw() for site in names(count)})


def trained(models: Models, draw, round: int = 0) -> list[Update]:
    """One update per site: its own pieces plus those of one call of ``draw``."""
    sites = models.mixed.items()
    return [Update(site, round, {n: own[n] + change for n, change in draw().items()}) for site, own in sites]


def partition(role: Role = Role.GLOBAL) -> Partition:
    """The partition of a network with the one tensor ``w``."""
    return Partition((Piece("w", role),))


def context(round: int = 0, **known) -> Context:
    return Context(round, SEGMENTATION, torch.Generator().manual_seed(0), **known)


def frames(
    size: tuple[int, int] = (32, 32), count: int = 2, classes: int = 4, seed: int = 0
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(count, 3, *size, generator=generator)
    return {"image": image, "label": torch.randint(0, classes, (count, *size), generator=generator)}


class Line(torch.nn.Module):
    """Logits are a constant per class: two numbers to train."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor([1.0, -2.0]))

    def forward(self, image):
        return self.bias[None, :, None, None].expand(len(image), 2, *image.shape[2:])


LINE = {"image": torch.zeros(1, 3, 2, 2), "label": torch.ones(1, 2, 2, dtype=torch.long)}


class Plain:
    """A task of one line: a loss of (the network's output, "label")."""

    def __init__(self, loss):
        self._loss = loss
        self.card = Card("segmentation")

    def predict(self, network, batch):
        return network(batch["image"])

    def loss(self, outputs, batch):
        return self._loss(outputs, batch.get("label"))


def card(*classes: str) -> Card:
    return Card("segmentation", classes)


def profiles(count: int) -> list[Profile]:
    return [Profile(site, 100, card("background", "a")) for site in names(count)]


def start(aggregator, models: Models, count: int, role: Role = Role.GLOBAL) -> State:
    return aggregator.init(partition(role), models, profiles(count))


def step(aggregator, models: Models, given: Sequence[Update], state: State | None = None, role=Role.GLOBAL):
    """Run one aggregation, from the first state unless one is given."""
    state = start(aggregator, models, len(given), role) if state is None else state
    return aggregator.apply(state, partition(role), models, given)
