"""Read startup kits, and write the files that restrict a kit to SurgFL's jobs.

FLARE reads `local/resources.json` and `local/authorization.json` of a kit. If they are missing, it reads the `.default`
files in the same folder, which allow about ninety of FLARE's classes and let administrators send code.
"""

import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from shared_components.common.atomic import write_text
from shared_components.common.sanitise import is_one_word
from shared_components.flare.deployment import prepared
from shared_components.flare.deployment.federation_file import MOST_REGIONS, MOST_SITES, RELAY, RESERVED, ROLES

PARTS = {
    "server": "fed_server.json", "site": "fed_client.json", "region": "fed_client.json", "relay": "fed_relay.json",
    "administrator": "fed_admin.json",
}  # fmt: skip
"""Kinds of kits, each with the file of its `startup` folder that FLARE reads; only a region's node is no leaf."""
NO_JOBS = ("relay", "administrator")  # kits of parties that run no job
FILTER = "shared_components.flare.filters.DeclaredPiecesOnly"
GUARD = "shared_components.flare.peers.KeepToTheServer"  # every party: restricts the messages from others
BOUNDARY = "shared_components.flare.boundary.RequireBoundary"  # every party: no start without the restricting files
LOST_SITES = "shared_components.flare.lost_sites.LostSites"  # server: a lost site does not end the job
METRICS = "shared_components.flare.metrics_file.MetricsFile"  # if the party wishes: metrics for Prometheus
ALLOW_LIST = Path(__file__).with_name("allow_list.json")
"""Classes that a job may name at the `server` and at a `client`."""
PRIVACY = "privacy.json"
CHECK = 'python3 -P -m shared_components.flare.deployment.check "$KIT_WORKSPACE" || exit 1'
AFTER_CHECK = 'echo "WORKSPACE set to $WORKSPACE"\n'
FLARES_HEART_BEAT, HEART_BEAT_SECONDS = 600, 30  # the server drops a site after this and another minute of silence
COMM, MUTUAL = "comm_config.json", "mtls"
FLARES_RELAY, OUR_RELAY = "nvflare.private.fed.app.relay.relay", "shared_components.flare.relay"
FLARES_MOST_CLIENTS = 100
STORAGE = "storage"
CODE = ("byoc", "server-predeployed-flwr")
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", *CODE)
CODE_ROLES = ("project_admin", "lead")
FLARES_PATH = "export PYTHONPATH=/local/custom:$PYTHONPATH"
# without an empty entry, which means the working folder to Python
SAFE_PATH = 'export PYTHONPATH="/local/custom${PYTHONPATH:+:$PYTHONPATH}"'
SAFE_START = "export PYTHONSAFEPATH=1  # import nothing from the working folder, in which jobs lie"
REMEDY = "run surgfl secure-kit {}, and start it again"  # for the problems that `open_problem` returns
LIMITS = """\
# Limits of a job on this machine. The site refuses a job that needs more.
# docs/reference/limits-yaml.md explains the keys.
"""


class KitError(ValueError):
    """A folder is no startup kit, or the kit cannot be secured."""


@dataclass(frozen=True)
class Kit:
    """A startup kit: its folder and its kind, a key of `PARTS`."""

    folder: Path
    part: str

    @property
    def local(self) -> Path:
        """The folder of the party's own settings."""
        return self.folder / "local"


def find_kit(folder: Path) -> Kit:
    """Return the startup kit in a folder; raise KitError if there is none, or if FLARE cannot start it there."""
    folder = Path(folder).resolve()
    refuse_spaces(folder)
    files = dict.fromkeys(file for file in PARTS.values() if (folder / "startup" / file).is_file())
    if len(files) != 1 or not (folder / "local").is_dir():
        raise KitError(f"{folder}: is no startup kit; give a folder that contains 'local' and 'startup'")
    (part, *others) = (part for part, file in PARTS.items() if file in files)
    if others and not _client(folder / "startup" / PARTS[part]).get("is_leaf", True):
        part = "region"
    return Kit(folder, part)


def _client(path: Path) -> dict[str, Any]:
    client = read_json(path).get("client", {})
    return client if isinstance(client, dict) else {}


def refuse_spaces(folder: Path) -> None:
    """Raise KitError for a path with a space or a quotation mark: FLARE would split it when it starts a job."""
    if not is_one_word(str(folder)):
        raise KitError(f"{str(folder)!r} has a space or a quotation mark in it, so FLARE starts no job; rename it")


