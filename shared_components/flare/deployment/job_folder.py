"""Inspect a FLARE job folder before a hospital accepts it: its classes, its code, its files and its settings.

A job here is two JSON files and a `meta.json`: names and numbers. Whatever else it brings is reported by name.
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

SIDES = ("server", "client")
CONTROLLER = "shared_components.flare.controller.FederationController"
META_KEYS = frozenset({"name", "resource_spec", "deploy_map", "min_clients", "mandatory_clients", "scope"})
"""Keys of `meta.json`; a `launcher_spec` would choose containers, and every other key is FLARE's own to add."""
CONFIG_KEYS = {
    "client": {"format_version", "executors", "task_data_filters", "task_result_filters", "components"},
    "server": {"format_version", "server", "workflows", "task_data_filters", "task_result_filters", "components"},
}
SETTINGS = {"server": {"heart_beat_timeout", "task_request_interval"}}
RESUME = "resume"  # of the controller, beside its job: a submission's own
COMPONENT_KEYS = frozenset({"id", "path", "args"})
MARK = ".gitkeep"  # in app/custom, which the simulator needs


def jobs_folder() -> Path:
    """Return the folder of the jobs that come with SurgFL."""
    return bundle_config.bundles_folder().parent / "nvflare_jobs"


class JobFolderError(ValueError):
    """A folder that cannot be read as a job; the message names the file."""


@dataclass(frozen=True)
class Named:
    """A class that a config names: at the server or at the clients, its place in the config, its path."""

    side: str
    place: str
    path: str


@dataclass(frozen=True)
class JobFolder:
    """The content of a job folder.

    Attributes:
        folder: Its path.
        named: Every class, in the order of the configs.
        job: The controller's arguments; None where it is another controller, or they are no job.
        marked: `custom` folders; FLARE takes a job with one for a job with code, empty or not.
        code: Files in them.
        unneeded: Files that no party reads.
        problems: What a site refuses in it, each one sentence; classes and code apart.
    """

    folder: Path
    named: tuple[Named, ...]
    job: Job | None
    marked: tuple[str, ...]
    code: tuple[str, ...]
    unneeded: tuple[str, ...]
    problems: tuple[str, ...]


def read_job_folder(folder: Path) -> JobFolder:
    """Read `meta.json` and the two configs of every app, and list the rest.

    Raises:
        JobFolderError: A file is missing, a link, too large or no JSON of its form.
    """
    meta, apps = _mapping(folder / META), apps_of(folder)
    problems = [
        f"{META}: the key {key!r:.80} is none of a job here; leave it out" for key in meta if key not in META_KEYS
    ]
    problems += _refused({key: value for key, value in meta.items() if key != "deploy_map"}, META)
    configs: dict[str, dict[str, Any]] = {}
    for app in apps:
        for side in SIDES:
            if (path := folder / app / "config" / f"config_fed_{side}.json").exists() or len(apps) == 1:
                configs[f"{app}/config/{path.name}"] = _mapping(path)
    job, named = None, []
    for name, config in configs.items():
        side = "server" if name.endswith("server.json") else "client"
        problems += _oddities(name, side, config)
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
    marked, code, unneeded = _files(folder, set(configs), apps)
    return JobFolder(folder, tuple(named), job, marked, code, unneeded, tuple(dict.fromkeys(problems)))


def apps_of(folder: Path) -> list[str]:
    """Return the names of a job's apps, the folders that its `deploy_map` names, sorted.

    Raises:
        JobFolderError: It is no job folder, or names another one.
    """
    apps = _mapping(folder / META).get("deploy_map")
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
    """Yield every component that FLARE builds of a config, with its place as FLARE writes it."""
    for number, entry in enumerate(_list(config, "executors" if side == "client" else "workflows"), start=1):
        if side == "client":
            yield f"executors.#{number}.executor", _component(entry.get("executor"))
        else:
            yield f"workflows.#{number}", entry
    for key in ("task_data_filters", "task_result_filters"):
        for number, chain in enumerate(_list(config, key), start=1):
            for place, entry in enumerate(_list(chain, "filters"), start=1):
                yield f"{key}.#{number}.filters.#{place}", entry
    for number, entry in enumerate(_list(config, "components"), start=1):
        yield f"components.#{number}", entry


def _oddities(name: str, side: str, config: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each key of a config that no job of SurgFL has, and for code in its values."""
    keys = [(key, "") for key in config if key not in CONFIG_KEYS[side]]
    given = config.get(side)
    settings = given if isinstance(given, Mapping) else {}
    keys += [(key, f"{side}.") for key in settings if key not in SETTINGS.get(side, set())]
    for place, component in components(side, config):
        keys += [(key, f"{place}.") for key in component if key not in COMPONENT_KEYS]
    found = [f"{name}: {place}{key!s:.80} is no key of a job here; leave it out" for key, place in keys]
    rest = {key: value for key, value in config.items() if key in ("format_version", "server")}
    tasks = [chain.get("tasks") for key in ("executors", "task_data_filters", "task_result_filters")
             for chain in _list(config, key)]  # fmt: skip
    return [*found, *_refused(rest, name), *_refused(tasks, f"{name}: tasks")]


def _refused(value: Any, where: str) -> list[str]:
    try:
        refuse_code(value, where)
    except ValueError as error:
        return [str(error)]
    return []


def _files(folder: Path, configs: set[str], apps: list[str]) -> tuple[tuple[str, ...], ...]:
    marked = [f"{app}/{CUSTOM}" for app in apps if (folder / app / CUSTOM).exists()]
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
    return tuple(marked), tuple(code), tuple(unneeded)


def _mapping(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        JobFolderError: One sentence.
    """
    try:
        if path.is_symlink() or not path.is_file():
            raise JobFolderError(f"{path} does not exist, or is no plain file; a job has this file as JSON")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise JobFolderError(f"{path} has {size} bytes; a job's is no larger than {LARGEST_FILE}")
        return parse_object(path.read_bytes())
    except JobFolderError:
        raise
    except (OSError, ValueError) as error:
        raise JobFolderError(f"{path} is no JSON that can be read ({error!s:.200}); correct it") from error


def _list(config: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = config.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise JobFolderError(f"{key} is {value!r:.80}; it is a list of objects")
    return value


def _component(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise JobFolderError(f"executor is {value!r:.80}; it is an object with path and args")
    return value
