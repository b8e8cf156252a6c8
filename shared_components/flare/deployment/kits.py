"""Startup kits, and the files that restrict a kit to what SurgFL's jobs need.

FLARE reads a kit's `local/resources.json` and `local/authorization.json`, and where they are missing the `.default`
beside them, which allows some ninety of FLARE's classes and lets administrators send code.
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
from shared_components.flare.deployment.federation_file import RESERVED, ROLES

PARTS = {"server": "fed_server.json", "site": "fed_client.json", "administrator": "fed_admin.json"}
"""The kinds of kits, and the file by which the `startup` folder of each is recognised."""
FILTER = "shared_components.flare.filters.DeclaredPiecesOnly"
GUARD = "shared_components.flare.peers.KeepToTheServer"  # everywhere: restricts the messages of others
BOUNDARY = "shared_components.flare.boundary.RequireBoundary"  # everywhere: no start without the restricting files
LOST_SITES = "shared_components.flare.lost_sites.LostSites"  # at the server: a lost site does not end the job
ALLOW_LIST = Path(__file__).with_name("allow_list.json")
"""The classes that a job may name at the `server` and at a `client`: FLARE builds no others."""
PRIVACY = "privacy.json"
FLARES_HEART_BEAT = 600
CHECK = 'python3 -P -m shared_components.flare.deployment.check "$KIT_WORKSPACE" || exit 1'
CHECKED_BEFORE = 'echo "WORKSPACE set to $WORKSPACE"\n'
HEART_BEAT_SECONDS = 30  # a site counts as gone after this and another minute of silence
STORAGE = "storage"
CODE = ("byoc", "server-predeployed-flwr")
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", *CODE)
CODE_ROLES = ("project_admin", "lead")
FLARES_PATH = "export PYTHONPATH=/local/custom:$PYTHONPATH"
SAFE_PATH = 'export PYTHONPATH="/local/custom${PYTHONPATH:+:$PYTHONPATH}"'
"""Without an empty entry, which Python takes for the working folder."""
SAFE_START = "export PYTHONSAFEPATH=1  # import nothing from the working folder, in which jobs lie"
TEMPLATE = """\
# What this hospital's data are. Until it is filled in, this site refuses every job.
# A command looks at a folder, asks what cannot be seen, and writes this file:
#
#   surgfl site init /data/ours --out KIT/local/site.yaml --force
#
# or replace what stands in angle brackets; docs/reference/site-yaml.md explains every key.
dataset: <frames, nifti, or a public dataset's name>
root: <the folder of the data, such as /data/ours>
split:
  train: [<videos>]
  validation: [<videos>]
  test: [<videos>]
# publish: [style]                # what may leave this site beside weights; [] for nothing
"""
LIMITS = """\
# What this machine does for a job at most; a job that asks for more is refused.
# docs/reference/limits-yaml.md explains the keys.
"""


REMEDY = "run surgfl secure-kit {}, and start it again"
"""Remedy for every reason that `why_open` returns, with a place for the kit's folder."""


class KitError(ValueError):
    """A folder is no startup kit, or one that cannot be secured; the message is one sentence."""


@dataclass(frozen=True)
class Kit:
    """A startup kit: its folder and its kind, one of `PARTS`."""

    folder: Path
    part: str

    @property
    def local(self) -> Path:
        """The folder of the party's own settings."""
        return self.folder / "local"


def find_kit(folder: Path) -> Kit:
    """Return the startup kit of a folder.

    Raises:
        KitError: It is none, or lies where FLARE cannot start it.
    """
    folder = Path(folder).resolve()
    refuse_spaces(folder)
    found = [part for part, file in PARTS.items() if (folder / "startup" / file).is_file()]
    if len(found) != 1 or not (folder / "local").is_dir():
        raise KitError(
            f"{folder}: is no startup kit; name the folder that holds 'startup', with one of "
            f"{', '.join(PARTS.values())} in it, and 'local'"
        )
    return Kit(folder, found[0])


def refuse_spaces(folder: Path) -> None:
    """Raise KitError for a path with a space or a quotation mark, which FLARE would split when it starts a job."""
    if not is_one_word(str(folder)):
        raise KitError(
            f"{str(folder)!r} has a space or a quotation mark in it, which FLARE cannot start a job from; give "
            "another folder"
        )


