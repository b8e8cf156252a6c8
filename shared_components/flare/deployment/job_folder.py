"""Inspect a FLARE job folder before a hospital accepts it: its classes, code, files and settings.

A job of SurgFL consists of two JSON files and a `meta.json`, with names and numbers only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from shared_components.common.reject_code import refuse_code
from shared_components.common.strict_json import parse_object
from shared_components.federation.messages import Job
from shared_components.flare.deployment.app_files import CUSTOM, LARGEST_FILE, META, PAPERS
from shared_components.networks import bundle_config

CONTROLLER = "shared_components.flare.controller.FederationController"
META_KEYS = frozenset({"name", "resource_spec", "deploy_map", "min_clients", "mandatory_clients", "scope"})
"""Permitted keys of `meta.json`; `launcher_spec` would choose containers, and FLARE itself adds every other key."""
FILTERS = ("task_data_filters", "task_result_filters")
CONFIG_KEYS = {
    "client": {"format_version", "executors", *FILTERS, "components"},
    "server": {"format_version", "server", "workflows", *FILTERS, "components"},
}
RESUME = "resume"  # argument of the controller that belongs to a submission, not to the job
MARK = ".gitkeep"  # in app/custom, which the simulator needs


def jobs_folder() -> Path:
    """Return the folder of the jobs that come with SurgFL."""
    return bundle_config.bundles_folder().parent / "nvflare_jobs"


class JobFolderError(ValueError):
    """A folder cannot be read as a job; the message names the file."""


@dataclass(frozen=True)
class Named:
    """A class in a config."""

    side: str  # "server" or "client"
    place: str
    path: str


@dataclass(frozen=True)
class JobFolder:
    """The content of a job folder."""

    folder: Path
    named: tuple[Named, ...]  # every class, in the order of the configs
    job: Job | None  # the controller's arguments; None if they are not valid or belong to another controller
    marked: tuple[str, ...]  # `custom` folders; FLARE treats a job with one as a job with code, even if it is empty
    code: tuple[str, ...]  # files in `custom` folders
    unneeded: tuple[str, ...]  # files that no party reads
    problems: tuple[str, ...]  # a sentence for each thing that a site refuses, except classes and code


def read_job_folder(folder: Path) -> JobFolder:
    """Read `meta.json` and the two configs of every app, and list the other files.

    Raises:
        JobFolderError: A file is missing, a link, too large or no valid JSON object.
    """
    meta, apps = _read_object(folder / META), apps_of(folder)
    problems = [f"{META}: unknown key {key!r:.80}; leave it out" for key in meta if key not in META_KEYS]
    problems += _code_in({key: value for key, value in meta.items() if key != "deploy_map"}, META)
    configs: dict[str, dict[str, Any]] = {}
    for app in apps:
        for side in ("server", "client"):
            if (path := folder / app / "config" / f"config_fed_{side}.json").exists() or len(apps) == 1:
                configs[f"{app}/config/{path.name}"] = _read_object(path)
    job, named = None, []
    for name, config in configs.items():
        side = "server" if name.endswith("server.json") else "client"
        problems += _unknown_keys(name, side, config)
        for place, component in components(side, config):
            named.append(Named(side, f"{name}: {place}", str(component.get("path", component.get("class_path", "")))))
            arguments = component.get("args", {})
            try:
                if component.get("path") == CONTROLLER:
                    if job is not None or not place.startswith("workflows"):
                        problems.append(f"{name}: {place} is a second controller, or no workflow; a job has one")
                    job = Job.from_json({key: value for key, value in arguments.items() if key != RESUME})
                refuse_code(arguments, f"{name}: {place}.args")
            except ValueError as error:
                problems.append(str(error))
    marked = tuple(f"{app}/{CUSTOM}" for app in apps if (folder / app / CUSTOM).exists())
    code, unneeded = _other_files(folder, set(configs), marked)
    return JobFolder(folder, tuple(named), job, marked, tuple(code), tuple(unneeded), tuple(dict.fromkeys(problems)))


def apps_of(folder: Path) -> list[str]:
    """Return the sorted names of a job's apps: the folders in its `deploy_map`; raise JobFolderError without any."""
    apps = _read_object(folder / META).get("deploy_map")
    if not isinstance(apps, Mapping) or not apps:
        raise JobFolderError(f"{folder / META}: it has no deploy_map; name an app and its sites")
    for app in apps:
        parts, path = PurePosixPath(str(app)).parts, folder / str(app)
        if len(parts) != 1 or parts[0] in ("..", "/") or path.is_symlink() or not (path / "config").is_dir():
            raise JobFolderError(
                f"{folder / META}: deploy_map names {app!r:.80}, no folder of the job with a config in it"
            )
    return sorted(apps)


def components(side: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every component that FLARE builds from a config, with its place in FLARE's notation."""
    for number, entry in enumerate(_list(config, "executors" if side == "client" else "workflows"), start=1):
        if side == "server":
            yield f"workflows.#{number}", entry
        elif isinstance(executor := entry.get("executor"), dict):
            yield f"executors.#{number}.executor", executor
        else:
            raise JobFolderError(f"executor is {executor!r:.80}; it must be an object with path and args")
    for key in FILTERS:
        for number, chain in enumerate(_list(config, key), start=1):
            for place, entry in enumerate(_list(chain, "filters"), start=1):
                yield f"{key}.#{number}.filters.#{place}", entry
    for number, entry in enumerate(_list(config, "components"), start=1):
        yield f"components.#{number}", entry


def _unknown_keys(name: str, side: str, config: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each key of a config that jobs of SurgFL do not have, and for code in its values."""
    keys = [key for key in config if key not in CONFIG_KEYS[side]]
    if isinstance(settings := config.get(side), Mapping):
        permitted = {"heart_beat_timeout", "task_request_interval"} if side == "server" else set()
        keys += [f"{side}.{key}" for key in settings if key not in permitted]
    for place, component in components(side, config):
        keys += [f"{place}.{key}" for key in component if key not in ("id", "path", "args")]
    rest = {key: value for key, value in config.items() if key in ("format_version", "server")}
    tasks = [chain.get("tasks") for key in ("executors", *FILTERS) for chain in _list(config, key)]
    unknown = [f"{name}: unknown key {key:.200}; leave it out" for key in keys]
    return [*unknown, *_code_in(rest, name), *_code_in(tasks, f"{name}: tasks")]


def _code_in(value: Any, where: str) -> list[str]:
    try:
        refuse_code(value, where)
    except ValueError as error:
        return [str(error)]
    return []


def _other_files(folder: Path, configs: set[str], marked: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the files in `custom` folders, and the files that no party reads."""
    code, unneeded = [], []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if any(PurePosixPath(name).is_relative_to(custom) for custom in marked):
            if path.name != MARK or path.is_symlink() or path.stat().st_size:
                code.append(name)
        elif name not in configs | {META} | PAPERS:
            unneeded.append(name)
    return code, unneeded


def _read_object(path: Path) -> dict[str, Any]:
    """Read one JSON object; raise JobFolderError with one sentence."""
    try:
        size = path.stat().st_size if path.is_file() and not path.is_symlink() else None
        if size is not None and size <= LARGEST_FILE:
            return parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise JobFolderError(f"{path} cannot be read as JSON ({error!s:.200}); correct it") from error
    if size is None:
        raise JobFolderError(f"{path} does not exist, or is no regular file; a job needs this JSON file")
    raise JobFolderError(f"{path} has {size} bytes, more than the limit of {LARGEST_FILE}")


def _list(config: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = config.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise JobFolderError(f"{key} is {value!r:.80}; it must be a list of objects")
    return value
