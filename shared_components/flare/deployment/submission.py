"""What an administrator submits: a copy of a job for strict sites, with this submission's own settings in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.federation.messages import Job
from shared_components.flare.deployment.job_copy import production_copy
from shared_components.flare.deployment.job_folder import META, RESUME, SERVER_CONFIG, JobFolderError, jobs_folder

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


def write_submission(
    job: Path, to: Path, *, settings: Mapping[str, Any] | None = None, resume: str | None = None
) -> Path:
    """Write a production copy of a job with further settings; return its folder.

    Args:
        job: A job folder; it stays as it is.
        to: The folder that the copy is put into.
        settings: Replace or add to the job's own, key by key.
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
    described = Job.from_json(_merged(own, settings or {}))
    described.open_bundle()
    config["workflows"][0]["args"] = described.to_json() | ({RESUME: resume} if resume else {})
    write_json(path, config)
    return copy


def _merged(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(own)
    for key, value in changes.items():
        inner = merged.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged
