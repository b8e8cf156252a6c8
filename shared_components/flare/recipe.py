"""FLARE's Recipe of a job: `SimEnv` simulates it, `PocEnv` runs it in local processes, `ProdEnv` submits it.

Importing FLARE's recipes removes ``--export`` and ``--export-dir`` from the program's arguments.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.recipe import PocEnv, ProdEnv, SimEnv
from nvflare.recipe.run import Run
from nvflare.recipe.spec import ExecEnv, Recipe

from shared_components.federation.messages import FederationError
from shared_components.federation.runs.state_root import STATE_VARIABLE
from shared_components.flare.deployment.app_files import CLIENT_CONFIG, META, SERVER_CONFIG
from shared_components.flare.deployment.job_folder import MARK, JobFolderError, apps_of
from shared_components.flare.deployment.submission import find_job, write_submission
from shared_components.flare.tracking import VARIABLE, check_tracker
from shared_components.flare.workspaces import FLARES_FOLDERS, refuse_foreign

MARK_FILE = Path(__file__).with_name("deployment") / MARK


class SurgFLRecipe(Recipe):
    """Recipe of a job for ``recipe.execute(env)``, with the same results as `nvflare_jobs/job.py`.

    Args:
        job: Name of a shipped job, such as ``pfedsis``, or a job folder.
        resume: ``latest``, a run's name or a job's id to continue. None begins a new run.
        tracking: ``mlflow``, ``wandb`` or ``tensorboard``, see `flare.tracking`; empty for none. `ProdEnv` refuses
            it, because a server selects its own tracker.
        settings: Job settings to change, such as ``rounds=2`` or ``training={"iterations": 10}``.

    Raises:
        ValueError: The job, a setting or the tracker does not exist, or the tracker's package is not installed.
    """

    def __init__(self, job: str | Path, *, resume: str | None = None, tracking: str = "", **settings: Any) -> None:
        check_tracker(tracking, key="tracking")
        self.tracking = tracking
        with tempfile.TemporaryDirectory(prefix="surgfl-") as folder:
            copy = write_submission(find_job(str(job)), Path(folder), settings=settings, resume=resume)
            super().__init__(_read_job(copy))
        self._min_clients = self._job.job.min_clients

    def process_env(self, env: ExecEnv) -> None:
        """Check an environment, and give `SimEnv` and `PocEnv` the job with an empty ``app/custom``.

        FLARE's own lists of classes, which both use, allow installed classes only in a job with that folder.

        Raises:
            ValueError: The environment has another type, or `SimEnv` would empty a folder that is no workspace.
        """
        if not isinstance(env, (SimEnv, PocEnv, ProdEnv)):
            raise ValueError(f"env is {type(env).__name__}; give SimEnv, PocEnv or ProdEnv of nvflare.recipe")
        if isinstance(env, SimEnv):
            try:
                refuse_foreign(_root(env) / self.name)
            except FederationError as error:
                raise ValueError(str(error)) from error
        if reserved := FLARES_FOLDERS & {*(getattr(env, "clients", None) or ())}:
            raise ValueError(f"{', '.join(sorted(reserved))} are FLARE's own folders; give the sites other names")
        if isinstance(env, ProdEnv) and self.tracking:
            raise ValueError(f"tracking is {self.tracking!r}, but a server selects its own; set {VARIABLE} there")
        self._mark(not isinstance(env, ProdEnv))
        # PocEnv submits the job before all sites have connected; FLARE then waits for so many
        self._job.job.min_clients = env.num_clients if isinstance(env, PocEnv) else self._min_clients

    def export(
        self, job_dir: str, server_exec_params: Any = None, client_exec_params: Any = None, env: ExecEnv | None = None
    ) -> None:
        """Write the job folder ``job_dir/<name>``: without ``env``, the folder that `surgfl job submit` submits."""
        self._mark(False)
        super().export(job_dir, server_exec_params, client_exec_params, env)

    def run(self, env: ExecEnv, server_exec_params: Any = None, client_exec_params: Any = None) -> Run:
        """Run the job; the processes of `SimEnv` and `PocEnv` inherit this process's environment variables."""
        variables = {VARIABLE: self.tracking} if self.tracking else {}
        if isinstance(env, SimEnv):
            variables[STATE_VARIABLE] = os.environ.get(STATE_VARIABLE) or f"{_root(env)}-state"
        with _environment(variables):
            return super().run(env, server_exec_params, client_exec_params)

    def _mark(self, marked: bool) -> None:
        for app in self._job._deploy_map.values():
            app.app_config.file_sources = [(str(MARK_FILE), None, None)] if marked else []


def _root(env: SimEnv) -> Path:
    return Path(env.workspace_root).resolve()


def _read_job(folder: Path) -> FedJob:
    """Return a job as its folder describes it; JobFolderError for a `meta.json` that FLARE's interface cannot write."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    (app, *_) = apps_of(folder)
    common = {"name": meta.get("name"), "min_clients": meta.get("min_clients")}
    if meta != {"resource_spec": {}, "deploy_map": {app: ["@ALL"]}, **common}:
        raise JobFolderError(
            f"{folder.name}/{META}: a recipe has one app for @ALL, name, min_clients and an empty resource_spec; "
            "submit this job with surgfl job"
        )
    job = FedJob(**common)
    for name, add in ((SERVER_CONFIG, job.to_server), (CLIENT_CONFIG, job.to_clients)):
        add(json.loads((folder / app / "config" / name).read_text(encoding="utf-8")))
    return job


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore their earlier values."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