def secure(
    kit: Kit, *, allow_custom_code: bool = False, metrics: Path | None = None, gpus: int | None = None
) -> list[str]:
    """Write the files that restrict a kit, and keep the party's other settings; return a line per changed file.

    With ``allow_custom_code``, the party runs code that a job brings. ``metrics`` is the folder for its metrics; the
    empty path ends them, and None keeps the kit's choice. ``gpus`` is the number of GPUs of each job's process in a kit
    of `nvflare deploy prepare`; None keeps the number.

    KitError: a file of the kit cannot be read; nothing was written.
    """
    startup, changes = kit.folder / "startup", []
    own = startup / PARTS[kit.part]
    if kit.part == "site":
        name = str(_client(own).get("fqsn", "")).rpartition(".")[2]
        if name.lower() in RESERVED or name.lower().endswith(RELAY):  # FLARE's own provisioning allows it
            raise KitError(f"{own}: the site is called {name!r}, which is reserved; provision it with another name")
        changes.append(_change(kit, PRIVACY, partial(_privacy, kit)))
    if metrics is not None and kit.part in NO_JOBS:
        raise KitError(f"{kit.folder}: a party of kind '{kit.part}' has no metrics; leave out --metrics")
    if kit.part not in NO_JOBS:
        changes.append(_change(kit, "resources.json", partial(_resources, kit, metrics, gpus)))
        changes.append(_change(kit, "authorization.json", partial(_authorization, kit, allow_custom_code)))
    if kit.part == "relay":
        listener = kit.local / COMM
        changes += [_changed(own, own, _mutual_tls), _changed(listener, listener, _listen_by_mutual_tls)]
    elif not (startup / "signature.json").exists():  # a kit that FLARE signs must not change
        changes.append(_changed(own, own, _login_by_certificate if kit.part == "administrator" else _require_boundary))
    changes += [*_prepared_files(kit), *_start_scripts(kit)]
    lines = [_write(path, text, summary) for path, text, summary in changes if _differs(path, text)]
    for name, text, summary in _templates() if kit.part == "site" else ():
        if not (path := kit.local / name).exists():
            lines.append(_write(path, text, summary))
    return lines


def _start_scripts(kit: Kit) -> Iterator[tuple[Path, str, str]]:
    """Yield each script that starts Python, with its new text: `SAFE_START`, and in sub_start.sh `CHECK`."""
    for path in sorted((kit.folder / "startup").glob("*.sh")):
        text = path.read_text(encoding="utf-8")
        if path.name == prepared.START_DOCKER:
            yield path, prepared.safe_docker_start(text), "Python imports nothing from the container's working folder"
            continue
        if "python3 " not in text:
            continue
        starts = path.name == "sub_start.sh"
        first, _, rest = text.partition("\n")
        no_place = SAFE_START not in text and (not first.startswith("#!") or starts != (FLARES_PATH in rest))
        if no_place or (starts and CHECK not in text and AFTER_CHECK not in text):
            raise KitError(f"{path}: is not a script of FLARE's kits; provision the kit again")
        if SAFE_START not in text:
            text = f"{first}\n{SAFE_START}\n{rest.replace(FLARES_PATH, SAFE_PATH)}"
        text = text.replace(FLARES_RELAY, OUR_RELAY)
        if starts and CHECK not in text:  # FLARE names no file that it cannot read
            text = text.replace(AFTER_CHECK, f"{CHECK}\n{AFTER_CHECK}")
        yield path, text, "Python imports nothing from the working folder" + ", and the kit is checked first" * starts


def _launcher(kit: Kit) -> dict[str, Any] | None:
    """Return the component that starts a prepared kit's jobs elsewhere; None in other kits."""
    return prepared.find_launcher(read_json(_source(kit.local / "resources.json")))


def _prepared_files(kit: Kit) -> Iterator[tuple[Path, str, str]]:
    """Yield the other files of a kit of `nvflare deploy prepare`: its listener for jobs, and templates."""
    if kit.part not in NO_JOBS and (launcher := _launcher(kit)) is not None:
        path = kit.local / COMM
        yield _changed(path, path, _listen_by_mutual_tls)
        yield from prepared.local_files(kit.folder, launcher)


def _templates() -> Iterator[tuple[str, str, str]]:
    from shared_components.federation.setup.limits import FILE, Limits  # imports torch, which takes seconds

    template = Path(__file__).with_name("site_template.yaml").read_text(encoding="utf-8")
    yield "site.yaml", template, "a template; fill it in"
    defaults = "".join(f"{key}: {value}\n" for key, value in asdict(Limits()).items() if value is not None)
    yield FILE, LIMITS + defaults, "limits of a job on this machine; lower them if you like"


Made = tuple[dict[str, Any], str]  # new values of a file, and a summary


