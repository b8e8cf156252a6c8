"""Write what an administrator submits: a copy of a job for strict sites, with the submission's own settings in it."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.federation.messages import Job, with_changes
from shared_components.flare.deployment.app_files import CLIENT_CONFIG, CUSTOM, META, SERVER_CONFIG, is_app_file
from shared_components.flare.deployment.job_folder import MARK, RESUME, JobFolderError, apps_of, jobs_folder

LATEST = "latest"


def find_job(given: str) -> Path:
    """Return the job folder that a path or the name of a shipped job means.

    Raises:
        JobFolderError: There is none.
    """
    shipped = jobs_folder()
    for folder in (Path(given), shipped / given):
        if (folder / META).is_file():
            return folder
    names = sorted(path.parent.name for path in shipped.glob(f"*/{META}"))
    known = f", or one of {', '.join(names)}" if names else ""
    raise JobFolderError(f"{given}: is no job folder with a {META}{known}; name one")


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """Read `rounds=5` and `training.iterations=10` into nested settings.

    Raises:
        JobFolderError: One has no '=', no name, or a value that is no YAML, or is given twice.
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        *outer, last = key.split(".")
        if not equals or not all([*outer, last]):
            raise JobFolderError(f"--set {text}: is no setting; write it as rounds=5 or training.iterations=10")
        inner = found
        for name in outer:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise JobFolderError(f"--set {text}: {name} is given twice; give it once")
        if last in inner:
            raise JobFolderError(f"--set {text}: {key} is given twice; give it once")
        try:
            inner[last] = read_yaml(value)
        except YamlError as error:
            raise JobFolderError(f"--set {text}: the value {error}") from error
    return found


def production_copy(job: Path, to: Path) -> Path:
    """Write a copy of a job for sites that let no job bring code; return it, ``to/<the job's folder>``.

    It holds `meta.json` and the folders that its `deploy_map` names, without `app/custom`: the simulator needs one, and
    to FLARE even an empty one means that the job brings code.

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
            own = path.relative_to(job / app).parts
            if not is_app_file(own):
                raise JobFolderError(
                    f"{path}: every party refuses a job with this file; remove it. An app has {SERVER_CONFIG} and "
                    f"{CLIENT_CONFIG} in its config folder"
                )
            if own[0] != CUSTOM:
                files.append(path)
            elif path.name != MARK or path.stat().st_size:
                raise JobFolderError(
                    f"{path}: is code that the job brings, which a strict site refuses; install it at every party "
                    "instead, or submit the job as it is to sites whose kits allow it"
                )
    return files


def write_submission(
    job: Path, to: Path, *, settings: Mapping[str, Any] | None = None, resume: str | None = None
) -> Path:
    """Write a production copy of a job with further settings; return its folder.

    Args:
        job: A job folder; it stays as it is.
        to: The folder that the copy is put into.
        settings: Change the job's own, see `with_changes`.
        resume: ``latest``, a run's name, or FLARE's id of the job that worked on it; None begins a new run.

    Raises:
        ValueError: The job or a setting cannot be; the sentence names the key.
    """
    copy = production_copy(job, to)
    found = sorted(copy.glob(f"*/config/{SERVER_CONFIG}"))
    if len(found) != 1:
        raise JobFolderError(f"{job}: has {len(found)} files {SERVER_CONFIG}, and a job of SurgFL has one")
    path = found[0]
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        arguments = config["workflows"][0]["args"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise JobFolderError(f"{job}: its {SERVER_CONFIG} is none of SurgFL's ({error!r})") from error
    own = {key: value for key, value in arguments.items() if key != RESUME}
    described = Job.from_json(with_changes(own, settings or {}))
    described.open_bundle()
    config["workflows"][0]["args"] = described.to_json() | ({RESUME: resume} if resume else {})
    write_json(path, config)
    return copy
