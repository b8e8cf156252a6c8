"""What a run's server keeps after every round, as tensors and values, and takes up again at a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from shared_components.core.method import Models, site_order
from shared_components.core.partition import Partition
from shared_components.federation.enrolment import profile_header, profile_of
from shared_components.federation.messages import FederationError
from shared_components.federation.store import groups_of, named_groups

if TYPE_CHECKING:
    from shared_components.federation.server import ServerRunner


def packed(server: ServerRunner) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the values that a resume needs."""
    groups = {"shared": server.models.shared, "state": server.state, "kept": server.kept}
    groups |= {f"mixed:{site}": pieces for site, pieces in server.models.mixed.items()}
    groups |= {f"broadcast:{group}": pieces for group, pieces in server.models.broadcast.items()}
    values = {
        "profiles": {site: profile_header(profile) for site, profile in server.profiles.items()},
        "partition": server.partition.to_json(),
        "records": server.records,
        "answered": server.answered,
        "numbers": server.numbers,
        "own": profile_header(server.own.profile) if server.own else None,
    }
    return named_groups(groups), values


def unpack(server: ServerRunner, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Undo :func:`packed`.

    Raises:
        FederationError: An older version of surgfl wrote it, which kept less.
    """
    if "answered" not in values:
        raise FederationError(
            f"{server.folder} was begun by an older version of surgfl; finish it with that one, or start a new run"
        )
    server.profiles = {site: profile_of(site, header) for site, header in values["profiles"].items()}
    server.sites = site_order(server.profiles)
    server.partition = Partition.from_json(values["partition"])
    server.journal.records, server.answered = values["records"], values["answered"]
    server.numbers = values.get("numbers") or {site: n for n, site in enumerate(server.sites)}
    server.own_before = values.get("own")  # older states have none
    groups = groups_of(tensors)
    mixed = {site: groups.get(f"mixed:{site}", {}) for site in server.sites}
    sent = {g.removeprefix("broadcast:"): p for g, p in groups.items() if g.startswith("broadcast:")}
    server.models = Models(groups.get("shared", {}), mixed, sent)
    server.state, server.kept = groups.get("state", {}), groups.get("kept", {})