def open_problem(kit: Kit) -> str:
    """Return why a kit's files do not restrict its processes, or an empty text; an administrator's kit needs none.

    A file restricts them if `secure` would change no restriction in it.
    """
    changes: dict[str, list[Callable[[dict[str, Any]], Made]]] = {
        "resources.json": [partial(_restrict, kit)],
        "authorization.json": [partial(_authorization, kit, code) for code in (False, True)],
    }
    if kit.part == "site":
        changes[PRIVACY] = [partial(_privacy, kit)]
    if kit.part in NO_JOBS:
        changes = {COMM: [_listen_by_mutual_tls]} if kit.part == "relay" else {}
    for name, alternatives in changes.items():
        if problem := _problem_in(kit.local / name, alternatives):
            return problem
    is_prepared = kit.part not in NO_JOBS and _launcher(kit) is not None
    return _problem_in(kit.local / COMM, [_listen_by_mutual_tls]) if is_prepared else ""


def _problem_in(path: Path, alternatives: list[Callable[[dict[str, Any]], Made]]) -> str:
    """Return why a file restricts less than every alternative of its secured content, or an empty text."""
    try:
        if not path.is_file():
            raise KitError(f"{path}: no such file, so FLARE's own defaults would apply")
        before = read_json(path)
        secured = [json.loads(_changed(path, path, change)[1]) for change in alternatives]
    except KitError as error:
        return str(error)
    if before in secured:
        return ""
    keys = ", ".join(key for key in secured[0] if secured[0][key] != before.get(key))
    return f"{path}: {keys} would not restrict jobs and messages"


def refuse_open(kit: Kit) -> None:
    """Raise KitError if a kit's files do not restrict its processes; the message names the remedy."""
    if problem := open_problem(kit):
        raise KitError(f"{problem}; {REMEDY.format(kit.folder)}")


def _change(kit: Kit, name: str, make: Callable[[dict[str, Any]], Made]) -> tuple[Path, str, str]:
    """Return a file's path, new text and summary; ``make`` changes the values of the file or of FLARE's default."""
    path = kit.local / name
    source = _source(path)
    if name != PRIVACY and not source.exists():
        raise KitError(f"{source}: no such file; provision the kit again")
    return _changed(path, source, make)


def _source(path: Path) -> Path:
    """Return the file that FLARE reads: ``path``, or its default if ``path`` does not exist."""
    return path if path.exists() else path.with_name(f"{path.name}.default")


def _changed(path: Path, source: Path, make: Callable[[dict[str, Any]], Made]) -> tuple[Path, str, str]:
    try:
        values, summary = make(read_json(source) if source.exists() else {})
    except (AttributeError, KeyError, TypeError) as error:
        raise KitError(f"{source}: FLARE cannot read it ({error!r}); correct it, or move it away") from error
    return path, json.dumps(values, indent=2) + "\n", summary


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise KitError if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise KitError(f"{path}: cannot be read ({error!s:.200}); correct it, or move it away") from error
    if not isinstance(values, dict):
        raise KitError(f"{path}: contains no JSON object; correct it, or move it away")
    return values


def _differs(path: Path, text: str) -> bool:
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    return before != text and not (before and path.suffix == ".json" and json.loads(before) == json.loads(text))


def _write(path: Path, text: str, summary: str) -> str:
    mode = path.stat().st_mode if path.exists() else None
    write_text(path, text)
    if mode is not None:
        path.chmod(stat.S_IMODE(mode))  # scripts stay executable, and private files private
    return f"{path}: {summary}"


def _restrict(kit: Kit, values: dict[str, Any], gpus: int | None = None) -> Made:
    allowed = read_json(ALLOW_LIST)
    values["class_list_enforcement_mode"] = allowed["class_list_enforcement_mode"]
    values["class_allow_list"] = allowed["server" if kit.part == "server" else "client"]["class_allow_list"]
    names = " and ".join(name.rpartition(".")[2] for name in values["class_allow_list"])
    _add_component(values, GUARD)
    if kit.part != "server":
        values["allow_log_streaming"] = False
    try:
        launcher = prepared.secure_launcher(values, gpus)
    except prepared.PreparedError as error:
        raise KitError(f"{kit.local / 'resources.json'}: {error}") from error
    summary = f"a job may name {names}, and no other class"
    return values, summary + (f"; {launcher['path'].rpartition('.')[2]} starts jobs" if launcher else "")


def _resources(kit: Kit, metrics: Path | None, gpus: int | None, values: dict[str, Any]) -> Made:
    values, summary = _restrict(kit, values, gpus)
    if metrics is not None:
        values["components"] = [entry for entry in values["components"] if entry.get("path") != METRICS]
        if metrics != Path():
            _add_component(values, METRICS, folder=str(metrics))
            summary += f"; metrics are written to {metrics}"
    if kit.part != "server":
        return values, f"{summary}; no log leaves the site"
    for server in values["servers"]:
        if server.get("heart_beat_timeout") == FLARES_HEART_BEAT:
            server["heart_beat_timeout"] = HEART_BEAT_SECONDS
        if server.get("max_num_clients") == FLARES_MOST_CLIENTS:
            server["max_num_clients"] = MOST_SITES + MOST_REGIONS
    _store_in_kit(values)
    _add_component(values, LOST_SITES)
    return values, f"{summary}; jobs and results are kept in {STORAGE}/"


