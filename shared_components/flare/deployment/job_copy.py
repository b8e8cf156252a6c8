"""Copies of job folders for sites that let no job bring code.

The jobs of `nvflare_jobs/` hold an empty `app/custom` for the simulator's sake; to FLARE even an empty one means that
the job brings code, and a site that denies this refuses the job.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shared_components.flare.deployment.job_folder import CUSTOM, MARK, META, JobFolderError, apps_of


def production_copy(job: Path, to: Path) -> Path:
    """Write a copy of a job without its empty `app/custom`; return it, ``to/<the job's folder>``.

    It holds `meta.json` and the folders that its `deploy_map` names, and nothing else.

    Args:
        job: A job folder.
        to: The folder that the copy is put into; made where it is missing.

    Raises:
        JobFolderError: It is no job folder, or brings code, a link or a special file; or the copy is there already.
    """
    job = Path(job).resolve()
    target = Path(to) / job.name
    if os.path.lexists(target):
        raise JobFolderError(f"{target}: is there already; give another folder, or move it away")
    files = _files_of(job)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for file in files:
            copy = beside / file.relative_to(job)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        os.rename(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _files_of(job: Path) -> list[Path]:
    files = [job / META]
    for app in apps_of(job):
        for path in sorted((job / app).rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise JobFolderError(f"{path}: is a link or a special file, which FLARE refuses; put a file there")
            if path.is_dir():
                continue
            if CUSTOM not in path.relative_to(job).parts[:-1]:
                files.append(path)
            elif path.name != MARK or path.stat().st_size:
                raise JobFolderError(
                    f"{path}: is code that the job brings, which a strict site refuses; install it at every party "
                    "instead, or submit the job as it is to sites whose kits allow it"
                )
    return files
