"""Jobs with forbidden code, classes or expressions."""

import os
from pathlib import Path

from evidence.production.deployment import Deployment
from evidence.production.hostile_jobs import (
    APART,
    SIGNATURES,
    UNLISTED,
    WORKFLOW,
    altered,
    apart,
    deployed,
    naming,
    with_code,
)
from evidence.production.results import failure, rejected
from evidence.production.trials import Deploy, trial
from tests.flare.simulator import CLIENT, SERVER

PROGRAM = "subprocess.Popen"
PATH = os.environ["PATH"]


@trial("code, unlisted classes, expressions; jobs altered or unsigned at the server")
def jobs(deploy: Deploy) -> str:
    """No code runs (no marker file appears), each refusal has a reason, and the next good job runs."""
    deployment = deploy("hospital-a", "hospital-b")
    marker = deployment.folder / "marker"
    marker.mkdir()
    deployment.start()
    count = refused_by_server(deployment, marker)
    count += refused_by_class(deployment, marker)
    count += refused_by_key(deployment, f"$__import__('pathlib').Path('{marker}/expression').touch()")
    good = deployment.submit(apart(deployment, deployment.job("fedavg", rounds=1)))
    assert deployment.wait(good) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, "fedavg") == [{}]
    count += refused_by_signature(deployment, good)
    assert not list(marker.iterdir()), list(marker.iterdir())
    return f"{count} of {count} not run, 0 marker files; the good one between them was"


def refused_by_server(deployment: Deployment, marker: Path) -> int:
    """Submit jobs with code; return the number of refused jobs."""
    job = deployment.submit(with_code(deployment, marker))
    assert deployment.wait(job) == "FINISHED:FAILED_TO_RUN"
    said = deployed(deployment, job)
    assert any(one.startswith("server: BYOC not permitted") for one in said), said
    return 1


def refused_by_class(deployment: Deployment, marker: Path) -> int:
    """Submit jobs with other classes at once; return the number of refused jobs."""
    command = {"args": ["touch", str(marker / "program")]}
    cases = [(CLIENT, UNLISTED, {}), (SERVER, WORKFLOW, {}), (CLIENT, PROGRAM, command)]
    names = [f"names-{number}" for number in range(len(cases))]
    folders = [
        naming(deployment.job("fedavg", name=name, rounds=1), side, path, **args)
        for name, (side, path, args) in zip(names, cases, strict=True)
    ]
    for job in [deployment.submit(folder) for folder in folders]:
        assert deployment.wait(job) != "FINISHED:COMPLETED", deployment.server.log[-2000:]
    for side, path, _ in cases:
        for party in [deployment.server] if side == SERVER else deployment.sites.values():
            said = [line for line in party.log.splitlines() if f"Component '{path}' at config path" in line]
            assert said and all("is not in allow_list" in line for line in said), (party.name, path, said)
    return len(cases)


def refused_by_key(deployment: Deployment, expression: str) -> int:
    """Submit jobs with expressions in their settings at once; return the number of refused jobs."""
    small = {"height": 32, "width": 64, "batch_size": 2, "iterations": 1}
    cases = {
        "width": {"training": {**small, "start": "x{SITE_NAME:>300000000}"}},
        "environment": {"training": {**small, "start": "{$PATH}"}},
        "bundle": {"bundle": expression},
        "start": {"training": {**small, "start": expression}},
        "arguments": {"arguments": {"share": expression}},
    }
    folders = {
        key: deployment.job("fedavg", name=f"expression-{key}", rounds=1, **changes) for key, changes in cases.items()
    }
    submitted = {key: deployment.submit(folder) for key, folder in folders.items()}
    for key, job in submitted.items():
        assert deployment.wait(job) != "FINISHED:COMPLETED", key
        if key in ("width", "environment"):  # refused when the file is read, before the job's controller exists
            said = deployment.server.log + deployment.server.job_log(job)
            assert "no text of a job may contain braces" in said and PATH not in said, (key, said[-2000:])
        else:
            said = failure(deployment, f"expression-{key}")
            assert next(iter(cases[key])) in said and PATH not in said, (key, said)
    written = sum(path.stat().st_size for path in deployment.server.kit.rglob("*.txt"))
    assert written < 10_000_000, f"{written} bytes of logs"
    return len(cases)


def refused_by_signature(deployment: Deployment, good: str) -> int:
    """Modify a signed job on the server's disk and submit it; return the number of refused jobs."""
    server, client = "app/config/config_fed_server.json", f"{APART}/config/config_fed_client.json"
    verified, signed = "does not pass signature verification", "unsigned job rejected"
    cases = [
        (server, b" ", ["server"], verified),
        (f"app/{SIGNATURES}", None, ["server"], signed),
        (client, b"\n", list(deployment.sites), verified),
        (f"{APART}/{SIGNATURES}", None, list(deployment.sites), signed),
    ]
    for file, more, parties, why in cases:
        deployment.wait_for_sites(*deployment.sites, seconds=300)
        with altered(deployment, good, file, more), deployment.session() as session:
            job = session.clone_job(good)
        assert deployment.wait(job) == "FINISHED:FAILED_TO_RUN", file
        said = deployed(deployment, job)
        for party in parties:
            assert any(one.startswith(f"{party}: ") and why in one for one in said), (file, party, said)
    return len(cases)
