"""Models, records and logs of a run, which trials read and compare."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from evidence.production.deployment import Deployment, until

LONGER = {"height": 32, "width": 64, "batch_size": 2, "iterations": 10, "learning_rate": 1e-3}
"""Training settings with enough time to break something."""

SHORTEST = {"height": 32, "width": 64, "batch_size": 1, "iterations": 1, "learning_rate": 1e-4}
"""Training settings for trials of a whole network's traffic."""


def records(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    """Return the server's records of the newest run of a job."""
    path = deployment.server.runs(name) / "server" / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def rejected(deployment: Deployment, name: str) -> list[dict[str, str]]:
    """Return the left-out sites of every round, with the reason."""
    return [
        {one["site"]: one["reason"] for one in record["rejected"]}
        for record in records(deployment, name)
        if record["kind"] == "aggregation"
    ]


def run_to_end(
    deployment: Deployment, method: str, *, name: str, rounds: int, seconds: float = 600, **changes: Any
) -> None:
    """Run a job until it has succeeded with all sites in all rounds; settings as for `Deployment.job`."""
    job = deployment.submit(deployment.job(method, name=name, rounds=rounds, **changes))
    ended = deployment.wait(job, seconds=seconds)
    assert ended == "FINISHED:COMPLETED", f"{name}: {deployment.server.log[-2000:]}"
    assert rejected(deployment, name) == [{}] * rounds, name


def wait_for_round(deployment: Deployment, name: str, number: int, *, seconds: float = 180) -> None:
    """Wait until the server has the state after a round, counted from 1."""
    files = deployment.server.kit / "surgfl" / name
    until(lambda: list(files.glob(f"[0-9]*/server/round-{number - 1:05d}.*")), seconds, f"round {number} of {name}")


def personal_model(deployment: Deployment, name: str, site: str) -> Path:
    """Return a site's last model of the newest run of a job."""
    return deployment.sites[site].runs(name) / site / "model.safetensors"


def equal_tensors(deployment: Deployment, name: str, other: str) -> str:
    """Compare every site's model of two jobs bit by bit; return the number of equal tensors and of all tensors.

    Raises:
        AssertionError: A tensor differs.
    """
    count = 0
    for site in deployment.sites:
        one, two = (load_file(personal_model(deployment, job, site)) for job in (name, other))
        assert one and one.keys() == two.keys()
        different = [key for key in one if not torch.equal(one[key], two[key])]
        assert not different, f"{site}: {len(different)} of {len(one)} tensors differ, such as {different[0]}"
        count += len(one)
    return f"{count} of {count} tensors bit-equal"


def failure(deployment: Deployment, name: str, *, number: int = 1) -> str:
    """Return the error message with which the server's process ended a job.

    Args:
        deployment: The federation.
        name: Name of the job.
        number: Number of failed jobs of this name so far; the last message is returned.

    Raises:
        AssertionError: The number of failed jobs differs.
    """
    begin = f"surgfl: job {name} FAILED: "
    found = [line for line in deployment.server.log.splitlines() if begin in line]
    assert len(found) == number, found or deployment.server.log[-2000:]
    return found[-1].partition(begin)[2]
