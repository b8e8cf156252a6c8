"""Write the folders of `nvflare_jobs/` from one file: what all jobs have in common, and a row a job."""

import json
from collections.abc import Mapping
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

DESCRIPTION = "jobs.yaml"
CARD = "README.md"
_META = """\
{
  "name": %s,
  "resource_spec": {},
  "deploy_map": {"app": ["@ALL"]},
  "min_clients": 1
}
"""
_CLIENT = """\
{
  "format_version": 2,
  "executors": [
    {"tasks": ["enrol", "round", "unmask", "finish"], "executor": {"path": "shared_components.flare.executor.SiteExecutor", "args": {}}}
  ],
  "task_data_filters": [],
  "task_result_filters": [
    {"tasks": ["enrol", "round", "unmask", "finish"], "filters": [{"path": "shared_components.flare.filters.DeclaredPiecesOnly", "args": {}}]}
  ],
  "components": []
}
"""  # noqa: E501
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
    """Return the arguments of each job's controller by name, from the folder's `jobs.yaml`.

    Raises:
        ValueError: The file cannot be read, a row has a key that no job has, or a method has no row or a row no method.

    A row changes what all jobs have, see `with_changes`. A row that names its ``method`` may have a name of its own.
    """
    path = folder / DESCRIPTION
    try:
        described = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, YamlError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(described, dict) or set(described) != {"all", "jobs"}:
        raise ValueError(f"{path}: must hold 'all', what every job has, and 'jobs', a row each")
    common, rows = described["all"], described["jobs"]
    if not isinstance(common, dict) or not isinstance(rows, dict):
        raise ValueError(f"{path}: 'all' and 'jobs' must hold 'key: value' lines")
    named = {name for name, row in rows.items() if isinstance(row, dict) and "method" in row}
    if odd := (set(rows) - named) ^ set(method_names()):
        name = min(odd)
        what = "is no method; correct the name" if name in rows else "has no row; add it under 'jobs'"
        raise ValueError(f"{path}: {name} {what}")
    settings = [setting.name for setting in fields(Job) if setting.name != "name"]
    for name, row in rows.items():
        check_keys(settings, row, f"{path}: {name}")
    return {name: {"name": name, "method": name} | with_changes(common, row) for name, row in rows.items()}


def job_files(folder: Path) -> dict[Path, str]:
    """Return the text of every generated file below the folder of the jobs.

    Raises:
        ValueError: As `described_jobs`; or a job has no card.
    """
    found = {}
    for name, arguments in described_jobs(folder).items():
        job = folder / name
        if not (job / CARD).is_file():
            raise ValueError(f"{job / CARD} is missing; write the job's card")
        found[job / META] = _META % json.dumps(name)
        found[job / "app" / "config" / CLIENT_CONFIG] = _CLIENT
        found[job / "app" / "config" / SERVER_CONFIG] = _SERVER % _lines(arguments)
        found[job / "app" / CUSTOM / MARK] = ""  # FLARE's simulator wants the folder
    return found


def outdated_files(folder: Path) -> list[Path]:
    """Return the generated files that are not what `jobs.yaml` gives."""
    return differing(job_files(folder))


def write_jobs(folder: Path) -> list[Path]:
    """Write the generated files that differ; return them."""
    made = job_files(folder)
    changed = differing(made)
    for path in changed:
        write_text(path, made[path])
    return changed


def _lines(arguments: Mapping[str, Any]) -> str:
    order = ("name", "bundle", "method", *(key for key in arguments if key not in ("name", "bundle", "method")))
    return ",\n        ".join(f"{json.dumps(key)}: {json.dumps(arguments[key])}" for key in order)
