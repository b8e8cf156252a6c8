"""Which classes of a job a party refuses to build, by FLARE 2.9's own rule."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import (
    ALLOW_ALL,
    CLASS_ALLOW_LIST,
    CLASS_LIST_ENFORCEMENT_MODE,
    ClassListEnforcementMode,
    ComponentPathAuthorizer,
)

from shared_components.flare.deployment.kits import GUARD, read_json

RESOURCES = ("resources.json", "resources.json.default")  # FLARE reads the first that exists
AUTHORIZATION = ("authorization.json", "authorization.json.default")
CODE_RIGHT = "byoc"


@dataclass(frozen=True)
class Policy:
    """The classes that a party builds.

    Attributes:
        side: ``server`` or ``client``.
        source: The file.
        resources: The values that FLARE reads from it.
        forbids_code: Whether none of the party's roles may bring code; None if unknown.
        is_kit: Whether the file belongs to a startup kit, and is not only a list.
    """

    side: str
    source: Path
    resources: Mapping[str, Any]
    forbids_code: bool | None = None
    is_kit: bool = False

    def unguarded(self) -> str:
        """Return a warning if the kit's processes would accept any message of the other end; empty otherwise."""
        components = self.resources.get("components") or []
        named = {one.get("path") for one in components if isinstance(one, Mapping)}
        if not self.is_kit or GUARD in named:
            return ""
        return (
            f"{self.source} has no component {GUARD}: its processes obey whatever command the other end sends; run "
            "surgfl secure-kit with the kit's folder"
        )

    def remark(self) -> str:
        """Return a remark if the list is missing or not enforced; empty otherwise."""
        listed = self.resources.get(CLASS_ALLOW_LIST)
        if listed is None:
            return f"{self.source} has no {CLASS_ALLOW_LIST}: FLARE's own default list holds, without the classes here"
        if isinstance(listed, list) and ALLOW_ALL in listed:
            return f"{self.source}: {CLASS_ALLOW_LIST} holds {ALLOW_ALL!r}, so every class is allowed"
        if self.resources.get(CLASS_LIST_ENFORCEMENT_MODE) == ClassListEnforcementMode.WARN.value:
            return f"{self.source}: {CLASS_LIST_ENFORCEMENT_MODE} is 'warn', so unlisted classes are built all the same"
        return ""

    def refusal(self, path: str) -> str:
        """Return why FLARE refuses to build a class; empty if it builds it.

        Raises:
            ValueError: The list itself cannot be read, so that FLARE builds nothing at all.
        """
        with TemporaryDirectory() as folder:
            file = Path(folder) / RESOURCES[0]
            file.write_text(json.dumps(dict(self.resources)), encoding="utf-8")
            workspace = SimpleNamespace(get_resources_file_path=lambda: str(file))  # all that the authorizer uses
            try:
                ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=workspace)
            except UnsafeComponentError as error:
                return str(error)
        return ""


def policies_of_list(path: Path) -> tuple[Policy, ...]:
    """Read the shipped list (`server` and `client` separately) or a party's `resources.json`.

    Raises:
        ValueError: It is neither.
    """
    values = read_json(path)
    sides = {side: values[side] for side in ("server", "client") if isinstance(values.get(side), Mapping)}
    if any(CLASS_ALLOW_LIST in part for part in sides.values()):
        mode = {key: values[key] for key in (CLASS_LIST_ENFORCEMENT_MODE,) if key in values}
        return tuple(Policy(side, path, {**mode, **part}) for side, part in sides.items())
    return (Policy("server" if "servers" in values else "client", path, values),)


def policy_of_kit(kit: Path) -> Policy:
    """Read which classes a startup kit's party builds, as FLARE does at its start.

    Raises:
        ValueError: It is no startup kit of a server or a site.
    """
    side = next((s for s in ("server", "client") if (kit / "startup" / f"fed_{s}.json").is_file()), None)
    if side is None:
        raise ValueError(
            f"{kit} is no startup kit of a server or a site: startup/fed_server.json and startup/fed_client.json are "
            "missing; give the folder that holds startup and local"
        )
    found = [kit / "local" / name for name in RESOURCES if (kit / "local" / name).is_file()]
    if not found:
        raise ValueError(f"{kit / 'local'} holds neither {RESOURCES[0]} nor {RESOURCES[1]}; provision the kit again")
    return Policy(side, found[0], read_json(found[0]), _forbids_code(kit), is_kit=True)


def _forbids_code(kit: Path) -> bool | None:
    """Return whether no role of a party may bring code; None without a file of roles."""
    for name in AUTHORIZATION:
        if (path := kit / "local" / name).is_file():
            roles = read_json(path).get("permissions", {})
            rights = [role.get(CODE_RIGHT, "none") if isinstance(role, Mapping) else role for role in roles.values()]
            return all(right == "none" for right in rights)
    return None