def secure(kit: Kit, *, allow_custom_code: bool = False) -> list[str]:
    """Write the restricting files of a kit; the party's other settings stay.

    Args:
        kit: Any party's.
        allow_custom_code: Let a job bring code, which this kit then runs.

    Returns:
        A line for each file that changed.

    Raises:
        KitError: A file of the kit cannot be read; nothing was written.
    """
    startup, changes = kit.folder / "startup", []
    if kit.part == "site":
        _refuse_reserved(startup / PARTS["site"])
        changes.append(_change(kit, PRIVACY, partial(_privacy, kit)))
    if kit.part != "administrator":
        changes.append(_change(kit, "resources.json", partial(_resources, kit)))
        changes.append(_change(kit, "authorization.json", partial(_authorization, kit, allow_custom_code)))
    if not (startup / "signature.json").exists():  # a kit that FLARE signs must not change
        own = startup / PARTS[kit.part]
        changes.append(_changed(own, own, _ask_no_name if kit.part == "administrator" else _require_boundary))
    changes += _start_scripts(kit)
    lines = [_write(path, text, words) for path, text, words in changes if _differs(path, text)]
    for name, text, words in _templates() if kit.part == "site" else ():
        if not (path := kit.local / name).exists():
            lines.append(_write(path, text, words))
    return lines


def _start_scripts(kit: Kit) -> Iterator[tuple[Path, str, str]]:
    """Yield each script that starts Python with its new text: `SAFE_START`, and in sub_start.sh `CHECK`."""
    for path in sorted((kit.folder / "startup").glob("*.sh")):
        text = path.read_text(encoding="utf-8")
        if "python3 " not in text:
            continue
        starts = path.name == "sub_start.sh"
        if SAFE_START not in text:
            first, _, rest = text.partition("\n")
            if not first.startswith("#!") or starts != (FLARES_PATH in rest):
                raise KitError(f"{path}: is not the script of FLARE's kits; provision the kit again")
            text = f"{first}\n{SAFE_START}\n{rest.replace(FLARES_PATH, SAFE_PATH)}"
        if starts:  # FLARE names no file that it cannot read
            if CHECK not in text and CHECKED_BEFORE not in text:
                raise KitError(f"{path}: is not the script of FLARE's kits; provision the kit again")
            text = text if CHECK in text else text.replace(CHECKED_BEFORE, f"{CHECK}\n{CHECKED_BEFORE}")
        yield path, text, "Python imports nothing from the working folder" + ", and the kit is checked first" * starts


def _templates() -> Iterator[tuple[str, str, str]]:
    from shared_components.federation.setup.limits import FILE, Limits  # imports torch, which takes seconds

    yield "site.yaml", TEMPLATE, "a template; fill it in"
    given = {key: value for key, value in asdict(Limits()).items() if value is not None}
    numbers = "".join(f"{key}: {value}\n" for key, value in given.items())
    yield FILE, LIMITS + numbers, "what this machine does for a job at most; lower the numbers as you like"


def _refuse_reserved(path: Path) -> None:
    """Refuse a site name that a run's folder uses for something else; FLARE's own provisioning allows it."""
    name = read_json(path).get("client", {}).get("fqsn", "")
    if name.lower() in RESERVED:
        raise KitError(
            f"{path}: the site is called {name!r}, which is reserved; provision it by another name (reserved: "
            f"{', '.join(RESERVED)})"
        )


Made = tuple[dict[str, Any], str]  # the new values of a file, and their meaning in words


def why_open(kit: Kit) -> str:
    """Return why a kit's files do not restrict its processes; empty if they do, or if it is an administrator's.

    They do as long as `secure` would change nothing in them that restricts.
    """
    makes: dict[str, list[Callable[[dict[str, Any]], Made]]] = {
        "resources.json": [partial(_restrict, kit)],
        "authorization.json": [partial(_authorization, kit, code) for code in (False, True)],
        PRIVACY: [partial(_privacy, kit)],
    }
    if kit.part != "site":
        del makes[PRIVACY]
    for name, ways in makes.items() if kit.part != "administrator" else ():
        try:
            if not (path := kit.local / name).is_file():
                raise KitError(f"{path}: no such file, so that FLARE's own defaults would hold")
            before, made = read_json(path), [json.loads(_changed(path, path, way)[1]) for way in ways]
        except KitError as error:
            return str(error)
        if before not in made:
            keys = ", ".join(key for key in made[0] if made[0][key] != before.get(key))
            return f"{path}: {keys} would not restrict jobs and messages"
    return ""


def refuse_open(kit: Kit) -> None:
    """Raise KitError if a kit's files do not restrict its processes; the message names the remedy."""
    if why := why_open(kit):
        raise KitError(f"{why}; {REMEDY.format(kit.folder)}")


def _change(kit: Kit, name: str, make: Callable[[dict[str, Any]], Made]) -> tuple[Path, str, str]:
    """Return a file's path, new text and its meaning; ``make`` changes the values of the file or of FLARE's default."""
    path = kit.local / name
    default = path.with_name(f"{name}.default")
    source = path if path.exists() else default
    if name != PRIVACY and not source.exists():
        raise KitError(f"{source}: no such file; provision the kit again")
    return _changed(path, source, make)


