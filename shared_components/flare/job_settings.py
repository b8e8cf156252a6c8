"""The settings of a job, as its controller receives them from FLARE."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_components.common.strict_json import parse_object
from shared_components.core.method import load_method
from shared_components.core.task import check_tasks
from shared_components.federation.messages import FederationError, Job
from shared_components.flare.deployment.app_files import SERVER_CONFIG
from shared_components.networks.bundle_config import weightless
from shared_components.networks.network_class import check_numbers


def read_job(settings: Mapping[str, Any]) -> Job:
    """Parse and check the job's settings; FederationError names the file and the wrong key."""
    try:
        job = Job.from_json(settings)
        bundle = job.open_bundle()
        check_tasks(bundle.tasks)
        if bundle.chosen:
            check_numbers(weightless(bundle.network))  # the network's constructor checks them, too
        load_method(job.method, **job.arguments)
    except (TypeError, ValueError) as error:
        raise FederationError(f"config_fed_server.json: {error}") from error
    return job


def refuse_substituted(config: Path, settings: Mapping[str, Any]) -> None:
    """Raise FederationError if FLARE's simulator has changed a setting of the job's file.

    The simulator replaces text between braces by `str.format`, with variables of the environment. A deployment does
    not, see `patches.job_configuration`.
    """
    try:
        written = parse_object(config.read_bytes())["workflows"][0]["args"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FederationError(f"{config}: cannot be read as JSON ({error!s:.200}); correct it") from error
    for key, value in settings.items():
        if key not in written or written[key] != value:
            raise FederationError(
                f"{SERVER_CONFIG}: {key} contains braces, which the simulator replaces; write it without braces"
            )