def _add_component(values: dict[str, Any], component: str, **args: Any) -> None:
    """Add one of our components, which FLARE builds at the start, unless it is present and enabled."""
    ours = {"id": component.split(".")[-2], "path": component, "args": args}
    if ours not in (components := values.setdefault("components", [])):
        values["components"] = [*(entry for entry in components if entry.get("path") != component), ours]


def _require_boundary(values: dict[str, Any]) -> Made:
    for server in values.get("servers", []):
        server["max_num_clients"] = max(server.get("max_num_clients", 0), MOST_SITES)
    _add_component(values, BOUNDARY)
    return values, "every process ends at its start if the files in local/ no longer restrict it"


def _mutual_tls(values: dict[str, Any]) -> Made:
    values["connect_to"]["connection_security"] = MUTUAL
    return values, "the relay and the server show their certificates to each other"


def _listen_by_mutual_tls(values: dict[str, Any]) -> Made:
    if values["internal"].get("scheme") == "file":
        raise KitError(f"{COMM}: jobs connect by files, without certificates; set internal.scheme to tcp")
    values["allow_adhoc_conns"] = False
    values["internal"]["resources"]["connection_security"] = MUTUAL
    return values, "only processes with a certificate of the federation connect to this party"


def _login_by_certificate(values: dict[str, Any]) -> Made:
    values["admin"]["uid_source"] = "cert"
    return values, "FLARE's console logs in by the name in the certificate, and asks for none"


def _store_in_kit(values: dict[str, Any]) -> None:
    """Move FLARE's storage from /tmp into the kit; keep a folder that somebody has chosen."""
    storage = "shared_components.flare.storage.KitStorage"
    snapshots = values.get("snapshot_persistor", {}).get("args", {})
    if "/tmp/nvflare" in json.dumps(snapshots):
        snapshots["storage"] = {"path": storage, "args": {"folder": f"{STORAGE}/snapshots"}}
    components = {entry.get("id"): entry for entry in values.get("components", [])}
    manager, store = components.get("job_manager"), components.get("job_store")
    if manager and store and "/tmp/nvflare" in json.dumps(manager):
        manager["args"]["uri_root"] = f"{STORAGE}/jobs"
        store.update(path=storage, args={"folder": "."})


def _authorization(kit: Kit, allow_custom_code: bool, values: dict[str, Any]) -> Made:
    permissions = values["permissions"]
    own = (kit.local / "authorization.json").exists()
    for role in [*ROLES, *(role for role in permissions if role not in ROLES)]:
        rights = permissions.get(role, {})
        if not isinstance(rights, dict):  # one word for all rights
            rights = dict.fromkeys(RIGHTS, rights)
        for right in CODE:
            brings = allow_custom_code and right == "byoc" and role in CODE_ROLES
            rights[right] = "any" if brings else "none"
        if not own and rights.get("shell_commands", "none") != "none":  # cat and grep in the kit
            rights["shell_commands"] = "o:site" if kit.part == "server" else "none"
        if not own:  # `surgfl job watch` reads a job's log at the server, which FLARE's "view" does not include
            rights["get_job_log"] = rights.get("view", "none")
        permissions[role] = rights
    summary = "a job may bring code, which then runs here" if allow_custom_code else "no job may bring code"
    readers = "only people of its own organisation" if kit.part == "server" else "nobody from outside"
    return values, summary if own else f"{summary}; {readers} can read its files"


def _privacy(kit: Kit, values: dict[str, Any]) -> Made:
    """Add our filter to each scope, first on the way in and last on the way out, so that it checks all that leaves."""
    values = values or {"scopes": [{"name": "surgfl"}], "default_scope": "surgfl"}
    if not values.get("scopes") or not values.get("default_scope"):
        raise KitError(f"{kit.local / PRIVACY}: has no scope or no default_scope; add it, or move the file away")
    for scope in values["scopes"]:
        for chain, direction in (("task_data_filters", "in"), ("task_result_filters", "out")):
            rest = [entry for entry in scope.get(chain, []) if entry.get("path") != FILTER]
            ours = [{"path": FILTER, "args": {}, "direction": direction}]
            scope[chain] = ours + rest if direction == "in" else rest + ours
    return values, "only data that a method declares leave the site, whatever a job requests"


def make_private(folder: Path) -> None:
    """Remove all permissions except the owner's from a folder and its contents."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
