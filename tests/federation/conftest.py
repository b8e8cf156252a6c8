"""Three tiny synthetic sites, a tiny network, and a federation that runs in this process."""

import dataclasses
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch
import yaml

from shared_components.core import evaluation
from shared_components.core.bundle import needs_square_frames
from shared_components.core.method import load_method, site_order
from shared_components.core.partition import Role, cut
from shared_components.federation.in_process import answer_request, open_together
from shared_components.federation.messages import FederationError, Job, SiteRefusal
from shared_components.federation.protocol import conduct, parse_answers
from shared_components.federation.server import runner as server_side
from shared_components.federation.setup import site_setup as site_side
from shared_components.networks import bundle_config
from shared_components.networks.bundle_config import bundle_for, bundle_names
from shared_components.scenes.site import plan_sites, write_site
from shared_components.weights.bundle_files.make import write_bundle
from tests.changed_method import changed
from tests.narrow import make_narrow

TINY = {"height": 32, "width": 64, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}
SINGLE = {"segmentation": {"frames": 1, "interval": 0.0}}  # all frames of the scenes have labels
SMALL = {  # what makes a job of a method small
    "pfedsis": {"arguments": {"sensitivity_images": 2}},
    "fedst": {"arguments": {"batches": 1, "pretraining": 1}, "tasks": SINGLE},
}
SITES = ("site-1", "site-2", "site-3")
VIDEOS = {"train": 1, "validation": 1, "test": 1}
NOT_TINY = {"fedas", "feddp", "fedseg", "fedst", "pfedsis", "surgfed"}  # which ask more of a network than `Tiny` has


TOY = """\
title: A toy
network_def: |
  _target_: shared_components.networks.tiny.Tiny
  out_channels: 4
tasks: |
  segmentation: {}
  depth: {}
  reconstruction: {patch: 8}
training: {height: 32, width: 64, batch_size: 2, iterations: 2, rounds: 2, learning_rate: 1.0e-3}
metadata: {name: Toy, task: to be small, description: A network for tests., references: []}
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch, request):
    """Narrow the bundles' networks; tests that read published or shipped weights are marked `full_width`."""
    if not request.node.get_closest_marker("full_width"):
        make_narrow(monkeypatch)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch, request):
    """Let a federation end without pictures, a tenth of its time; tests that look at them are marked `pictures`."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(evaluation, "draw_pictures", lambda *_, **__: None)


@pytest.fixture(scope="module")
def narrow_module():
    """Do what `narrow` does for fixtures that several tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        make_narrow(patch)
        yield


@functools.cache
def toy_files() -> dict[Path, bytes]:
    """Return the files of a folder of bundles that has `toy` alone, and the licence above it, by their paths."""
    with TemporaryDirectory() as away:
        shutil.copy(Path(__file__).parents[2] / "LICENSE", away)
        folder = Path(away, "bundles")
        folder.mkdir()
        (folder / "toy.yaml").write_text(TOY)
        write_bundle("toy", folder)
        return {path.relative_to(away): path.read_bytes() for path in Path(away).rglob("*") if path.is_file()}


@pytest.fixture
def toy_bundle(tmp_path, monkeypatch):
    """Let there be one bundle, `toy`, whose network is `networks.tiny.Tiny`; return the folder of bundles."""
    folder = tmp_path / "bundles"
    for path, content in toy_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    monkeypatch.setattr(bundle_config, "bundles_folder", lambda: folder)
    return folder


@pytest.fixture
def job_on_toy(request):
    """Return `make_job`, but with the toy's network for all methods that it fits."""

    def make(method, **changes):
        if method in NOT_TINY:
            return make_job(method, **changes)
        request.getfixturevalue("toy_bundle")
        return make_job(method, bundle="toy", **changes)

    return make


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Return the site.yaml files of three tiny sites."""
    return render(tmp_path_factory.mktemp("scenes"))


def render(out, *, sites=3, layout="auto", tasks=("segmentation",), **sizes):
    """Render tiny sites; return their site.yaml files."""
    sizes = {"videos": VIDEOS, "frames_per_video": 4, "height": 64, "width": 96, **sizes}
    plans = plan_sites(out, sites=sites, layouts=(layout,), tasks=tasks)
    return [write_site(p.folder, look=p.look, seed=p.seed, layout=p.layout, task=p.task, **sizes) for p in plans]


def make_job(method="pfedsis", **changes):
    bundle = "toy" if bundle_names() == ["toy"] else bundle_for(method)
    values = {"bundle": bundle, "rounds": 2, "training": TINY, **SMALL.get(method, {})} | changes
    real = values["bundle"] in {*bundle_names()} - {"toy"}
    if "training" not in changes and real and needs_square_frames(values["bundle"]):
        values["training"] = {**TINY, "width": TINY["height"]}
    return Job(name=f"test-{method}", method=method, **values)


def empty(message):
    """Return whether a message carries no tensor."""
    return not message.pieces and not any(message.groups.values())


def same(a, b):
    """Return whether two dictionaries hold the same tensors, bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def rewritten(path, folder, **changes):
    """Copy a site.yaml with other values; its data stay where they are."""
    config = yaml.safe_load(path.read_text())
    config |= {"root": str(path.parent / config["root"])} | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.yaml").write_text(yaml.safe_dump(config))
    return folder / "site.yaml"


