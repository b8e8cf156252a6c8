"""In every process of a deployment, read only JSON, and accept only a job's own two JSON files of permitted people.

FLARE 2.9 also reads HOCON and YAML, and parses a job's configuration in a party's main process before it checks the
submitter's role. HOCON's `include` imports packages, which may be code of an earlier job, opens URLs, and shows whether
a file exists. FLARE also passes every text to `str.format`, with the variables of the environment:
``{SITE_NAME:>300000000}`` becomes a text of 300 MB, and ``{$NAME}`` shows a variable in an error message.

Here a party checks the names of a job's files and its signers' roles before it unpacks the job, and parses nothing of
the job in its main process. A job's own process parses the two files as JSON, and refuses text with braces. The reply
to a deployment contains no exception.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_config_loader import JsonConfig, JsonConfigLoader
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.fed.app import default_app_validator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from shared_components.common.sanitise import one_line
from shared_components.common.strict_json import parse_object
from shared_components.flare.deployment import app_files
from shared_components.flare.deployment.app_files import CLIENT_CONFIG, LARGEST_FILE, SERVER_CONFIG, JobFileError
from shared_components.flare.patches.replace import expect, replace

NOT_DEPLOYED = "the job could not be deployed; read the reason in the log there"
SUBMITTER = (JobMetaKey.SUBMITTER_NAME, JobMetaKey.SUBMITTER_ORG, JobMetaKey.SUBMITTER_ROLE)
SUPER = "super"  # a role to which FLARE allows everything, whatever a party's file contains
Own = Callable[..., Any]  # a function of FLARE

logger = logging.getLogger(__name__)


def read_only_json() -> None:
    """Restrict the configurations that this process reads, and the jobs that it accepts."""
    expect(default_app_validator, "_config_exists")  # does not look into the configuration that it loads
    replace(ConfigFactory, "get_config_loader", _json_loader)
    replace(AppDeployer, "deploy", _deploy_known_files)
    replace(JobMetaValidator, "_validate_zf", _validate_known_files)


def import_only_installed() -> None:
    """Remove the working folder, which contains jobs, from the import path of this process and its children."""
    os.environ["PYTHONSAFEPATH"] = "1"
    here = Path.cwd()
    sys.path[:] = [folder for folder in sys.path if folder and Path(folder).resolve() != here]


class Loader(JsonConfigLoader):
    """Reads JSON strictly; a file is read when somebody asks for its content."""

    def load_config(self, file_path: str) -> JsonConfig:
        """Return the configuration in a file, which is not read yet."""
        return LazyConfig(file_path)

    def load_config_from_str(self, config_str: str) -> JsonConfig:
        """Return the configuration in a text; ValueError if it is no JSON object."""
        return JsonConfig(_parse(config_str.encode(), "a job's file"))


class LazyConfig(JsonConfig):
    """A JSON file that is parsed when it is used; ValueError if it is no JSON object, or a job's with braces."""

    def __init__(self, file_path: str) -> None:
        self._content: dict[str, Any] | None = None
        super().__init__({}, file_path)

    @property
    def conf(self) -> dict[str, Any]:
        """The file's content."""
        if self._content is None:
            path = Path(self.get_location() or "")
            with path.open("rb") as file:
                content = _parse(file.read(LARGEST_FILE + 1), str(path))
            if path.name in (SERVER_CONFIG, CLIENT_CONFIG) and (text := _text_with_braces(content)) is not None:
                raise ValueError(f"{path} contains {one_line(text, 80)!r}; no text of a job may contain braces")
            self._content = content
        return self._content

    @conf.setter
    def conf(self, value: Any) -> None:
        """Ignore FLARE's empty value."""


def _text_with_braces(value: Any) -> str | None:
    """Return the first text with braces, which FLARE would replace; None without any."""
    if isinstance(value, str):
        return value if "{" in value or "}" in value else None
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((text for part in parts if (text := _text_with_braces(part)) is not None), None)


def _json_loader(loader_of: Own, config_format: ConfigFormat | None) -> Any:
    if config_format is None:
        return loader_of(config_format)
    if config_format is not ConfigFormat.JSON:
        raise ValueError(f"{config_format} is not supported; write JSON, since only JSON is read")
    return Loader()


def _parse(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{where} is larger than {LARGEST_FILE} bytes")
    try:
        return parse_object(data)
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {one_line(error, 200)}") from None


def _deploy_known_files(deploy: Own, deployer, workspace, job_id, job_meta, app_name, app_data, fl_ctx) -> str:
    try:
        app_files.check_app_zip(app_data)
        for submitter in _submitters(workspace, job_meta, app_name, app_data):
            _check_submitter(*submitter)
        return deploy(deployer, workspace, job_id, job_meta, app_name, app_data, fl_ctx)
    except JobFileError as error:
        logger.error("job %s is refused: %s", job_id, error)
        return str(error)
    except Exception:
        logger.exception("job %s could not be deployed", job_id)
        shutil.rmtree(workspace.get_run_dir(job_id), ignore_errors=True)
        return NOT_DEPLOYED


def _submitters(workspace: Any, job_meta: Any, app_name: str, app_data: bytes) -> Iterable[tuple[Any, ...]]:
    """Return the name, organisation and role of each signer of an app, or of the submitter if it is not signed."""
    with TemporaryDirectory() as folder:
        unzip_all_from_bytes(app_data, folder)
        if not (Path(folder) / NVFLARE_SIG_FILE).exists():
            return [tuple(job_meta.get(key, "") for key in SUBMITTER)]
        verified, signers = verify_folder_signature_and_get_signers(
            folder, workspace.get_file_path_in_startup("rootCA.pem")
        )
    if not verified or not signers:
        raise JobFileError(f"app {one_line(app_name)} does not pass signature verification")
    return signers


def _check_submitter(name: Any, organisation: Any, role: Any) -> None:
    """Raise JobFileError if a person may not submit jobs, by this party's own `authorization.json`."""
    person = Person(one_line(name), one_line(organisation), one_line(role))
    context = AuthzContext(right=AdminCommandNames.SUBMIT_JOB, user=person, submitter=person)
    if person.role == SUPER or not AuthorizationService.authorize(context)[0]:
        raise JobFileError(f"{one_line(name)} ({one_line(role)}) may not submit jobs here")


def _validate_known_files(validate: Own, validator: JobMetaValidator, job_name: str, archive: Any) -> Any:
    app_files.check_job_zip(job_name, archive.infolist())
    return validate(validator, job_name, archive)