def _changed(path: Path, source: Path, make: Callable[[dict[str, Any]], Made]) -> tuple[Path, str, str]:
    try:
        values, words = make(read_json(source) if source.exists() else {})
    except (AttributeError, KeyError, TypeError) as error:
        raise KitError(f"{source}: is not what FLARE reads ({error!r}); correct it, or move it away") from error
    return path, json.dumps(values, indent=2) + "\n", words


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds.

    Raises:
        KitError: The file cannot be read, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise KitError(f"{path}: cannot be read ({error!s:.200}); correct it, or move it away") from error
    if not isinstance(values, dict):
        raise KitError(f"{path}: holds no mapping; correct it, or move it away")
    return values


def _differs(path: Path, text: str) -> bool:
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    return before != text and not (before and path.suffix == ".json" and json.loads(before) == json.loads(text))


def _write(path: Path, text: str, words: str) -> str:
    mode = path.stat().st_mode if path.exists() else None
    write_text(path, text)
    if mode is not None:
        path.chmod(stat.S_IMODE(mode))  # of scripts, and of files that are private
    return f"{path}: {words}"


def _restrict(kit: Kit, values: dict[str, Any]) -> Made:
    allowed = read_json(ALLOW_LIST)
    values["class_list_enforcement_mode"] = allowed["class_list_enforcement_mode"]
    values["class_allow_list"] = allowed["client" if kit.part == "site" else "server"]["class_allow_list"]
    names = " and ".join(name.rpartition(".")[2] for name in values["class_allow_list"])
    _stand(values, GUARD)
    if kit.part == "site":
        values["allow_log_streaming"] = False
    return values, f"a job may name {names}, and no other class"


def _resources(kit: Kit, values: dict[str, Any]) -> Made:
    values, words = _restrict(kit, values)
    if kit.part == "site":
        return values, f"{words}; no log leaves the site"
    for server in values["servers"]:
        if server.get("heart_beat_timeout") == FLARES_HEART_BEAT:
            server["heart_beat_timeout"] = HEART_BEAT_SECONDS
    _own_storage(values)
    _stand(values, LOST_SITES)
    return values, f"{words}; jobs and results are kept in {STORAGE}/"


def _stand(values: dict[str, Any], component: str) -> None:
    """Add one of our components, which the party's process builds at its start, unless it is there and not disabled."""
    ours = {"id": component.split(".")[-2], "path": component, "args": {}}
    if ours not in (components := values.setdefault("components", [])):
        values["components"] = [*(one for one in components if one.get("path") != component), ours]


def _require_boundary(values: dict[str, Any]) -> Made:
    _stand(values, BOUNDARY)
    return values, "every process ends at its start if the files in local/ no longer restrict it"


def _ask_no_name(values: dict[str, Any]) -> Made:
    values["admin"]["uid_source"] = "cert"
    return values, "FLARE's console logs in by the name in the certificate, and asks for none"


def _own_storage(values: dict[str, Any]) -> None:
    """Move FLARE's storage from /tmp into the kit; a place that somebody has chosen stays."""
    storage = "shared_components.flare.storage.KitStorage"
    snapshots = values.get("snapshot_persistor", {}).get("args", {})
    if "/tmp/nvflare" in json.dumps(snapshots):
        snapshots["storage"] = {"path": storage, "args": {"folder": f"{STORAGE}/snapshots"}}
    components = {one.get("id"): one for one in values.get("components", [])}
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
        if not own:  # `surgfl job watch` reads the server's log of a job, which FLARE's "view" does not cover
            rights["get_job_log"] = rights.get("view", "none")
        permissions[role] = rights
    words = "a job may bring code, which then runs here" if allow_custom_code else "no job may bring code"
    who = "only people of its own organisation look" if kit.part == "server" else "nobody looks from outside"
    return values, words if own else f"{words}; {who} at its files"


def _privacy(kit: Kit, values: dict[str, Any]) -> Made:
    """Add our filter to each of the site's scopes, last on the way out, so that everything that leaves passes it."""
    values = values or {"scopes": [{"name": "surgfl"}], "default_scope": "surgfl"}
    if not values.get("scopes") or not values.get("default_scope"):
        raise KitError(f"{kit.local / PRIVACY}: has no scope or no default_scope; add it, or move the file away")
    for scope in values["scopes"]:
        for chain, direction in (("task_data_filters", "in"), ("task_result_filters", "out")):
            rest = [one for one in scope.get(chain, []) if one.get("path") != FILTER]
            ours = [{"path": FILTER, "args": {}, "direction": direction}]
            scope[chain] = ours + rest if direction == "in" else rest + ours
    return values, "only what a method declares leaves the site, whatever a job says"


def make_private(folder: Path) -> None:
    """Remove all permissions but the owner's from a folder and its contents."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