@pytest.fixture
def play(monkeypatch):
    """Return a function that lets both sides use FedAvg with some fields replaced."""

    def replace(**fields):
        method = changed(load_method("fedavg"), **fields)
        for side in (server_side, site_side):
            monkeypatch.setattr(side, "load_method", lambda name, **arguments: method)
        return method

    return replace


def fine_tune(work, result):
    """Train the averaged model on the server's frames, and count the rounds in the memory."""
    losses = work.train()
    done = work.context.memory.get("rounds", torch.tensor(0))
    work.context.memory["rounds"] = done + 1
    shared = cut(work.network.state_dict(), work.partition, Role.GLOBAL)
    return dataclasses.replace(result, models=dataclasses.replace(result.models, shared=shared)), losses


class Federation:
    """A server and its sites in this process, in the protocol's order."""

    def __init__(self, job: Job, folder: Path, scenes, names, *, resume=False, **data):
        sites, self.folder = dict(zip(site_order(names), scenes, strict=False)), folder
        self.server, self.sites = open_together(job, sites, folder, resume=resume, **data)
        self.resumed = bool(self.server.state.profiles)
        self.conversation = conduct(self.server)
        self.asked = next(self.conversation)

    def answer(self, site, task, message):
        """Let a site answer a message."""
        return answer_request(self.sites[site], task, message)

    def replies(self, names=None):
        """Let the sites (some of them) answer what is asked now."""
        messages = {n: m for n, m in self.asked.messages.items() if names is None or n in names}
        return {name: self.answer(name, self.asked.task, message) for name, message in messages.items()}

    def send(self, replies, failures=None):
        """Give the server answers, and go on to its next question."""
        self.asked = self.conversation.send(parse_answers(self.asked.task, replies, failures))
        return self.server.last_record if self.server.state.round else None

    def enrol(self):
        try:
            self.send(self.replies())
        except SiteRefusal as error:
            raise FederationError(str(error)) from error
        return self

    def run(self, until=None):
        if self.asked.task == "enrol":
            self.enrol()
        while self.asked.task in ("round", "unmask") and self.server.state.round < (until or self.server.job.rounds):
            self.send(self.replies())
        return self

    def run_leaving(self, copy: Path, *, round=1, trained: Sequence[str] | None = ("site-2",)):
        """Run to the end; leave in ``copy`` what a kill in a round leaves that some sites have already trained."""
        replies = self.run(until=round).replies(trained)
        shutil.copytree(self.folder, copy, symlinks=True)
        self.send({**replies, **self.replies(self.asked.messages.keys() - replies.keys())})
        return self.run()

    def finish(self):
        assert self.asked.task == "finish"
        with pytest.raises(StopIteration):
            self.send(self.replies())
        return self

    def files(self, site):
        """Return a site's states of the run."""
        return self.sites[site]._files(SimpleNamespace(job=self.server.job, run=self.server.folder.name))

    def weights(self):
        models = self.server.state.models
        return {f"{s}/{n}": v for s in self.server.state.sites for n, v in models.of(s).items()}


@pytest.fixture
def federate(tmp_path, scenes):
    """Return a function that makes a federation; its state is under tmp_path by default.

    The server of a method that trains there has the third site's frames.
    """

    def make(job=None, *, names=SITES, folder=None, **options):
        job = job or make_job()
        if load_method(job.method, **job.arguments).server.update is not None:
            options.setdefault("server_data", scenes[2])
        return Federation(job, folder or tmp_path / "runs", scenes, names, **options)

    return make


@pytest.fixture
def publishing(scenes, tmp_path):
    """Return a function that makes a federation of sites whose `publish` is as given, site by site."""

    def make(job, *items):
        files = [rewritten(path, tmp_path / f"publishing-{i}", publish=items[i]) for i, path in enumerate(scenes)]
        return Federation(job, tmp_path / "runs", files, SITES)

    return make
