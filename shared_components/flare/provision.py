"""Make startup kits from a federation file, by FLARE's own provisioning."""

import datetime
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import asdict
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import generate_keys, serialize_cert

from shared_components.common.atomic import write_json
from shared_components.flare.deployment import certificates as keys
from shared_components.flare.deployment.federation_file import Federation
from shared_components.flare.deployment.kits import MUTUAL, Kit, KitError, find_kit, make_private, refuse_spaces, secure
from shared_components.flare.deployment.passphrase import passphrase_problem
from shared_components.flare.patches.replace import expect

AUTHORITY, ISSUED = "ca", "issued.json"
Party = dict[str, Any]


class Certificates(CertBuilder):
    """FLARE's certificates, with configurable lifetimes."""

    def __init__(self, *, days: int, root_days: int) -> None:
        super().__init__(root_valid_days=root_days)
        self.days = days
        expect(CertBuilder, "_generate_cert")  # overridden below

    def new_root(self, name: str) -> tuple[bytes, Any]:
        """Return a new authority's certificate (PEM) and key, without writing them to the disk."""
        key, public = generate_keys()
        days = {"valid_days": self.root_valid_days}
        return serialize_cert(self._generate_cert(name, None, name, key, public, ca=True, **days)), key

    def _generate_cert(self, *identity: Any, ca: bool = False, **options: Any) -> Any:
        if not ca:
            begin = options.get("not_valid_before") or datetime.datetime.now(datetime.UTC)
            end = begin + datetime.timedelta(days=self.days)
            options["not_valid_after"] = min(end, self.root_cert.not_valid_after_utc)
        return super()._generate_cert(*identity, ca=ca, **options)


def parties_of(federation: Federation) -> dict[str, Party]:
    """Return all parties by the names of their kits' folders, the server first."""
    server = federation.server
    parties: dict[str, Party] = {server.host: {"part": "server", "organisation": server.organisation}}
    for site in federation.sites:
        region = federation.region_of(site.name)
        parties[site.name] = {"part": "site", "organisation": site.organisation}
        parties[site.name] |= {"region": region.name} if region else {}
    for region in federation.regions:
        address = {"host": region.host, "port": region.port}
        parties[region.relay] = {"part": "relay", "organisation": region.organisation, **address}
        parties[region.name] = {"part": "region", "organisation": region.organisation}
    for person in federation.administrators:
        parties[person.email] = {"part": "administrator", "organisation": person.organisation, "role": person.role}
    return parties


def provision(federation: Federation, out: Path, *, passphrase: str | None = None) -> list[Kit]:
    """Make the private authority ``out/ca`` and a kit ``out/<name>`` for each party, in a new folder.

    A passphrase encrypts the authority's key.

    KitError: the folder is not empty, its path has a space, or the passphrase is easy to guess; nothing was written.
    """
    out = Path(out).resolve()
    refuse_spaces(out)
    _refuse_weak(federation, passphrase)
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise KitError(f"{out}: exists already and is not empty; give another folder, or add new parties by --add")
    with _temporary_folder(out) as made:
        _issue(federation, made, parties_of(federation), passphrase)
        os.replace(made, out)
    return [find_kit(out / name) for name in parties_of(federation)]


def add(federation: Federation, out: Path, *, renew: tuple[str, ...] = (), passphrase: str | None = None) -> list[Kit]:
    """Make kits for parties without one, signed by the existing authority; the other kits stay valid.

    ``federation`` has all parties, old and new. Parties in ``renew``, whose certificate expires, get another kit. The
    ``passphrase`` is the authority's; it encrypts a key that was not encrypted. KitError: there is no authority, the
    passphrase is wrong or easy to guess, a party has changed, or a kit exists already; nothing was written.
    """
    out = Path(out).resolve()
    refuse_spaces(out)
    issued = read_issued(out)
    if not needs_passphrase(out):  # the passphrase of an older key may be weaker, and still opens the key
        _refuse_weak(federation, passphrase)
    everybody = parties_of(federation)
    _refuse_changes(federation, issued, everybody)
    if unknown := [name for name in renew if name not in everybody]:
        raise KitError(f"--renew {unknown[0]}: the file has no such party; its parties are {', '.join(everybody)}")
    wanted = {name: party for name, party in everybody.items() if name not in issued["parties"] or name in renew}
    for name in wanted:
        if os.path.lexists(out / name):
            raise KitError(f"{out / name}: exists already; move it away, or leave out this party")
    with _temporary_folder(out / AUTHORITY) as made:
        shutil.copytree(out / AUTHORITY, made / AUTHORITY)
        _issue(federation, made, wanted, passphrase)
        for name in wanted:
            os.replace(made / name, out / name)
        write_json(out / AUTHORITY / ISSUED, json.loads((made / AUTHORITY / ISSUED).read_text("utf-8")))
        os.replace(_state(federation.name, made), _state(federation.name, out))
    return [find_kit(out / name) for name in wanted]


def passphrase_weakness(federation: Federation, passphrase: str | None) -> str:
    """Return why a passphrase of the authority's key is easy to guess, or an empty text."""
    parties = parties_of(federation)
    organisations = [party["organisation"] for party in parties.values()]
    return "" if passphrase is None else passphrase_problem(passphrase, [federation.name, *parties, *organisations])


