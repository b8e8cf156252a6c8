"""Write the job folder that an administrator submits: a copy of a job without code, with the submission's settings."""

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
    """Return a job's folder, from its path or from the name of a shipped job; raise JobFolderError if there is none."""
    shipped = jobs_folder()
    for folder in (Path(given), shipped / given):
        if (folder / META).is_file():
            return folder
    names = sorted(path.parent.name for path in shipped.glob(f"*/{META}"))
    known = f", or one of {', '.join(names)}" if names else ""
    raise JobFolderError(f"{given}: is no job folder with a {META}; give another folder{known}")


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """Convert `rounds=5` and `training.iterations=10` to nested settings.

    JobFolderError: a setting has no name, no '=', a value that is not valid YAML, or occurs twice.
    """
    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        *outer, last = key.split(".")
        if not equals or not all([*outer, last]):
            raise JobFolderError(f"--set {text}: is no setting; write it as rounds=5 or training.iterations=10")
        section = settings
        for name in outer:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise JobFolderError(f"--set {text}: {name} is given twice; give it once")
        if last in section:
            raise JobFolderError(f"--set {text}: {key} is given twice; give it once")
        try:
            section[last] = read_yaml(value)
        except YamlError as error:
            raise JobFolderError(f"--set {text}: the value {error}") from error
    return settings


def production_copy(job: Path, to: Path, *, marked: bool = False) -> Path:
    """Copy a job for sites that forbid code; return the copy, ``to/<the job's folder>``.

    The copy contains `meta.json` and the folders in its `deploy_map`, without `app/custom`: FLARE's simulator needs
    that folder, and FLARE treats a job with it as a job with code. A ``marked`` copy keeps the empty folder.

    JobFolderError: the folder is no job, contains code, a link or a special file, or the copy exists already.
    """
    job = Path(job).resolve()
    target = Path(to) / job.name
    if os.path.lexists(target):
        raise JobFolderError(f"{target}: exists already; give another folder, or move it away")
    files = [job / META, *(path for app in apps_of(job) for path in _app_files(job / app, marked=marked))]
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for file in files:
            copy = temporary / file.relative_to(job)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _app_files(app: Path, *, marked: bool) -> list[Path]:
    files = []
    for path in sorted(app.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise JobFolderError(f"{path}: is a link or a special file, which FLARE refuses; replace it by a file")
        if path.is_dir():
            continue
        parts = path.relative_to(app).parts
        if not is_app_file(parts):
            raise JobFolderError(
                f"{path}: every party refuses a job with this file; remove it, since an app has only "
                f"{SERVER_CONFIG} and {CLIENT_CONFIG} in its config folder"
            )
        if parts[0] == CUSTOM and (path.name != MARK or path.stat().st_size):
            raise JobFolderError(
                f"{path}: is code, which a strict site refuses; install it at every party instead, or submit the job "
                "itself to sites whose kits allow code"
            )
        if marked or parts[0] != CUSTOM:
            files.append(path)
    return files


def write_submission(
    job: Path, to: Path, *, settings: Mapping[str, Any] | None = None, resume: str | None = None
) -> Path:
    """Write a production copy of a job with changed settings; return its folder.

    ``settings`` are changes, see `with_changes`. ``resume`` is ``latest``, a run's name, or FLARE's id of a job that
    worked on the run; None begins a new run. ValueError: the job or a setting is wrong; the sentence names the key.
    """
    copy = production_copy(job, to)
    configs = sorted(copy.glob(f"*/config/{SERVER_CONFIG}"))
    if len(configs) != 1:
        raise JobFolderError(f"{job}: has {len(configs)} files {SERVER_CONFIG}; a job of SurgFL has one")
    try:
        config = json.loads(configs[0].read_text(encoding="utf-8"))
        arguments = config["workflows"][0]["args"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise JobFolderError(f"{job}: its {SERVER_CONFIG} is not from SurgFL ({error!r})") from error
    own = {key: value for key, value in arguments.items() if key != RESUME}
    changed = Job.from_json(with_changes(own, settings or {}))
    changed.open_bundle()
    config["workflows"][0]["args"] = changed.to_json() | ({RESUME: resume} if resume else {})
    write_json(configs[0], config)
    return copy
