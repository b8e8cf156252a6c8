"""Set up one task at a site: data, the bundle's network, the method, the learning task."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared_components.common import machine
from shared_components.core import evaluation
from shared_components.core.bundle import Bundle
from shared_components.core.card import Card
from shared_components.core.feature_cache import check_cache
from shared_components.core.initial_weights import load_initial_weights
from shared_components.core.method import Method, State, load_method
from shared_components.core.parameter_groups import parameter_groups
from shared_components.core.partition import Partition, partition_network
from shared_components.core.site_conditioning import condition_on_site, conditioned_header
from shared_components.core.task import Scores, Task, checkpoint_header, choose_task
from shared_components.core.training import check_network, precision_of
from shared_components.data.dataset import SampleDataset
from shared_components.data.frame_cache import FrameCache
from shared_components.data.samples import Sample
from shared_components.data.site import Site
from shared_components.data.splits import refuse_seen_test, seen_videos_after_training
from shared_components.federation.messages import Job
from shared_components.federation.privacy.gaussian import why_not_private
from shared_components.federation.setup.limits import check_limits
from shared_components.networks.adapter import definition_of
from shared_components.networks.bundle_config import build_network, check_size
from shared_components.networks.checkpoints import save_weights
from shared_components.networks.parts import freeze


@dataclass
class SiteSetup:
    """The tools of one task, built again for every task (in a simulator, every task is a new process)."""

    site: Site
    bundle: Bundle
    task: Task
    method: Method
    network: nn.Module
    partition: Partition
    start: dict[str, Any]  # origin of the initial weights, see `initial_weights.load_initial_weights`
    encoder: str = ""  # name of the text encoder, if the network is conditioned on the site's text
    cache: FrameCache | None = None
    workers: int = 0  # threads that read and augment training samples
    eager: str = ""  # reason not to record training steps, see `Context`

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the network's input."""
        return self.bundle.training.height, self.bundle.training.width

    def dataset(self, chosen: Sequence[Sample]) -> SampleDataset:
        """Return a data set of samples at the network's size."""
        height, width = self.size
        return SampleDataset(chosen, height=height, width=width, site=self.site, cache=self.cache)

    def validate(self, dataset: SampleDataset) -> Scores:
        """Score the network quickly, in the precision of the training."""
        return evaluation.score_quickly(self.network, self.task, dataset, precision=precision_of(self.bundle.training))

    def condition_on_site(self, *, name: str, number: int, count: int, again: bool = False) -> str:
        """Condition the network on the site, see `core.site_conditioning`; return the encoder's name."""
        self.encoder = condition_on_site(
            self.method, self.network, self.partition, self.site, name=name, number=number, count=count, again=again
        )
        return self.encoder

    @contextmanager
    def deployed(self, memory: State) -> Iterator[None]:
        """Give the network the weights that the site would deploy, within this context."""
        if self.method.local.deploy is None:
            yield
            return
        own = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.network.load_state_dict(self.method.local.deploy(own, memory))
        try:
            yield
        finally:
            self.network.load_state_dict(own)

    def save_model(self, path: Path, *, name: str, round: int, scores: Scores) -> None:
        """Write the network's weights after ``round`` rounds, with the site's name and validation score."""
        metric = self.task.metrics[0].name
        numbers = self.bundle.tasks[self.task.card.kind]
        chosen = definition_of(self.network) or self.bundle.chosen
        notes = checkpoint_header(
            self.bundle.name, self.method.name, self.task, numbers, size=self.size, network=chosen
        )
        notes |= {"site": name, "round": str(round), **conditioned_header(self.encoder)}
        notes |= seen_videos_after_training(self.start.get("seen", ""), self.site)
        notes[f"validation_{metric}"] = str((scores.get(metric) or {}).get("mean"))
        save_weights(path, self.network.state_dict(), notes)


def set_up_site(job: Job, site: Site, *, start_weights: Path | None = None, sites: int = 1) -> SiteSetup:
    """Build a task's tools; the network starts from the training's seed or its ``start``.

    ``start_weights`` is the file of a ``start: file``; ``sites`` is the number of sites. ValueError: the job or the
    site names something that does not exist or fit, the start has seen the site's test data, or the job exceeds a limit
    of the site.
    """
    bundle = job.open_bundle()
    method = load_method(job.method, **job.arguments)
    if job.noise and (refusal := why_not_private(method)):
        raise ValueError(refusal)
    task = choose_task(bundle.tasks, site.task, classes=site.classes, who=str(site.path))
    check_limits(job, bundle, task, site, sites=sites)
    # one seed for all sites: their LOCAL pieces, which are never sent, also start equal
    torch.manual_seed(bundle.training.seed)
    network = build_network(bundle.network, out_channels=task.channels)
    check_network(network, method, task)
    settings = bundle.training
    check_size(network, settings.height, settings.width)
    start = load_initial_weights(network, settings.start, card=task.card, bundle=bundle.name, file=start_weights)
    refuse_seen_test(start.get("seen", ""), site, start=start["from"])
    freeze(network, settings.fixed)
    parameter_groups(network, settings)  # refuses unknown parts now
    network.to(machine.device())
    partition = partition_network(network, method.partition)
    check_cache(network, partition, settings)
    return SiteSetup(site, bundle, task, method, network, partition, start)


def wrong_kind(method: Method, card: Card) -> str:
    """Return why a method does not work with a task; empty if it does."""
    if method.requires.kinds is None or card.kind in method.requires.kinds:
        return ""
    kinds = " and ".join(method.requires.kinds)
    return f"{method.name} is for {kinds}, and the site's task is {card.kind}; choose another method or task"
