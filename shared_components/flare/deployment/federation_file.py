"""Read who takes part in a deployment from one small YAML; `example.yaml` beside this file shows all of it.

A key or value that is not understood is an error, never a default.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from shared_components.common.schema import Schema, parse
from shared_components.data.files import read_yaml_file

Role = Literal["project_admin", "org_admin", "lead", "member"]
ROLES: tuple[Role, ...] = get_args(Role)
MAY_SUBMIT = ("project_admin", "lead")
RESERVED = (
    "server", "client", "clients", "admin", "all", "relay", "simulator", "ca", "local", "startup", "latest", "report",
    "scenes",
)  # fmt: skip
"""Names that FLARE or a run's folder uses otherwise; in any case of letters."""
MOST_SITES = 100  # which FLARE's server takes
MOST_DAYS = 20 * 365
LONGEST_NAME = 63  # of 64 letters that a certificate's common name allows
EXAMPLE = Path(__file__).with_name("example.yaml")


def _text(pattern: str, words: str) -> Meta:
    return Meta(
        pattern=rf"^{pattern}\Z", max_length=LONGEST_NAME, description=f"write {words}, at most {LONGEST_NAME} letters"
    )


_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = _text(r"[A-Za-z0-9][A-Za-z0-9_-]*", "letters, digits, '-' and '_', the first a letter or digit")
_HOST = _text(rf"{_LABEL}(\.{_LABEL})*", "a host name such as federation.example.org, or localhost")
_EMAIL = _text(
    r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", "an e-mail address such as anna@example.org"
)
_MANY = Meta(min_length=1, max_length=MOST_SITES, description=f"write a list of at least one and at most {MOST_SITES}")
Organisation = Annotated[str, _text(r"[A-Za-z0-9_]+", "letters, digits and '_'")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Days = Annotated[int, Meta(ge=1, le=MOST_DAYS)]


class FederationFileError(ValueError):
    """A description of a federation is wrong: which file, which key, what to do."""


class Server(Schema, frozen=True):
    """The address that all others connect to; ``admin_port``, for administrators, is ``port`` unless given."""

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


class Administrator(Schema, frozen=True):
    """A person who logs in."""

    email: Annotated[str, _EMAIL]
    organisation: Organisation
    role: Role


class Lifetimes(Schema, frozen=True):
    """Days for which certificates are valid."""

    days: Days = 730
    root_days: Days = 3650


class Federation(Schema, frozen=True):
    """All who take part."""

    name: Annotated[str, _NAME]
    server: Server
    sites: Annotated[tuple[Hospital, ...], _MANY]
    administrators: Annotated[tuple[Administrator, ...], _MANY]
    certificates: Lifetimes = Lifetimes()


def load_federation(path: Path) -> Federation:
    """Read and check a description.

    Raises:
        FederationFileError: One sentence that begins with the file, names the key and says what to do.
    """
    try:
        values = read_yaml_file(Path(path), error=FederationFileError)
    except FileNotFoundError:
        raise FederationFileError(
            f"{path}: no such file; surgfl provision --example {path} writes one to fill in"
        ) from None
    try:
        return parse_federation(values)
    except FederationFileError as error:
        raise FederationFileError(f"{path}: {error}") from error.__cause__


def parse_federation(values: Any) -> Federation:
    """Check what a YAML holds.

    Raises:
        FederationFileError: The sentence begins with the key.
    """
    made = parse(Federation, values, error=FederationFileError)
    for number, site in enumerate(made.sites, 1):
        if site.name.lower() in RESERVED:
            raise FederationFileError(
                f"sites[{number}].name is {site.name!r}, which is reserved; give the site another name (reserved: "
                f"{', '.join(RESERVED)})"
            )
    _refuse_twice("sites", [site.name for site in made.sites] + [made.server.host])
    _refuse_twice("administrators", [person.email for person in made.administrators])
    if not any(person.role in MAY_SUBMIT for person in made.administrators):
        raise FederationFileError(
            f"administrators: nobody may submit a job; give one of them the role {' or '.join(MAY_SUBMIT)}"
        )
    if made.certificates.days > made.certificates.root_days:
        raise FederationFileError(
            f"certificates.days is {made.certificates.days}, more than the {made.certificates.root_days} of root_days; "
            "no certificate outlives the root that signed it"
        )
    return made


def _refuse_twice(key: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise FederationFileError(f"{key}: the name {name!r} is given twice (or is the server's); change one")
        seen.add(name.lower())
