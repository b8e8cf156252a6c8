"""Train one run of a comparison and score each site's best model, in a separate process."""

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
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
from shared_components.data.files.classes import coarser_ids
from shared_components.data.samples import samples
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison.models import best_scores, score_models, score_round
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

REFUSED = 3  # exit status if the method refuses the sites; another attempt would fail too
TIMED = 10  # timed forward passes; the median counts


def carry_out(run: Run, root: Path) -> Path:
    """Train and score a run, or resume it; return its folder, which ``scores.json`` marks as complete.

    Another process that works on the same run is waited for. Raise FederationError if the method refuses these sites.
    """
    with _locked(root / run.name):
        folder = finished(run, root) or _train_and_score(run, root)
        _remove_resume_files(folder)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as file:
        lock(file)
        yield


def _remove_resume_files(folder: Path) -> None:
    for pattern in ("*/round-*.safetensors", "*/parts/*.safetensors", "*/.*.safetensors.*"):
        for path in folder.glob(pattern):
            path.unlink()
    for other in folder.parent.glob("[0-9]*"):
        if other != folder and not (other / SCORES).is_file():
            shutil.rmtree(other)


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
    rounds: list[int] = []

    def report(server: ServerRunner) -> None:
        rounds.append(server.state.round)
        print(f"{run.name}: round {server.state.round} of {run.rounds}", flush=True)

    server = run_together(
        Job.from_json(job), {name: Path(path) for name, path in sites.items()}, root,
        server_data=Path(run.server) if run.server else None, start_weights=start_weights, after_round=report,
        before_round=lambda server: _score_round(run, server), stop=lambda: os.getppid() != parent,
    )  # fmt: skip
    trained = time.perf_counter()
    scores = _score(run, server)
    seconds = {
        "training": trained - began if len(rounds) == run.rounds else None,  # unknown if it was interrupted
        "scoring": time.perf_counter() - trained,
    }
    write_json(server.folder / SCORES, {"run": run.to_json(), **scores, "seconds": seconds})
    return server.folder


def _check_outsider(run: Run) -> None:
    """Raise FederationError before training if the network cannot be conditioned on the held-out site."""
    method = load_method(run.variant.method, **run.variant.arguments)
    if not run.held_out or method.local.condition_on_site is None:
        return
    try:
        site = load_site(run.held_out, name=HELD_OUT)
        setup = set_up_site(Job.from_json(run.job()), site, start_weights=run.start_weights)
        setup.condition_on_site(name=site.name, number=len(run.sites), count=len(run.sites) + 1)
    except ValueError as error:
        raise FederationError(str(error)) from error


def _score(run: Run, server: ServerRunner) -> dict[str, Any]:
    if wanted := set(run.variant.shows.values()):
        models = score_models(server, _sites(run), {BEST_OF.get(model, model) for model in wanted})
        metrics = task_of(server.job, server.state.profiles[server.state.sites[0]].card).metrics
        models |= best_scores(server.folder, run.rounds, models, wanted, metrics)
        return {"models": models, "sites": {}, "held_out": None, "costs": _costs(server)}
    sites = {name: _test_site(server, site, name) for name, site in _sites(run).items()}
    return {"sites": sites, "held_out": _test_held_out(run, server), "costs": _costs(server)}


def _score_round(run: Run, server: ServerRunner) -> None:
    if BEST_OF.keys() & set(run.variant.shows.values()):
        score_round(server, _sites(run))


def _sites(run: Run) -> dict[str, Site]:
    return {name: load_site(path, name=name) for name, path in run.sites.items()}


def _test_site(server: ServerRunner, site: Site, folder: str) -> dict[str, Any]:
    with under(site.name):
        return _test(server, site, server.folder / folder, "best")


