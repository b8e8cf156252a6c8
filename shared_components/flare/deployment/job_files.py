"""Generate the folders of `nvflare_jobs/` from `jobs.yaml`: settings of all jobs, and a row of changes per job."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from shared_components.common.atomic import differing, write_text
from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.common.schema import check_keys
from shared_components.core.method import method_names
from shared_components.federation.messages import Job, with_changes
from shared_components.flare.deployment.app_files import CLIENT_CONFIG, CUSTOM, META, SERVER_CONFIG
from shared_components.flare.deployment.job_folder import MARK

DESCRIPTION, CARD = "jobs.yaml", "README.md"
_META = """\
{
  "name": %s,
  "resource_spec": {},
  "deploy_map": {"app": ["@ALL"]},
  "min_clients": 1
}
"""
_SERVER = """\
{
  "format_version": 2,
  "server": {"task_request_interval": 0.2},
  "task_data_filters": [],
  "task_result_filters": [],
  "components": [],
  "workflows": [
    {
      "id": "federation",
      "path": "shared_components.flare.controller.FederationController",
      "args": {
        %s
      }
    }
  ]
}
"""


def described_jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments of each job's controller by the job's name, from the folder's `jobs.yaml`.

    A row changes the settings of all jobs, see `with_changes`. A job has the name of its method, unless the row
    sets ``method``.

    ValueError: the file cannot be read, a row has an unknown key, or rows and methods do not match.
    """
    path = folder / DESCRIPTION
    try:
        described = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, YamlError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(described, dict) or set(described) != {"all", "jobs"}:
        raise ValueError(f"{path}: must have the keys 'all', settings of every job, and 'jobs', a row per job")
    common, rows = described["all"], described["jobs"]
    if not isinstance(common, dict) or not isinstance(rows, dict):
        raise ValueError(f"{path}: 'all' and 'jobs' must contain 'key: value' lines")
    variants = {name for name, row in rows.items() if isinstance(row, dict) and "method" in row}
    if unmatched := (set(rows) - variants) ^ set(method_names()):
        name = min(unmatched)
        problem = "is no method; correct the name" if name in rows else "has no row; add it under 'jobs'"
        raise ValueError(f"{path}: {name} {problem}")
    settings = [setting.name for setting in fields(Job) if setting.name != "name"]
    for name, row in rows.items():
        check_keys(settings, row, f"{path}: {name}")
    return {name: {"name": name, "method": name} | with_changes(common, row) for name, row in rows.items()}


def job_files(folder: Path) -> dict[Path, str]:
    """Return the text of every generated file; ValueError as in `described_jobs`, or if a job has no README.md."""
    files, client = {}, Path(__file__).with_name("client_config.json").read_text(encoding="utf-8")
    for name, arguments in described_jobs(folder).items():
        job = folder / name
        if not (job / CARD).is_file():
            raise ValueError(f"{job / CARD} is missing; write the job's card")
        order = ("name", "bundle", "method", *(key for key in arguments if key not in ("name", "bundle", "method")))
        lines = ",\n        ".join(f"{json.dumps(key)}: {json.dumps(arguments[key])}" for key in order)
        files[job / META] = _META % json.dumps(name)
        files[job / "app" / "config" / CLIENT_CONFIG] = client
        files[job / "app" / "config" / SERVER_CONFIG] = _SERVER % lines
        files[job / "app" / CUSTOM / MARK] = ""  # FLARE's simulator needs the folder
    return files


def outdated_files(folder: Path) -> list[Path]:
    """Return the generated files that are missing or differ from `jobs.yaml`."""
    return differing(job_files(folder))


def write_jobs(folder: Path) -> list[Path]:
    """Write the outdated files; return them."""
    files = job_files(folder)
    changed = differing(files)
    for path in changed:
        write_text(path, files[path])
    return changed
