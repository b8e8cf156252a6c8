"""The downloadable result of a job in production: a folder in FLARE's own folder of the job at the server."""

import os
import shutil
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from shared_components.federation.runs.run_folder import DESCRIPTION, link_models
from shared_components.federation.runs.store import RECORDS, SINGLE
from shared_components.flare.paths import is_simulator, job_folder, workspace_root

FOLDER = "surgfl_result"


def leave_result(run: Path, page: Path, to: Path) -> Path:
    """Copy a run's results at the server to a folder, and replace its earlier content; return the folder.

    The results are the report (``page``), run.json, the records of all rounds, the model for unseen sites if there is
    one, and the models of sites that publish their ``result``. Other sites' models are not at the server.
    """
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    files = {"report/index.html": page, DESCRIPTION: run / DESCRIPTION, RECORDS: run / "server" / RECORDS}
    for name, path in files.items():
        if path.is_file():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, temporary / name)
    link_models(run, (), temporary / "models")
    for path in sorted((run / "server" / SINGLE).glob("*.safetensors")):
        (folder := temporary / "models" / path.stem).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / "model.safetensors")
    shutil.rmtree(to, ignore_errors=True)
    os.rename(temporary, to)
    return to


def build_page(run: Path, fl_ctx: FLContext) -> Path:
    """Write a run's report into a simulator's workspace, or into the run and the job's result; return its page."""
    from shared_components.reporting.report import build_report

    folder = workspace_root(fl_ctx).parent / "report" if is_simulator(fl_ctx) else run / "report"
    page = build_report(run, folder / "index.html")
    if not is_simulator(fl_ctx):
        leave_result(run, page, job_folder(fl_ctx) / FOLDER)
    return page