def _test(
    server: ServerRunner, site: Site, folder: Path, model: str, *, model_classes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Score a model on a site's test split, and write pictures of a few frames.

    ``model_classes`` are the model's classes if they are finer than the site's; they are merged.
    """
    setup = set_up_site(server.job, site, start_weights=server.training.start_weights)
    finer = replace(site, classes=model_classes or site.classes)
    of_model = set_up_site(server.job, finer, start_weights=server.training.start_weights) if model_classes else setup
    path = folder / f"{model}.safetensors"
    of_model.network.load_state_dict(load_weights(path))
    describe_site(of_model.network, path, site)  # only the model for outside sites does not know its site yet
    network = with_wanted_classes(of_model.network, of_model.task.card.outputs, setup.task.card.outputs)
    test = samples(site, "test", setup.task.spec)
    scores = evaluation.score_fully(network, setup.task, test, size=setup.size, split="test", by_sample=True)
    pictures = write_pictures(network, setup.task, test, size=setup.size, folder=folder / TESTED)
    merged = {"merged": list(of_model.task.card.outputs)} if model_classes else {}
    return {"site": site.name, **merged, **scores, "pictures": pictures}


def _test_held_out(run: Run, server: ServerRunner) -> dict[str, Any] | None:
    """Score the server's model for outside sites at the held-out site (FedST's protocol).

    If no model has the site's classes, a model with finer classes is scored with merged classes (FedST's Table 8:
    parts at a site with whole instruments). None without a held-out site, or if no site of its task publishes a model.
    """
    if not run.held_out:
        return None
    site = load_site(run.held_out, name=HELD_OUT)
    if run.variant.data.held_out_trains:
        return _test_site(server, site, HELD_OUT)
    card = set_up_site(server.job, site, start_weights=server.training.start_weights).task.card
    files = next(r for r in reversed(server.records) if r["kind"] == "outsider")["files"]
    cards = [profile.card for profile in server.state.profiles.values() if str(profile.card) in files]
    exact = [c for c in cards if c == card]
    finer = [c for c in cards if c.kind == card.kind and coarser_ids(c.outputs, card.outputs)]
    if not (usable := exact or finer):
        return None
    model = files[str(usable[0])].removesuffix(".safetensors")
    return _test(server, site, server.folder / "server", model, model_classes=() if exact else usable[0].outputs)


def _costs(server: ServerRunner) -> dict[str, Any]:
    records = [r for r in server.records if r["kind"] == "site" and "loss" in r]
    aggregations = [r for r in server.records if r["kind"] == "aggregation"]
    site, bundle = server.state.sites[0], server.job.open_bundle()
    training, card = bundle.training, server.state.profiles[site].card
    task = make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs)
    network = build_network(bundle.network, out_channels=task.channels)
    fixed = resolve(network, training.fixed, "training: fixed") if training.fixed else frozenset()
    parameters = [p for name, p in network.named_parameters() if p.requires_grad and not inside(name, fixed)]
    by_round: dict[int, list[float]] = {}
    for record in records:
        by_round.setdefault(record["round"], []).append(record["seconds"]["total"])
    sample = (card.frames, training.height, training.width)
    trained, at_server = server.method.server.trained, server.state.aggregator
    return {
        "steps": _steps(server),
        "parameters_site": sum(v.numel() for v in load_weights(server.folder / site / "model.safetensors").values()),
        "parameters_trained": sum(p.numel() for p in parameters),
        "parameters_server": sum(v.numel() for n, v in at_server.items() if n.startswith(trained)) if trained else 0,
        "bytes_up": statistics.mean(sum(r["bytes"]["up"].values()) for r in records),
        "bytes_down": statistics.mean(sum(r["bytes"]["down"].values()) for r in records),
        "seconds_round": statistics.mean(map(statistics.mean, by_round.values())),
        "seconds_round_slowest": statistics.mean(map(max, by_round.values())),
        "seconds_aggregation": statistics.mean(r["seconds"] + r.get("seconds_training", 0.0) for r in aggregations),
        "ms_frame": _milliseconds(network, *sample),
        "frames_per_second": _frames_per_second(network, *sample),
        "memory_mb": max(r.get("memory_mb") or 0 for r in records),
    }


def _steps(server: ServerRunner) -> int:
    """Count the optimizer steps of all sites and rounds; with pooled data only one site trains."""
    training = server.job.open_bundle().training
    samples = [profile.samples for profile in server.state.profiles.values()]
    counts = [sum(samples)] if server.method.requires.pooled else samples
    return server.job.rounds * sum(training.for_samples(n).steps for n in counts)


def _milliseconds(network: nn.Module, frames: int, height: int, width: int) -> float:
    network.to(machine.device()).eval()
    shape = (1, 3, height, width) if frames == 1 else (1, frames, 3, height, width)
    image = torch.zeros(shape, device=machine.device())
    return 1000 * _median_seconds(lambda: network(image))


def _frames_per_second(network: nn.Module, frames: int, height: int, width: int) -> float:
    """Time the segmentation of a video frame by frame.

    A network with a memory encodes each frame once; other networks see a whole sample each time.
    """
    if not provides(network, Remembers):
        return 1000 / _milliseconds(network, frames, height, width)
    network.to(machine.device()).eval()
    image = torch.zeros((1, 3, height, width), device=machine.device())
    stream = Streaming(network, stride=1)
    with torch.no_grad():
        for _ in range(frames):  # fill the memory
            stream(image)
    return 1 / _median_seconds(lambda: stream(image))


@torch.no_grad()
def _median_seconds(forward: Callable[[], Tensor]) -> float:
    forward().sum().item()
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        forward().sum().item()  # waits for the accelerator
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(argv: list[str]) -> int:
    """Carry out the run in a JSON file; the second argument is the folder of all runs."""
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
