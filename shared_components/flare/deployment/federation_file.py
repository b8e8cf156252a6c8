"""Who takes part in a deployment: one small YAML, read strictly; `example.yaml` beside this file shows all of it.

A key or value that is not understood is an error, never a default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared_components.common.plain_yaml import YamlError, read_yaml
from shared_components.data.files import DataError, read_text

T = TypeVar("T")

ROLES = ("project_admin", "org_admin", "lead", "member")
MAY_SUBMIT = ("project_admin", "lead")
RESERVED = (
    "server",
    "client",
    "clients",
    "admin",
    "all",
    "relay",
    "simulator",
    "ca",
    "local",
    "startup",
    "latest",
    "report",
    "scenes",
)
"""What FLARE or a run's folder calls something else; in any case of letters."""
MOST_BYTES = 1 << 20
MOST_SITES = 100  # which FLARE's server takes
MOST_DAYS = 20 * 365
LONGEST_NAME = 63  # of 64 letters that a certificate's common name allows
EXAMPLE = Path(__file__).with_name("example.yaml")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = (re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*"), "letters, digits, '-' and '_', the first a letter or digit")
_HOST = (re.compile(rf"{_LABEL}(\.{_LABEL})*"), "a host name such as federation.example.org, or localhost")
_ORGANISATION = (re.compile(r"[A-Za-z0-9_]+"), "letters, digits and '_'")
_EMAIL = (
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,}"),
    "an e-mail address such as anna@example.org",
)


class FederationFileError(ValueError):
    """A description of a federation is wrong: which file, which key, what to do."""


@dataclass(frozen=True)
class Server:
    """Where all others connect to; ``admin_port`` is for administrators, and may be the same."""

    host: str
    organisation: str
    port: int = 8002
    admin_port: int = 8002


@dataclass(frozen=True)
class Hospital:
    """A site: its name in the federation and whose it is."""

    name: str
    organisation: str


@dataclass(frozen=True)
class Administrator:
    """A person who logs in; ``role`` is one of `ROLES`."""

    email: str
    organisation: str
    role: str


@dataclass(frozen=True)
class Lifetimes:
    """Days for which certificates hold."""

    days: int = 730
    root_days: int = 3650


@dataclass(frozen=True)
class Federation:
    """All who take part."""

    name: str
    server: Server
    sites: tuple[Hospital, ...]
    administrators: tuple[Administrator, ...]
    certificates: Lifetimes = Lifetimes()


def load_federation(path: Path) -> Federation:
    """Read and check a description.

    Raises:
        FederationFileError: One sentence that begins with the file, names the key and says what to do.
    """
    try:
        return parse_federation(read_yaml(read_text(Path(path), MOST_BYTES)))
    except FileNotFoundError:
        raise FederationFileError(
            f"{path}: no such file; surgfl provision --example {path} writes one to fill in"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FederationFileError(f"{path}: cannot be read ({error}); check the file") from error
    except DataError as error:
        raise FederationFileError(str(error)) from error
    except YamlError as error:
        raise FederationFileError(f"{path}: {error}") from error
    except FederationFileError as error:
        raise FederationFileError(f"{path}: {error}") from error.__cause__


def parse_federation(values: Any) -> Federation:
    """Check what a YAML holds.

    Raises:
        FederationFileError: The sentence begins with the key.
    """
    top = _keys("the file", values, ("name", "server", "sites", "administrators"), ("certificates",))
    made = Federation(
        name=_text("name", top["name"], _NAME),
        server=_server(top["server"]),
        sites=tuple(_list("sites", top["sites"], _hospital)),
        administrators=tuple(_list("administrators", top["administrators"], _administrator)),
        certificates=_lifetimes(top.get("certificates", {})),
    )
    _refuse_twice("sites", [site.name for site in made.sites] + [made.server.host])
    _refuse_twice("administrators", [person.email for person in made.administrators])
    if not any(person.role in MAY_SUBMIT for person in made.administrators):
        raise FederationFileError(
            f"administrators: nobody may submit a job; give one of them the role {' or '.join(MAY_SUBMIT)}"
        )
    return made


def _server(values: Any) -> Server:
    own = _keys("server", values, ("host", "organisation"), ("port", "admin_port"))
    port = _number("server.port", own.get("port", Server.port), 1, 65535)
    return Server(
        host=_text("server.host", own["host"], _HOST),
        organisation=_text("server.organisation", own["organisation"], _ORGANISATION),
        port=port,
        admin_port=_number("server.admin_port", own.get("admin_port", port), 1, 65535),
    )


def _hospital(key: str, values: Any) -> Hospital:
    own = _keys(key, values, ("name", "organisation"))
    name = _text(f"{key}.name", own["name"], _NAME)
    if name.lower() in RESERVED:
        raise FederationFileError(
            f"{key}.name is {name!r}, which is reserved; give the site another name (reserved: {', '.join(RESERVED)})"
        )
    return Hospital(name, _text(f"{key}.organisation", own["organisation"], _ORGANISATION))


def _administrator(key: str, values: Any) -> Administrator:
    own = _keys(key, values, ("email", "organisation", "role"))
    if own["role"] not in ROLES:
        raise FederationFileError(f"{key}.role is {own['role']!r:.80}; write one of {', '.join(ROLES)}")
    return Administrator(
        _text(f"{key}.email", own["email"], _EMAIL),
        _text(f"{key}.organisation", own["organisation"], _ORGANISATION),
        own["role"],
    )


def _lifetimes(values: Any) -> Lifetimes:
    own = _keys("certificates", values, (), ("days", "root_days"))
    made = Lifetimes(**{name: _number(f"certificates.{name}", value, 1, MOST_DAYS) for name, value in own.items()})
    if made.days > made.root_days:
        raise FederationFileError(
            f"certificates.days is {made.days}, more than the {made.root_days} of root_days; no certificate outlives "
            "the root that signed it"
        )
    return made


def _keys(key: str, values: Any, required: Iterable[str], optional: Iterable[str] = ()) -> Mapping[str, Any]:
    required, known = list(required), [*required, *optional]
    if not isinstance(values, Mapping):
        raise FederationFileError(f"{key} is {values!r:.80}; write its keys, which are {', '.join(known)}")
    if unknown := [name for name in values if name not in known]:
        raise FederationFileError(f"{key} has no key {unknown[0]!r:.80}; known keys: {', '.join(known)}")
    if missing := [name for name in required if name not in values]:
        raise FederationFileError(f"{key} lacks {missing[0]!r}; add it")
    return values


def _list(key: str, values: Any, read: Callable[[str, Any], T]) -> list[T]:
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_SITES:
        raise FederationFileError(f"{key} is {values!r:.80}; write a list of at least one and at most {MOST_SITES}")
    return [read(f"{key}[{number}]", value) for number, value in enumerate(values, 1)]


def _text(key: str, value: Any, form: tuple[re.Pattern[str], str]) -> str:
    pattern, words = form
    if not isinstance(value, str) or not pattern.fullmatch(value) or len(value) > LONGEST_NAME:
        raise FederationFileError(f"{key} is {value!r:.80}; write {words}, at most {LONGEST_NAME} letters")
    return value


def _number(key: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise FederationFileError(f"{key} is {value!r:.80}; write a whole number from {least} to {most}")
    return value


def _refuse_twice(key: str, names: list[str]) -> None:
    """Refuse a name that is given twice; folders of some systems know no case of letters."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise FederationFileError(f"{key}: the name {name!r} is given twice (or is the server's); change one")
        seen.add(name.lower())
