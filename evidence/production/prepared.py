"""Description, installation and site data of a federation on this machine."""

import json
import shutil
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from shared_components.weights.bundle_files.make import write_bundle
from tests.federation.conftest import TOY
from tests.flare.simulator import ROOT

LEAD, CHIEF = "lead@example.org", "chief@example.org"


def describe(sites: Mapping[str, Path]) -> dict[str, Any]:
    """Return the description of a federation on this machine with free ports."""
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
    """Return free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def install(folder: Path) -> Path:
    """Copy the package and the bundles like an installation, and the bundle `toy`, whose network is `networks.tiny`."""
    shutil.copytree(ROOT / "shared_components", folder / "shared_components")
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(Path(__file__).with_name("at_start.py"), folder / "sitecustomize.py")
    (folder / "bundles").mkdir()
    for train in (ROOT / "bundles").glob("*/configs/train.yaml"):
        bundle = train.parents[1]
        (folder / "bundles" / bundle.name).symlink_to(bundle)
    (folder / "bundles" / "toy.yaml").write_text(TOY)
    write_bundle("toy", folder / "bundles")
    return folder


def give_data(kit: Path, site_yaml: Path) -> None:
    """Write a site's description into its kit."""
    described = yaml.safe_load(site_yaml.read_text(encoding="utf-8"))
    described["root"] = str((site_yaml.parent / described["root"]).resolve())
    (kit / "local" / "site.yaml").write_text(yaml.safe_dump(described))


def data_of(kit: Path) -> dict[str, Any]:
    """Return the description of a site's data from its kit."""
    return yaml.safe_load((kit / "local" / "site.yaml").read_text("utf-8"))


def change_data(kit: Path, **changes: Any) -> None:
    """Change keys of a site's description."""
    (kit / "local" / "site.yaml").write_text(yaml.safe_dump(data_of(kit) | changes))


def sign_again(kits: Path, name: str, *, begins: datetime, ends: datetime, by: Path | None = None) -> None:
    """Issue another certificate for a party's key.

    Args:
        kits: Kits of the deployment.
        name: Name of the party.
        begins, ends: Validity of the certificate.
        by: Kits of the signing authority; default: ``kits``.
    """
    startup = kits / name / "startup"
    (own,) = (startup / name for name in ("server.crt", "client.crt") if (startup / name).exists())
    (state,) = (by or kits).glob("ca/*/state/cert.json")
    authority = json.loads(state.read_text("utf-8"))
    old = x509.load_pem_x509_certificate(own.read_bytes())
    root = x509.load_pem_x509_certificate(authority["root_cert"].encode())
    key = serialization.load_pem_private_key(authority["root_pri_key"].encode(), password=None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(root.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    of_root = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())  # required by Python 3.13
    for extension in old.extensions:
        value = of_root if isinstance(extension.value, x509.AuthorityKeyIdentifier) else extension.value
        builder = builder.add_extension(value, extension.critical)
    made = builder.sign(key, hashes.SHA256())
    own.write_bytes(made.public_bytes(serialization.Encoding.PEM))
