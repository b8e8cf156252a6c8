"""Measure FLARE's overhead: a round with `-t 3` compared with training without FLARE, start-up per task, bytes."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any

from evidence.benchmarks.site_round import SIZE, render

JOBS = Path(__file__).resolve().parents[2] / "nvflare_jobs"
NVFLARE = str(Path(sys.executable).with_name("nvflare"))  # works without an active virtual environment
ROUNDS = 4


def main(folder: Path) -> None:
    """Print the ratios."""
    scenes = render(folder, sites=3)
    parallel = run_simulator(folder, scenes, "parallel", "-t", "3")
    alone = without_flare(folder, scenes)
    plain = run_simulator(folder, scenes, "plain", rounds=2)
    size = f"{SIZE['iterations']} steps of {SIZE['height']}x{SIZE['width']}"
    ratio, sent = parallel["round"] / alone, parallel["sent"] / parallel["declared"]
    print(f"FLARE, FedAvg, three sites, {size} a round")
    print(f"  round with -t 3 / without FLARE   {parallel['round']:.2f} s / {alone:.2f} s = {ratio:.2f}")
    print(f"  task to training, plain command   {plain['starting']:.1f} s, the mean of {plain['tasks']} tasks")
    megabytes = f"{parallel['sent'] / 1e6:.1f} MB / {parallel['declared'] / 1e6:.1f} MB"
    print(f"  bytes on loopback / declared      {megabytes} = {sent:.3f}")


def run_simulator(folder: Path, scenes: list[Path], name: str, *options: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run a copy of the FedAvg job and read its records."""
    job = folder / f"job-{name}"
    shutil.copytree(JOBS / "fedavg", job)
    path = job / "app/config/config_fed_server.json"
    config = json.loads(path.read_text("utf-8"))
    config["workflows"][0]["args"] |= {"rounds": rounds, "training": SIZE}
    path.write_text(json.dumps(config))
    environment = {**os.environ, "SURGFL_SITE_CONFIG": str(scenes[0].parents[1]), "SURGFL_CPU_THREADS": "1"}
    before = loopback_bytes()
    subprocess.run(
        [NVFLARE, "simulator", str(job), "-w", str(folder / name), "-n", "3", *options],
        check=True, env=environment, capture_output=True, timeout=900,
    )  # fmt: skip
    sent = loopback_bytes() - before
    run = folder / f"{name}-state" / "fedavg" / "latest"
    records = [json.loads(line) for line in (run / "server" / "rounds.jsonl").read_text("utf-8").splitlines()]
    sites = [r for r in records if r["kind"] == "site"]
    trained = [r["seconds"] for r in sites if "training" in r["seconds"]]
    starting = [seconds["starting"] for seconds in trained]
    first_step = [seconds["starting"] + seconds["validating"] for seconds in trained]
    declared = sum(sum(way.values()) for r in sites for way in r["bytes"].values())
    declared += next(sum(r["bytes"]["down"].values()) for r in sites)  # the first site's initial model
    walls = [r["seconds_wall"] for r in records if r["kind"] == "aggregation"]
    return {
        "round": min(walls[1:]),
        "starting": mean(starting),
        "first_step": mean(first_step),
        "tasks": len(starting),
        "sent": sent,
        "declared": declared,
    }


def loopback_bytes() -> int:
    """Return the bytes that the loopback interface has received, from all processes of this machine."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    raise OSError("there is no loopback interface")


def without_flare(folder: Path, scenes: list[Path]) -> float:
    """Return the fastest round of the same three sites as processes joined by pipes."""
    from shared_components.federation.messages import Job
    from shared_components.federation.protocol import Answers, Ask, parse_answers, run_federation
    from shared_components.federation.runs.run_folder import open_run
    from shared_components.federation.server.runner import ServerRunner

    names = [f"site-{i + 1}" for i in range(len(scenes))]
    job = Job(name="bench", bundle="pvt_fpn", method="fedavg", training=SIZE, rounds=ROUNDS)
    server = ServerRunner(job, names, open_run(job, folder / "alone", resume=False))
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for name, scene in zip(names, scenes, strict=True):
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(name, scene, folder / "alone", theirs)))
        processes[-1].start()

    def exchange(ask: Ask) -> Answers:
        for name, message in ask.messages.items():
            pipes[name].send((ask.task, message))
        return parse_answers(ask.task, {name: pipes[name].recv() for name in ask.messages})

    walls: list[float] = []
    began = [time.perf_counter()]

    def after_round(record: dict[str, Any]) -> None:
        walls.append(time.perf_counter() - began[0])
        began[0] = time.perf_counter()

    run_federation(server, exchange, after_round=after_round)
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    return min(walls[1:])


def serve(name: str, scene: Path, folder: Path, pipe: Connection) -> None:
    """Answer tasks until the stop message."""
    import torch

    from shared_components.data.site_file import load_site
    from shared_components.federation.in_process import answer_request
    from shared_components.federation.site.runner import SiteRunner

    torch.set_num_threads(1)
    runner = SiteRunner(name, folder=folder, find_site=lambda job, index: load_site(scene, name=name))
    while (asked := pipe.recv()) is not None:
        pipe.send(answer_request(runner, *asked))
