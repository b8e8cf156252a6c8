"""Train one run of a comparison and score every site's best model, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared_components.common import machine
from shared_components.common.atomic import lock, write_json
from shared_components.common.progress import listening, under
from shared_components.common.step_file import StepFile
from shared_components.core import evaluation
from shared_components.core.initial_weights import FILE
from shared_components.core.method import load_method
from shared_components.core.site_conditioning import describe_site
from shared_components.core.task import make_task
from shared_components.core.trained_model import with_wanted_classes
from shared_components.data.classes import coarser_ids
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.best_round import best_scores, score_round
from shared_components.experiments.comparison.models import score_models
from shared_components.experiments.comparison.pictures import TESTED, write_pictures
from shared_components.experiments.comparison.plan import BEST_OF, HELD_OUT, SCORES, Run, finished
from shared_components.experiments.comparison.sites import changed_sites
from shared_components.federation.in_process import run_together
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.server.published_models import task_of
from shared_components.federation.server.runner import ServerRunner
from shared_components.federation.setup.site_setup import set_up_site
from shared_components.inference.predict import Remembers, Streaming
from shared_components.networks.bundle_config import build_network
from shared_components.networks.checkpoints import load_weights
from shared_components.networks.parts import inside, resolve
from shared_components.networks.protocols import provides

REFUSED = 3  # exit status: the method cannot do this, and another attempt would not change it
TIMED = 10  # forward passes of which the median counts


def carry_out(run: Run, root: Path) -> Path:
    """Train and score, or resume an interrupted attempt; return the folder of the run.

    ``scores.json`` is written when all is done; files that only a resume needs are then removed. Wait for another
    process that works on the same run: one whose command was killed ends at its next batch.

    Raises:
        FederationError: The method refuses these sites, or the training failed.
    """
    with _alone(root / run.name):
        done = finished(run, root) or _train_and_score(run, root)
        _tidy(done)
    return done


def _train_and_score(run: Run, root: Path) -> Path:
    torch.set_num_threads(run.threads)
    parent, began = os.getppid(), machine.process_start()
    job, start_weights = run.job(), run.start_weights
    if run.before:
        start_weights = carry_out(run.before, root) / "server" / "model.safetensors"
        job["training"]["start"], began = FILE, time.perf_counter()
    sites = changed_sites(run, root / run.name) if run.variant.data.changes_sites else dict(run.sites)
    if run.variant.data.held_out_trains and run.held_out:
        sites[HELD_OUT] = run.held_out
    _check_outsider(run)
    reported: list[int] = []

    def say(server: ServerRunner) -> None:
        reported.append(server.state.round)
        print(f"{run.name}: round {server.state.round} of {run.rounds}", flush=True)

    server = run_together(
        Job.from_json(job),
        {name: Path(path) for name, path in sites.items()},
        root,
        server_data=Path(run.server) if run.server else None,
        start_weights=start_weights,
        after_round=say,
        before_round=lambda server: _score_round(run, server),
        stop=lambda: os.getppid() != parent,
    )
    trained = time.perf_counter()
    scores = _score(run, server)
    seconds = {
        # of a run in several attempts the last one's time says nothing
        "training": trained - began if len(reported) == run.rounds else None,
        "scoring": time.perf_counter() - trained,
    }
    write_json(server.folder / SCORES, {"run": run.to_json(), **scores, "seconds": seconds})
    return server.folder


def _check_outsider(run: Run) -> None:
    """Raise FederationError before training where the network cannot be conditioned on the site that only tests."""
    method = load_method(run.variant.method, **run.variant.arguments)
    if not run.held_out or method.local.condition_on_site is None:
        return
    try:
        site = load_site(run.held_out, name=HELD_OUT)
        setup = set_up_site(Job.from_json(run.job()), site, start_weights=run.start_weights)
        setup.condition_on_site(name=site.name, number=len(run.sites), count=len(run.sites) + 1)
    except ValueError as error:
        raise FederationError(str(error)) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as file:
        lock(file)
        yield


def _tidy(done: Path) -> None:
    """Remove the state after each round, half-written files, and attempts that ended before their first round."""
    for path in [*done.glob("*/round-*.safetensors"), *done.glob("*/.*.safetensors.*")]:
        path.unlink()
    for other in done.parent.glob("[0-9]*"):
        if other != done and not (other / SCORES).is_file():
            shutil.rmtree(other)


def _score(run: Run, server: ServerRunner) -> dict[str, Any]:
    if wanted := set(run.variant.shows.values()):
        models = score_models(server, _sites(run), {BEST_OF.get(which, which) for which in wanted})
        metrics = task_of(server.job, server.state.profiles[server.state.sites[0]].card).metrics
        models |= best_scores(server.folder, run.rounds, models, wanted, metrics)
        return {"models": models, "sites": {}, "held_out": None, "costs": _costs(server)}
    return {
        "sites": {name: _test_site(server, site) for name, site in _sites(run).items()},
        "held_out": _out_of_federation(run, server),
        "costs": _costs(server),
    }


def _score_round(run: Run, server: ServerRunner) -> None:
    if BEST_OF.keys() & set(run.variant.shows.values()):
        score_round(server, _sites(run))


def _sites(run: Run) -> dict[str, Site]:
    return {name: load_site(path, name=name) for name, path in run.sites.items()}


def _test_site(server: ServerRunner, site: Site, name: str = "") -> dict[str, Any]:
    with under(site.name):
        return _test(server, site, server.folder / (name or site.name), "best")


def _test(
    server: ServerRunner, site: Site, folder: Path, model: str, *, learnt: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Score a model on a site's test split, with pictures of a few frames beside the model.

    ``learnt`` are the model's classes where they are finer than the site's: they are merged.
    """
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    finer = replace(site, classes=learnt or site.classes)
    of_model = set_up_site(server.job, finer, start_weights=server.training.start_weights) if learnt else setup
    path = folder / f"{model}.safetensors"
    of_model.network.load_state_dict(load_weights(path))
    describe_site(of_model.network, path, site)  # the model for outsiders; the sites' own know them already
    network = with_wanted_classes(of_model.network, of_model.task.card.outputs, setup.task.card.outputs)
    chosen = samples(site, "test", setup.task.spec)
    scores = evaluation.score_fully(network, setup.task, chosen, size=setup.size, split="test", by_sample=True)
    shown = write_pictures(network, setup.task, chosen, size=setup.size, folder=folder / TESTED)
    merged = {"merged": list(of_model.task.card.outputs)} if learnt else {}
    return {"site": site.name, **merged, **scores, "pictures": shown}


