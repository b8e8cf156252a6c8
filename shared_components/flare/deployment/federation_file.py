"""Read the parties of a deployment from a YAML file; `example.yaml` in this folder has every key."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from shared_components.common.schema import Schema, parse
from shared_components.data.files.images import read_yaml_file

Role = Literal["project_admin", "org_admin", "lead", "member"]
ROLES: tuple[Role, ...] = get_args(Role)
MAY_SUBMIT = ("project_admin", "lead")
RESERVED = (
    "server", "client", "clients", "admin", "all", "relay", "simulator", "ca", "local", "startup", "latest", "report",
    "scenes",
)  # fmt: skip
"""Names that FLARE or a run's folder uses for something else; upper and lower case are equal."""
MOST_SITES = (
    1000  # as measured: 256 without regions, 1,000 in 31 regions; FLARE's limit of 100 is raised in `kits.secure`
)
MOST_REGIONS = 100
RELAY = "-relay"  # ending of a relay's name, which no site's name has
LONGEST_NAME = 63  # a certificate's common name has at most 64 letters
EXAMPLE = Path(__file__).with_name("example.yaml")


def _text(pattern: str, words: str) -> Meta:
    description = f"write {words}, at most {LONGEST_NAME} letters"
    return Meta(pattern=rf"^{pattern}\Z", max_length=LONGEST_NAME, description=description)


_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = _text(r"[A-Za-z0-9][A-Za-z0-9_-]*", "letters, digits, '-' and '_', the first a letter or digit")
_HOST = _text(rf"{_LABEL}(\.{_LABEL})*", "a host name such as federation.example.org, or localhost")
_EMAIL = _text(
    r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", "an e-mail address such as anna@example.org"
)
_MANY = Meta(min_length=1, max_length=MOST_SITES, description=f"write a list of at least one and at most {MOST_SITES}")
Organisation = Annotated[str, _text(r"[A-Za-z0-9_]+", "letters, digits and '_'")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Days = Annotated[int, Meta(ge=1, le=20 * 365)]


class FederationFileError(ValueError):
    """A federation file is wrong; the message names the file, the key and the remedy."""


class Server(Schema, frozen=True):
    """Address of the server; administrators connect to ``admin_port``, by default ``port``."""

    host: Annotated[str, _HOST]
    organisation: Organisation
    port: Port = 8002
    admin_port: Port = 0

    def __post_init__(self) -> None:
        if not self.admin_port:
            msgspec.structs.force_setattr(self, "admin_port", self.port)


class Hospital(Schema, frozen=True):
    """A site: its name in the federation and its organisation."""

    name: Annotated[str, _NAME]
    organisation: Organisation


class Region(Schema, frozen=True):
    """Sites that connect to a relay at ``host`` instead of the server; the region's node sums their updates."""

    name: Annotated[str, _NAME]
    organisation: Organisation
    host: Annotated[str, _HOST]
    sites: Annotated[tuple[str, ...], _MANY]
    port: Port = 8102

    @property
    def relay(self) -> str:
        """The relay's name."""
        return f"{self.name}{RELAY}"


class Administrator(Schema, frozen=True):
    """A person who logs in."""

    email: Annotated[str, _EMAIL]
    organisation: Organisation
    role: Role


class Lifetimes(Schema, frozen=True):
    """Lifetimes of the parties' certificates and of the root certificate, in days."""

    days: Days = 730
    root_days: Days = 3650


class Federation(Schema, frozen=True):
    """The parties of a federation."""

    name: Annotated[str, _NAME]
    server: Server
    sites: Annotated[tuple[Hospital, ...], _MANY]
    administrators: Annotated[tuple[Administrator, ...], _MANY]
    certificates: Lifetimes = Lifetimes()
    regions: Annotated[tuple[Region, ...], Meta(max_length=MOST_REGIONS)] = ()

    def region_of(self, site: str) -> Region | None:
        """Return a site's region, or None if the site connects to the server."""
        return next((region for region in self.regions if site in region.sites), None)


def load_federation(path: Path) -> Federation:
    """Read and check a federation file; FederationFileError is one sentence with the file, the key and the remedy."""
    try:
        values = read_yaml_file(Path(path), error=FederationFileError)
    except FileNotFoundError:
        raise FederationFileError(
            f"{path}: no such file; write a template by surgfl provision --example {path}"
        ) from None
    try:
        return parse_federation(values)
    except FederationFileError as error:
        raise FederationFileError(f"{path}: {error}") from error.__cause__


def parse_federation(values: Any) -> Federation:
    """Check the values of a federation file; the sentence of FederationFileError begins with the key."""
    federation = parse(Federation, values, error=FederationFileError)
    for number, site in enumerate(federation.sites, 1):
        if site.name.lower() in RESERVED or site.name.lower().endswith(RELAY):
            raise FederationFileError(
                f"sites[{number}].name is {site.name!r}, which is reserved; give the site another name (reserved: "
                f"{', '.join(RESERVED)}, and names that end with {RELAY})"
            )
    nodes = [name for region in federation.regions for name in (region.name, region.relay)]
    _refuse_duplicates("sites", [site.name for site in federation.sites] + nodes + [federation.server.host])
    _check_regions(federation)
    _refuse_duplicates("administrators", [person.email for person in federation.administrators])
    if not any(person.role in MAY_SUBMIT for person in federation.administrators):
        raise FederationFileError(
            f"administrators: nobody may submit a job; give one of them the role {' or '.join(MAY_SUBMIT)}"
        )
    days, root_days = federation.certificates.days, federation.certificates.root_days
    if days > root_days:
        raise FederationFileError(
            f"certificates.days is {days}, more than the {root_days} of root_days; no certificate outlives its root"
        )
    return federation


def _check_regions(federation: Federation) -> None:
    sites = {site.name for site in federation.sites}
    for number, region in enumerate(federation.regions, 1):
        if len(region.relay) > LONGEST_NAME or region.name.lower() in RESERVED:
            raise FederationFileError(f"regions[{number}].name is {region.name!r}, reserved or too long; change it")
        if unknown := [site for site in region.sites if site not in sites]:
            raise FederationFileError(
                f"regions[{number}].sites names {unknown[0]!r}, which is no site of the file; add it to sites"
            )
    _refuse_duplicates("regions", [site for region in federation.regions for site in region.sites])
    if federation.regions and (alone := [site for site in sites if federation.region_of(site) is None]):
        remedy = "put every site into one, or leave regions out"
        raise FederationFileError(f"regions: {min(alone)!r} is in no region; {remedy}")


def _refuse_duplicates(key: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise FederationFileError(f"{key}: the name {name!r} is given twice (or is the server's); change one")
        seen.add(name.lower())
