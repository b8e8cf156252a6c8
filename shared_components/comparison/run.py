"""One run of a comparison: train, then score every site's best model; `python -m shared_components.comparison.run`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared_components import evaluation, machine
from shared_components.atomic import write_json
from shared_components.bundle_config import build_network
from shared_components.checkpoints import load_weights
from shared_components.comparison.plan import HELD_OUT, Run
from shared_components.data.sites import Site, load_site, samples
from shared_components.federation.bench import Workbench, build_bench
from shared_components.federation.messages import FederationError, Job
from shared_components.federation.server import ServerRunner
from shared_components.federation.together import run_together
from shared_components.method import load_method
from shared_components.task import make_task

SCORES = "scores.json"
REFUSED = 3  # exit status: the method cannot do this, and another attempt would not change it
TIMED = 10  # forward passes of which the median counts


def finished(run: Run, root: Path) -> Path | None:
    """Return the folder of a run that is done."""
    done = sorted((root / run.name).glob(f"[0-9]*/{SCORES}"))
    return done[-1].parent if done else None


def carry_out(run: Run, root: Path) -> Path:
    """Train and score, or go on where an interrupted attempt ended; return the folder of the run.

    ``scores.json`` appears when all is done, and what only a resume needs is then removed. Another process
    that works on the same run is waited for: one whose command was killed ends at its next batch.

    Raises:
        FederationError: The method refuses these sites, or the training failed.
    """
    with _alone(root / run.name):
        done = finished(run, root)
        if done is None:
            done = _train_and_score(run, root)
        _tidy(done)
    return done


def _train_and_score(run: Run, root: Path) -> Path:
    torch.set_num_threads(run.threads)
    parent, began = os.getppid(), machine.process_start()
    sites = {name: Path(path) for name, path in run.sites.items()}
    _refuse_untold(run)
    told: list[int] = []

    def say(server: ServerRunner) -> None:
        told.append(server.round)
        print(f"{run.name}: round {server.round} of {run.rounds}", flush=True)

    server = run_together(
        Job.from_json(run.job()),
        sites,
        root,
        start_weights=run.start_weights,
        told=say,
        stop=lambda: os.getppid() != parent,
    )
    trained = time.perf_counter()
    scores = _score(run, server)
    seconds = {
        # of a run in several attempts the last one's time says nothing
        "training": trained - began if len(told) == run.rounds else None,
        "scoring": time.perf_counter() - trained,
    }
    write_json(server.folder / SCORES, {"run": run.to_json(), **scores, "seconds": seconds})
    return server.folder


def _refuse_untold(run: Run) -> None:
    """Find out before training, and not after it, whether the network can be told of the site that only tests.

    Raises:
        FederationError: It cannot.
    """
    method = load_method(run.variant.method, **run.variant.arguments)
    if not run.held_out or method.prepare is None:
        return
    try:
        site = load_site(run.held_out, name=HELD_OUT)
        bench = build_bench(Job.from_json(run.job()), site, start_weights=run.start_weights)
        _tell_outsider(bench, len(run.sites))
    except ValueError as error:
        raise FederationError(str(error)) from error


def _tell_outsider(bench: Workbench, sites: int) -> None:
    """Tell the network, as that of one more site, of a site that did not train."""
    bench.prepare(name=bench.site.name, number=sites, count=sites + 1)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tidy(done: Path) -> None:
    """Remove the state after each round, halves of files, and attempts that ended before their first round."""
    for path in [*done.glob("*/round-*.safetensors"), *done.glob("*/.*.safetensors.*")]:
        path.unlink()
    for other in done.parent.glob("[0-9]*"):
        if other != done and not (other / SCORES).is_file():
            shutil.rmtree(other)


def _score(run: Run, server: ServerRunner) -> dict[str, Any]:
    return {
        "sites": {
            name: _test(server, load_site(path, name=name), server.folder / name, "best")
            for name, path in run.sites.items()
        },
        "held_out": _out_of_federation(run, server),
        "costs": _costs(server),
    }


def _test(
    server: ServerRunner, site: Site, folder: Path, model: str, *, outside: bool = False
) -> dict[str, Any]:
    """Score a model on a site's test split; the pictures go beside the model."""
    bench = build_bench(server.job, site, start_weights=server.start_weights)
    bench.network.load_state_dict(load_weights(folder / f"{model}.safetensors"))
    if outside:  # the sites' own models know them already
        _tell_outsider(bench, len(server.sites))
    scores = evaluation.thorough(
        bench.network,
        bench.task,
        samples(site, "test", bench.task.asks),
        size=bench.size,
        split="test",
        pictures=folder / "overlays",
    )
    return {"site": site.name, **scores}


def _out_of_federation(run: Run, server: ServerRunner) -> dict[str, Any] | None:
    """Score the outsider's model, which the server has written, where no site trained (FedST's protocol).

    None where there is no such site, or no model for its task: no site of that task consents.
    """
    if not run.held_out:
        return None
    site = load_site(run.held_out, name=HELD_OUT)
    card = build_bench(server.job, site, start_weights=server.start_weights).task.card
    files = next(r for r in reversed(server.records) if r["kind"] == "outsider")["files"]
    if str(card) not in files:
        return None
    model = files[str(card)].removesuffix(".safetensors")
    return _test(server, site, server.folder / "server", model, outside=True)


def _costs(server: ServerRunner) -> dict[str, Any]:
    rounds = [r for r in server.records if r["kind"] == "site" and "loss" in r]
    site = server.sites[0]
    last = load_weights(server.folder / site / "model.safetensors")
    bundle = server.job.open_bundle()
    card = server.profiles[site].card
    task = make_task(card.kind, bundle.tasks[card.kind], classes=card.outputs)
    network = build_network(bundle.network, out_channels=task.channels)
    by_round: dict[int, list[float]] = {}
    for record in rounds:
        by_round.setdefault(record["round"], []).append(record["seconds"]["total"])
    aggregations = [r["seconds"] for r in server.records if r["kind"] == "aggregation"]
    trained = server.method.trained_at_server
    return {
        "parameters_site": sum(value.numel() for value in last.values()),
        "parameters_server": sum(v.numel() for n, v in server.state.items() if n.startswith(trained))
        if trained
        else 0,
        "bytes_up": statistics.mean(sum(r["bytes"]["up"].values()) for r in rounds),
        "bytes_down": statistics.mean(sum(r["bytes"]["down"].values()) for r in rounds),
        "seconds_round": statistics.mean(statistics.mean(values) for values in by_round.values()),
        "seconds_round_slowest": statistics.mean(max(values) for values in by_round.values()),
        "seconds_aggregation": statistics.mean(aggregations),
        "ms_frame": _milliseconds(network, card.frames, bundle.training.height, bundle.training.width),
        "memory_mb": max(r.get("memory_mb") or 0 for r in rounds),
    }


@torch.no_grad()
def _milliseconds(network: nn.Module, frames: int, height: int, width: int) -> float:
    """Time one sample's forward pass at the run's input size."""
    where = machine.device()
    network.to(where).eval()
    shape = (1, 3, height, width) if frames == 1 else (1, frames, 3, height, width)
    image = torch.zeros(shape, device=where)
    network(image).sum().item()
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        network(image).sum().item()  # waits for the accelerator
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def main(argv: list[str]) -> int:
    """Carry out the run that a JSON file describes; the folder for runs is the second argument."""
    try:
        carry_out(Run.from_json(json.loads(Path(argv[0]).read_text())), Path(argv[1]))
    except FederationError as error:
        print(f"refused: {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