def _out_of_federation(run: Run, server: ServerRunner) -> dict[str, Any] | None:
    """Score the outsider's model, which the server has written, where no site trained (FedST's protocol).

    None where there is no such site, or no model for its task: no site of that task consents. Where there is none of
    its classes, the model of finer ones is scored by them (FedST's Table 8: parts at a site of whole instruments).
    """
    if not run.held_out:
        return None
    site = load_site(run.held_out, name=HELD_OUT)
    if run.variant.data.held_out_trains:
        return _test_site(server, site, HELD_OUT)
    card = set_up_site(server.job, site, start_weights=server.training.start_weights).task.card
    files = next(r for r in reversed(server.records) if r["kind"] == "outsider")["files"]
    made = [profile.card for profile in server.state.profiles.values() if str(profile.card) in files]
    exact = [one for one in made if one == card]
    finer = [one for one in made if one.kind == card.kind and coarser_ids(one.outputs, card.outputs)]
    if not (found := exact or finer):
        return None
    model = files[str(found[0])].removesuffix(".safetensors")
    learnt = () if exact else found[0].outputs
    return _test(server, site, server.folder / "server", model, learnt=learnt)


def _costs(server: ServerRunner) -> dict[str, Any]:
    rounds = [r for r in server.records if r["kind"] == "site" and "loss" in r]
    site = server.state.sites[0]
    last = load_weights(server.folder / site / "model.safetensors")
    bundle = server.job.open_bundle()
    card = server.state.profiles[site].card
    task = make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs)
    network = build_network(bundle.network, out_channels=task.channels)
    by_round: dict[int, list[float]] = {}
    for record in rounds:
        by_round.setdefault(record["round"], []).append(record["seconds"]["total"])
    aggregations = [r for r in server.records if r["kind"] == "aggregation"]
    sample = (card.frames, bundle.training.height, bundle.training.width)
    trained = server.method.server.trained
    return {
        "steps": _steps(server),
        "parameters_site": sum(value.numel() for value in last.values()),
        "parameters_trained": _trained(network, bundle.training.fixed),
        "parameters_server": sum(v.numel() for n, v in server.state.aggregator.items() if n.startswith(trained))
        if trained
        else 0,
        "bytes_up": statistics.mean(sum(r["bytes"]["up"].values()) for r in rounds),
        "bytes_down": statistics.mean(sum(r["bytes"]["down"].values()) for r in rounds),
        "seconds_round": statistics.mean(statistics.mean(values) for values in by_round.values()),
        "seconds_round_slowest": statistics.mean(max(values) for values in by_round.values()),
        "seconds_aggregation": statistics.mean(r["seconds"] + r.get("seconds_training", 0.0) for r in aggregations),
        "ms_frame": _milliseconds(network, *sample),
        "frames_per_second": _frames_per_second(network, *sample),
        "memory_mb": max(r.get("memory_mb") or 0 for r in rounds),
    }


