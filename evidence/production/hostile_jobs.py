"""Jobs that strict kits refuse: with code, with a class that is not listed, or altered after they were signed."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evidence.production.deployment import Deployment
from tests.flare.simulator import CLIENT, JOBS, edit

CODE = """\
from pathlib import Path

from nvflare.apis.executor import Executor

Path({marker!r}).joinpath(Path.cwd().name).touch()


class Brought(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable
"""
UNLISTED = "nvflare.app_common.executors.model_learner_executor.ModelLearnerExecutor"
WORKFLOW = "nvflare.app_common.workflows.cyclic_ctl.CyclicController"
APART = "sites"  # the sites' own folder of a job
SIGNATURES = ".__nvfl_sig.json"


def with_code(deployment: Deployment, marker: Path) -> Path:
    """Write a job that brings an executor of its own, which leaves a file as soon as it is imported."""
    job = Path(shutil.copytree(JOBS / "fedavg", deployment.folder / "brings-code"))
    (job / "app" / "custom" / "brought.py").write_text(CODE.format(marker=str(marker)))
    edit(job / CLIENT, lambda config: config["executors"][0]["executor"].update(path="brought.Brought"))
    return job


def naming(job: Path, side: str, path: str, **args: Any) -> Path:
    """Let a side of a job build another class besides ours."""
    edit(job / side, lambda config: config["components"].append({"id": "other", "path": path, "args": args}))
    return job


def apart(deployment: Deployment, job: Path) -> Path:
    """Give a job's sites a folder of their own, as FLARE allows; the server never looks at its signatures."""
    shutil.copytree(job / "app", job / APART)
    where = {"app": ["server"], APART: list(deployment.sites)}
    edit(job / "meta.json", lambda meta: meta.update(deploy_map=where))
    return job


def deployed(deployment: Deployment, job: str) -> list[str]:
    """Return what each party said when it was given a job, such as ``server: OK``."""
    with deployment.session() as session:
        return [str(one) for one in session.get_job_meta(job).get("job_deploy_detail") or []]


@contextmanager
def altered(deployment: Deployment, job: str, file: str, more: bytes | None) -> Iterator[None]:
    """Lengthen a file of a job that the server stores, or take it away, and put the job back in the end.

    Args:
        deployment: The federation.
        job: Its id.
        file: The file, as ``app/config/config_fed_server.json``.
        more: What its end gets; None: the file is taken away.
    """
    stored = deployment.server.kit / "storage" / "jobs" / job / "data"
    before = stored.read_bytes()
    with zipfile.ZipFile(stored) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in files if name.partition("/")[2] == file)
    signed = files.pop(name)
    if more is not None:
        files[name] = signed + more
    with zipfile.ZipFile(stored, "w") as archive:
        for one, data in files.items():
            archive.writestr(one, data)
    try:
        yield
    finally:
        stored.write_bytes(before)
