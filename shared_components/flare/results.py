"""What a job in production leaves for whoever downloads its result: FLARE sends the job's own folder at the server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from shared_components.federation.runs import DESCRIPTION, leave_models
from shared_components.federation.store import RECORDS, SINGLE
from shared_components.flare.paths import is_simulator, workspace_root

FOLDER = "surgfl_result"


def result_folder(fl_ctx: FLContext) -> Path:
    """Return where a job's result is put, in the folder that FLARE archives when the job's process has ended."""
    workspace = fl_ctx.get_engine().get_workspace()
    return Path(workspace.get_run_dir(fl_ctx.get_job_id())) / FOLDER


def leave_result(run: Path, page: Path, to: Path) -> Path:
    """Put what the server knows of a run into a folder, all of it or nothing; return the folder.

    That is the report, run.json, the records of all rounds, the model for outsiders where there is one, and the models
    of sites that publish their ``result``. Another site's model is not at the server.

    Args:
        run: The run's folder at the server.
        page: Its report.
        to: Replaced if it is there.
    """
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    for path, name in (
        (page, "report/index.html"),
        (run / DESCRIPTION, DESCRIPTION),
        (run / "server" / RECORDS, RECORDS),
    ):
        if path.is_file():
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, beside / name)
    leave_models(run, (), beside / "models")
    for path in sorted((run / "server" / SINGLE).glob("*.safetensors")):
        (folder := beside / "models" / path.stem).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / "model.safetensors")
    shutil.rmtree(to, ignore_errors=True)
    os.rename(beside, to)
    return to


def build_page(run: Path, fl_ctx: FLContext) -> Path:
    """Write a run's report beside a simulator's workspace, or into the run and the job's result; return it."""
    from shared_components.reporting.report import build_report

    folder = workspace_root(fl_ctx).parent / "report" if is_simulator(fl_ctx) else run / "report"
    page = build_report(run, folder / "index.html")
    if not is_simulator(fl_ctx):
        leave_result(run, page, result_folder(fl_ctx))
    return page
