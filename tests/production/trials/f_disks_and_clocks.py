"""A disk is full. This needs root: the disks are small file systems in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.production.deployment import Deployment, Party
from tests.production.results import (
    LONGER,
    equal_tensors,
    failure,
    personal_model,
    rejected,
    wait_for_round,
)
from tests.production.trials import Deploy, trial

NO_SPACE = "could not be written (No space left on device); check the disk's space"
SETTINGS = {"rounds": 4, "training": LONGER}


@contextmanager
def small_disk(party: Party, *, megabytes: int = 64) -> Iterator[Path]:
    """Give a party a disk of its own for its runs, and yield its folder; it is taken away whatever happens."""
    if os.geteuid() != 0:
        raise PermissionError("needs root, to mount a small disk")
    folder = party.kit / "surgfl"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        party.kill()
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Write a file that leaves no byte on a disk; return it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    assert shutil.disk_usage(folder).free == 0
    return filler


def whole_files(folder: Path) -> int:
    """Return how many tensor files are there and whole; nothing half-written lies beside them."""
    files = list(folder.rglob("*.safetensors"))
    for path in files:
        load_file(path)
    beside = [path for path in folder.rglob(".*") if path.is_file()]
    assert files and not beside, beside
    return len(files)


def alike(deployment: Deployment, name: str) -> str:
    """Compare the sites' models of a job of FedAvg, which leaves one to all; return how many tensors are equal."""
    first, *others = (load_file(personal_model(deployment, name, site)) for site in deployment.sites)
    assert first and all(first.keys() == other.keys() for other in others)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    return f"{len(first)} tensors bit-equal at all {len(deployment.sites)} sites"


def run_whole(deployment: Deployment, name: str, **changes: object) -> None:
    """Run a job to its good end: all sites in all rounds."""
    job = deployment.submit(deployment.job("fedavg", name=name, **{**SETTINGS, **changes}))
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, name) == [{}] * 4


@trial("a site's disk is full after round 1, min_sites 2 of 3; two rounds later there is room again")
def full_disk_at_a_site(deploy: Deploy) -> str:
    """It is named alone, its own log says why, what it has stays whole, the others go on, and it returns."""
    deployment = deploy()
    site = deployment.sites["hospital-b"]
    with small_disk(site) as disk:
        deployment.start()
        job = deployment.submit(deployment.job("fedavg", rounds=6, min_sites=2, training=LONGER))
        wait_for_round(deployment, "fedavg", 1)
        filler = fill(disk)
        wait_for_round(deployment, "fedavg", 3)
        kept = whole_files(disk)
        filler.unlink()
        assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
        found = rejected(deployment, "fedavg")
        assert len(found) == 6 and all(set(one) <= {site.name} for one in found), found
        assert not found[0] and found[2] and not found[5], found
        for log in (site.log, site.job_log(job)):
            said = [line for line in log.splitlines() if f"site {site.name}: {disk}" in line]
            assert said and all(NO_SPACE in line for line in said), log[-2000:]
        missed = sum(map(bool, found))
        return (
            f"{missed} of 6 rounds without it, {6 - missed} with all; {kept} of its files whole on the full disk; "
            f"{alike(deployment, 'fedavg')}"
        )


@trial("the server's disk is full after round 1; then there is room again")
def full_disk_at_the_server(deploy: Deploy) -> str:
    """The job ends with one sentence that names the file, and resumes as if nothing had been."""
    deployment = deploy()
    with small_disk(deployment.server) as disk:
        deployment.start()
        run_whole(deployment, "whole")
        job = deployment.submit(deployment.job("fedavg", name="broken", **SETTINGS))
        wait_for_round(deployment, "broken", 1)
        filler = fill(disk)
        assert deployment.wait(job) != "FINISHED:COMPLETED"
        said = failure(deployment, "broken")
        assert NO_SPACE in said and "broken" in said, said
        kept = whole_files(deployment.server.runs("broken"))
        filler.unlink()
        run_whole(deployment, "broken", resume="latest")
        return f"{kept} files whole; {equal_tensors(deployment, 'whole', 'broken')}"
