"""Three tiny synthetic sites and a federation that runs in this process."""

from pathlib import Path

import pytest

from shared_components.bundle_config import bundle_for
from shared_components.data.sites import load_site
from shared_components.data.synthetic.plan import plan_sites
from shared_components.data.synthetic.site import write_site
from shared_components.federation.messages import Job
from shared_components.federation.server import ServerRunner, open_run
from shared_components.federation.site import SiteRunner

TINY = {"height": 32, "width": 64, "batch_size": 2, "iterations": 2, "learning_rate": 1e-3}
VIDEOS = {"train": 1, "validation": 1, "test": 1}


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Return the site.yaml files of three tiny sites."""
    out = tmp_path_factory.mktemp("scenes")
    plans = plan_sites(out, sites=3)
    for plan in plans:
        write_site(
            plan.folder, look=plan.look, seed=plan.seed, layout=plan.layout, videos=VIDEOS,
            frames_per_video=4, height=64, width=96,
        )  # fmt: skip
    return [plan.folder / "site.yaml" for plan in plans]


def make_job(method="pfedsis", **changes):
    values = {"bundle": bundle_for(method), "rounds": 2, "training": TINY}
    if method == "pfedsis":
        values["arguments"] = {"sensitivity_images": 2}
    return Job(name=f"test-{method}", method=method, **(values | changes))


class Federation:
    """A server and its sites, carried by hand."""

    def __init__(self, job: Job, folder: Path, scenes, names, *, resume=False):
        self.server = ServerRunner(job, names, open_run(job, folder, resume=resume))
        self.resumed = self.server.resume()
        names = self.server.sites
        self.sites = {
            name: SiteRunner(
                name, folder=folder, find_site=lambda job, i: load_site(scenes[i], name=names[i])
            )
            for name in names
        }

    def ask(self, task, messages):
        return {name: self.sites[name].answer(task, message) for name, message in messages.items()}

    def enrol(self):
        self.server.enrolled(self.ask("enrol", self.server.enrol_messages()))

    def round(self, names=None):
        messages = self.server.round_messages()
        return self.ask("round", {n: m for n, m in messages.items() if names is None or n in names})

    def run(self, until=None):
        self.enrol()
        while self.server.round < (until or self.server.job.rounds):
            self.server.finish_round(self.round(), {})
        return self

    def finish(self):
        self.server.finished(self.ask("finish", self.server.round_messages()))
        return self

    def weights(self):
        models = self.server.models
        return {f"{s}/{n}": v for s in self.server.sites for n, v in models.of(s).items()}


@pytest.fixture
def federate(tmp_path, scenes):
    """Return a function that makes a federation; its state is under tmp_path unless told otherwise."""

    def make(job=None, *, names=("site-1", "site-2", "site-3"), folder=None, resume=False):
        return Federation(job or make_job(), folder or tmp_path / "runs", scenes, names, resume=resume)

    return make