def _refuse_weak(federation: Federation, passphrase: str | None) -> None:
    if problem := passphrase_weakness(federation, passphrase):
        raise KitError(f"the passphrase {problem}")


def needs_passphrase(out: Path) -> bool:
    """Return whether the key of a folder's authority is encrypted; raise KitError if there is no authority."""
    return keys.is_encrypted(_state(read_issued(out)["name"], Path(out).resolve()))


def read_issued(out: Path) -> dict[str, Any]:
    """Return an authority's record: values of all kits, and the end of each certificate; KitError without it."""
    path = Path(out) / AUTHORITY / ISSUED
    try:
        issued = json.loads(path.read_text(encoding="utf-8"))
        return {key: issued[key] for key in ("name", "server", "root_days")} | {"parties": dict(issued["parties"])}
    except FileNotFoundError:
        raise KitError(f"{path}: no such file; give the output folder of surgfl provision") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{path}: cannot be read ({error!r}); restore your copy of {AUTHORITY}/") from error


def _shared_values(federation: Federation) -> dict[str, Any]:
    root_days = federation.certificates.root_days
    return {"name": federation.name, "server": asdict(federation.server), "root_days": root_days}


def _refuse_changes(federation: Federation, issued: Mapping[str, Any], everybody: Mapping[str, Party]) -> None:
    for key, value in _shared_values(federation).items():
        if (old := issued[key]) != value:
            raise KitError(f"{key} is {value!r}, and the kits were made with {old!r}; correct it, or use a new folder")
    for name, party in everybody.items():
        before = issued["parties"].get(name)
        for key, value in party.items() if before else ():
            if (old := before.get(key)) != value:
                raise KitError(f"{name}: {key} is {value!r}, but the certificate was issued with {old!r}; correct it")


def _state(name: str, out: Path) -> Path:
    return out / AUTHORITY / name / "state" / "cert.json"


def _issue(federation: Federation, root: Path, wanted: Mapping[str, Party], passphrase: str | None) -> None:
    """Let FLARE make kits in its own folders below the authority, and move the wanted kits to ``root``.

    FLARE receives the authority's certificate and key as arguments, and therefore does not write the key.
    """
    authority, state = root / AUTHORITY, _state(federation.name, root)
    authority.mkdir(mode=0o700, exist_ok=True)
    errors: list[str] = []
    log = SimpleNamespace(error=errors.append, warning=errors.append, info=lambda text: None, debug=lambda text: None)
    certificates = Certificates(**asdict(federation.certificates))
    signer = keys.load_authority(state, passphrase) if state.exists() else certificates.new_root(federation.name)
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config", require_signed_jobs=True), certificates]
    done = Provisioner(str(authority), builders).provision(_project(federation, wanted, *signer), logger=log)
    if done.get(CtxKey.BUILD_ERROR):
        raise KitError(f"FLARE cannot make the kits: {'; '.join(errors)}")
    made = Path(done[CtxKey.CURRENT_PROD_DIR])
    for name in wanted:
        kit = Kit(made / name, wanted[name]["part"])
        secure(kit)
        make_private(kit.folder)
        os.replace(kit.folder, root / name)
    shutil.rmtree(made)
    keys.save_authority(state, *signer, passphrase)
    _record(federation, root, wanted)
    make_private(authority)


def _project(federation: Federation, wanted: Mapping[str, Party], certificate: bytes, key: Any) -> Project:
    authority, server = {"serialized_root_cert": certificate, "root_private_key": key}, federation.server
    project = Project(federation.name, "", props={"api_version": 3}, **authority)
    ports = {"fed_learn_port": server.port, "admin_port": server.admin_port}
    project.set_server(server.host, server.organisation, props=ports)
    for region in federation.regions:  # all of them, since FLARE looks up a site's relay and parent
        listen = {"default_host": region.host, "port": region.port, "scheme": "http", "connection_security": MUTUAL}
        to = {"host": server.host, "connection_security": MUTUAL}
        project.add_relay(region.relay, region.organisation, props={"listening_host": listen, "connect_to": to})
        project.add_client(region.name, region.organisation, props={"connect_to": {"name": region.relay}})
    for name, party in wanted.items():
        if party["part"] == "site":
            own = federation.region_of(name)
            place = {"connect_to": {"name": own.relay}, "parent": own.name} if own else {}
            project.add_client(name, party["organisation"], props={"allow_log_streaming": False, **place})
        elif party["part"] == "administrator":
            project.add_admin(name, party["organisation"], props={"role": party["role"]})
    return project


def _record(federation: Federation, root: Path, wanted: Mapping[str, Party]) -> None:
    path = root / AUTHORITY / ISSUED
    parties = read_issued(root)["parties"] if path.exists() else {}
    for name, party in wanted.items():
        certificate = keys.own_certificate(find_kit(root / name))
        end, serial = certificate.not_valid_after_utc.date().isoformat(), f"{certificate.serial_number:x}"
        parties[name] = party | {"ends": end, "serial": serial}
    write_json(path, {**_shared_values(federation), "parties": parties})


@contextmanager
def _temporary_folder(out: Path) -> Iterator[Path]:
    """Make a private folder next to another folder, and remove it when the block ends."""
    made = out.with_name(f".{out.name}.{os.getpid()}")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.mkdir(mode=0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
