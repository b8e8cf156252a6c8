"""In every process of a deployment, read only JSON, and accept only a job's own two JSON files.

FLARE 2.9 also reads HOCON and YAML, and parses a job's configuration in a party's main process before it checks the
submitter's role. HOCON's `include` imports packages, which may be code of an earlier job, opens URLs, and shows whether
a file exists. FLARE also passes every text to `str.format`, with the variables of the environment:
``{SITE_NAME:>300000000}`` becomes a text of 300 MB, and ``{$NAME}`` shows a variable in an error message.

Here a party checks the names of a job's files, refuses every other file before it unpacks the job, and parses nothing
of the job in its main process. A job's own process parses the two files as JSON. The reply to a deployment contains no
exception.
"""

import logging
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import JobConstants, SiteType
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_config_loader import JsonConfig, JsonConfigLoader
from nvflare.private import json_configer
from nvflare.private.fed.app import default_app_validator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from shared_components.common.sanitise import one_line
from shared_components.common.strict_json import parse_object
from shared_components.flare.deployment import app_files
from shared_components.flare.deployment.app_files import LARGEST_FILE, JobFileError, is_app_file
from shared_components.flare.patches.replace import replace

CONFIGS = {SiteType.SERVER: JobConstants.SERVER_JOB_CONFIG, SiteType.CLIENT: JobConstants.CLIENT_JOB_CONFIG}
NOT_DEPLOYED = "the job could not be deployed; read the reason in the log there"
Own = Callable[..., Any]  # a function of FLARE

logger = logging.getLogger(__name__)


def read_only_json() -> None:
    """Restrict the configurations that this process reads, and the jobs that it accepts."""
    extensions = {".json": ConfigFormat.JSON, ".json.default": ConfigFormat.JSON}
    replace(ConfigFormat, "config_ext_formats", lambda _: OrderedDict(extensions))
    replace(ConfigFactory, "get_config_loader", _json_loader)
    replace(JsonConfigLoader, "_from_file", _read_file)
    replace(JsonConfigLoader, "load_config_from_str", _read_text)
    # leave every text unchanged
    replace(json_configer, "resolve_var_refs", lambda _, scanner, var_values: None)
    replace(default_app_validator, "_config_exists", _why_incomplete)
    replace(AppDeployer, "deploy", _deploy_known_files)
    replace(JobMetaValidator, "_validate_zf", _validate_known_files)


def import_only_installed() -> None:
    """Remove the working folder, which contains jobs, from the import path of this process and its children."""
    os.environ["PYTHONSAFEPATH"] = "1"
    here = Path.cwd()
    sys.path[:] = [folder for folder in sys.path if folder and Path(folder).resolve() != here]


def _json_loader(loader_of: Own, config_format: ConfigFormat | None) -> Any:
    if config_format not in (None, ConfigFormat.JSON):
        raise ValueError(f"{config_format} is not supported; write JSON, since only JSON is read")
    return loader_of(config_format)


def _read_file(_: Own, loader: JsonConfigLoader, path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return _parse(file.read(LARGEST_FILE + 1), path)


def _read_text(_: Own, loader: JsonConfigLoader, config_str: str) -> JsonConfig:
    return JsonConfig(_parse(config_str.encode(), "a job's file"))


def _parse(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{where} is larger than {LARGEST_FILE} bytes")
    try:
        return parse_object(data)
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {one_line(error, 200)}") from None


def _why_incomplete(_: Own, app_root: str, config_folder: str, site_type: str) -> str:
    """Return why an unpacked app is refused, or an empty text. Nothing is parsed."""
    for path in Path(app_root).rglob("*"):
        parts = path.relative_to(app_root).parts
        if path.is_symlink() or not (path.is_dir() or is_app_file(parts)):
            return f"the job contains {one_line('/'.join(parts), 120)}, which no job may contain"
    name = CONFIGS.get(site_type)
    if name and not (Path(app_root) / config_folder / name).is_file():
        return f"the job has no {config_folder}/{name}"
    return ""


def _deploy_known_files(deploy: Own, deployer, workspace, job_id, job_meta, app_name, app_data, fl_ctx) -> str:
    try:
        app_files.check_app_zip(app_data)
        return deploy(deployer, workspace, job_id, job_meta, app_name, app_data, fl_ctx)
    except JobFileError as error:
        logger.error("job %s is refused: %s", job_id, error)
        return str(error)
    except Exception:
        logger.exception("job %s could not be deployed", job_id)
        shutil.rmtree(workspace.get_run_dir(job_id), ignore_errors=True)
        return NOT_DEPLOYED


def _validate_known_files(validate: Own, validator: JobMetaValidator, job_name: str, archive: Any) -> Any:
    app_files.check_job_zip(job_name, archive.infolist())
    return validate(validator, job_name, archive)