def _steps(server: ServerRunner) -> int:
    """Count the optimizer steps of all sites and rounds; where data is pooled, those of the site that trains."""
    training = server.job.open_bundle().training
    samples = [profile.samples for profile in server.state.profiles.values()]
    counts = [sum(samples)] if server.method.requires.pooled else samples
    return server.job.rounds * sum(training.for_samples(n).steps for n in counts)


def _trained(network: nn.Module, fixed: Sequence[str]) -> int:
    """Count the numbers of a network that a site trains."""
    paths = resolve(network, fixed, "training: fixed") if fixed else frozenset()
    trained = (p for name, p in network.named_parameters() if p.requires_grad and not inside(name, paths))
    return sum(p.numel() for p in trained)


@torch.no_grad()
def _milliseconds(network: nn.Module, frames: int, height: int, width: int) -> float:
    """Time one sample's forward pass at the run's input size."""
    where = machine.device()
    network.to(where).eval()
    shape = (1, 3, height, width) if frames == 1 else (1, frames, 3, height, width)
    image = torch.zeros(shape, device=where)
    return 1000 * _median_seconds(lambda: network(image))


@torch.no_grad()
def _frames_per_second(network: nn.Module, frames: int, height: int, width: int) -> float:
    """Time a video as it is segmented, frame by frame: one goes in and its answer comes out.

    A network that remembers what came before encodes every frame once; any other sees a whole sample each time.
    """
    if not provides(network, Remembers):
        return 1000 / _milliseconds(network, frames, height, width)
    where = machine.device()
    network.to(where).eval()
    image = torch.zeros((1, 3, height, width), device=where)
    stream = Streaming(network, stride=1)
    for _ in range(frames):  # until what it remembers is complete
        stream(image)
    return 1 / _median_seconds(lambda: stream(image))


def _median_seconds(forward: Callable[[], Tensor]) -> float:
    forward().sum().item()
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        forward().sum().item()  # waits for the accelerator
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(argv: list[str]) -> int:
    """Carry out the run that a JSON file describes; the folder for runs is the second argument."""
    run, root = Run.from_json(json.loads(Path(argv[0]).read_text(encoding="utf-8"))), Path(argv[1])
    try:
        with listening(StepFile(root / run.name)):
            carry_out(run, root)
    except FederationError as error:
        print(f"refused: {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
