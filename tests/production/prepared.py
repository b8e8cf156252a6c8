"""What a federation on this machine is made of: a description, an installation, and each site's data."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shared_components.bundle_files.make import write_bundle

from ..federation.conftest import TOY
from ..flare.simulator import ROOT

LEAD, CHIEF = "lead@example.org", "chief@example.org"


def describe(sites: Mapping[str, Path]) -> dict[str, Any]:
    """Return a description of a federation on this machine, on free ports."""
    port, admin_port = free_ports(2)
    return {
        "name": "rehearsal",
        "server": {"host": "localhost", "organisation": "consortium", "port": port, "admin_port": admin_port},
        "sites": [{"name": name, "organisation": name.replace("-", "_")} for name in sites],
        "administrators": [
            {"email": CHIEF, "organisation": "consortium", "role": "project_admin"},
            {"email": LEAD, "organisation": "consortium", "role": "lead"},
        ],
    }


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def install(folder: Path) -> Path:
    """Copy the package beside the bundles, as an installation has it, and `toy`, whose network is `networks.tiny`."""
    shutil.copytree(ROOT / "shared_components", folder / "shared_components")
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "bundles").mkdir()
    for train in (ROOT / "bundles").glob("*/configs/train.yaml"):
        bundle = train.parents[1]
        (folder / "bundles" / bundle.name).symlink_to(bundle)
    (folder / "bundles" / "toy.yaml").write_text(TOY)
    write_bundle("toy", folder / "bundles")
    return folder


def give_data(kit: Path, site_yaml: Path) -> None:
    """Put a site's description into its kit."""
    described = yaml.safe_load(site_yaml.read_text())
    described["root"] = str((site_yaml.parent / described["root"]).resolve())
    (kit / "local" / "site.yaml").write_text(yaml.safe_dump(described))
