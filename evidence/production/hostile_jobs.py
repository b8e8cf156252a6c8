"""Jobs that strict kits refuse: with code, with a class that is not allowed, or modified after signing."""

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
APART = "sites"  # the sites' folder in a job
SIGNATURES = ".__nvfl_sig.json"


def with_code(deployment: Deployment, marker: Path) -> Path:
    """Write a job with an executor of its own, which writes a file on import."""
    job = Path(shutil.copytree(JOBS / "fedavg", deployment.folder / "brings-code"))
    (job / "app" / "custom" / "brought.py").write_text(CODE.format(marker=str(marker)))
    edit(job / CLIENT, lambda config: config["executors"][0]["executor"].update(path="brought.Brought"))
    return job


def naming(job: Path, side: str, path: str, **args: Any) -> Path:
    """Add a class that is not ours to one side of a job."""
    edit(job / side, lambda config: config["components"].append({"id": "other", "path": path, "args": args}))
    return job


def apart(deployment: Deployment, job: Path) -> Path:
    """Give a job's sites a separate folder, as FLARE allows; the server never checks its signatures."""
    shutil.copytree(job / "app", job / APART)
    where = {"app": ["server"], APART: list(deployment.sites)}
    edit(job / "meta.json", lambda meta: meta.update(deploy_map=where))
    return job


def deployed(deployment: Deployment, job: str) -> list[str]:
    """Return each party's answer to the deployment of a job, such as ``server: OK``."""
    with deployment.session() as session:
        return [str(one) for one in session.get_job_meta(job).get("job_deploy_detail") or []]


@contextmanager
def altered(deployment: Deployment, job: str, file: str, more: bytes | None) -> Iterator[None]:
    """Extend or remove a file of a job in the server's storage, and restore the job at the end.

    Args:
        deployment: The federation.
        job: Id of the job.
        file: The file, such as ``app/config/config_fed_server.json``.
        more: Text to append; None removes the file.
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
