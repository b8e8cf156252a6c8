"""Determine which classes of a job a party refuses, by FLARE 2.9's own rule."""

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


@dataclass(frozen=True)
class Policy:
    """The classes that a party permits."""

    side: str  # "server" or "client"
    source: Path  # the file with the list
    resources: Mapping[str, Any]  # the values that FLARE reads from the file
    forbids_code: bool | None = None  # whether no role of the party may bring code; None if unknown
    is_kit: bool = False  # whether the file belongs to a startup kit

    def unguarded(self) -> str:
        """Return a warning if the kit's processes would accept any message of the other party; else an empty text."""
        components = self.resources.get("components") or []
        paths = {entry.get("path") for entry in components if isinstance(entry, Mapping)}
        if not self.is_kit or GUARD in paths:
            return ""
        return (
            f"{self.source} has no component {GUARD}: its processes obey any command of the other party; run surgfl "
            "secure-kit with the kit's folder"
        )

    def remark(self) -> str:
        """Return a remark if the list is missing or not enforced; else an empty text."""
        classes = self.resources.get(CLASS_ALLOW_LIST)
        if classes is None:
            return f"{self.source} has no {CLASS_ALLOW_LIST}: FLARE's default list applies, without SurgFL's classes"
        if isinstance(classes, list) and ALLOW_ALL in classes:
            return f"{self.source}: {CLASS_ALLOW_LIST} contains {ALLOW_ALL!r}, so every class is allowed"
        if self.resources.get(CLASS_LIST_ENFORCEMENT_MODE) == ClassListEnforcementMode.WARN.value:
            return f"{self.source}: {CLASS_LIST_ENFORCEMENT_MODE} is 'warn', so every class is allowed with a warning"
        return ""

    def refusal(self, path: str) -> str:
        """Return why FLARE refuses a class, or an empty text; raise ValueError if the list itself is invalid."""
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
    """Read the shipped list (`server` and `client`) or a party's `resources.json`; ValueError for any other file."""
    values = read_json(path)
    sides = {side: values[side] for side in ("server", "client") if isinstance(values.get(side), Mapping)}
    if any(CLASS_ALLOW_LIST in part for part in sides.values()):
        mode = {key: values[key] for key in (CLASS_LIST_ENFORCEMENT_MODE,) if key in values}
        return tuple(Policy(side, path, {**mode, **part}) for side, part in sides.items())
    return (Policy("server" if "servers" in values else "client", path, values),)


def policy_of_kit(kit: Path) -> Policy:
    """Read which classes a startup kit permits, as FLARE does; ValueError if it is no kit of a server or a site."""
    side = next((s for s in ("server", "client") if (kit / "startup" / f"fed_{s}.json").is_file()), None)
    if side is None:
        raise ValueError(f"{kit} is no startup kit of a server or a site; give a folder with startup and local")
    local = kit / "local"
    source = next((local / name for name in RESOURCES if (local / name).is_file()), None)
    if source is None:
        raise ValueError(f"{local} contains neither {RESOURCES[0]} nor {RESOURCES[1]}; provision the kit again")
    return Policy(side, source, read_json(source), _forbids_code(local), is_kit=True)


def _forbids_code(local: Path) -> bool | None:
    """Return whether no role of a party may bring code; None without a file of roles."""
    path = next((local / name for name in AUTHORIZATION if (local / name).is_file()), None)
    if path is None:
        return None
    roles = read_json(path).get("permissions", {}).values()
    return all((role.get("byoc", "none") if isinstance(role, Mapping) else role) == "none" for role in roles)
