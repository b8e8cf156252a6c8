"""The authority's key on disk, plain or encrypted with a passphrase: whoever can read it can admit anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from shared_components.common.atomic import write_json
from shared_components.flare.deployment.kits import KitError

CERTIFICATE, KEY = "root_cert", "root_pri_key"  # FLARE's names in its cert.json
LEAST_LETTERS = 12
_ENCRYPTED = "BEGIN ENCRYPTED PRIVATE KEY"


def is_encrypted(path: Path) -> bool:
    """Return whether the key in an authority's cert.json is encrypted; raise KitError if the file cannot be read."""
    return _ENCRYPTED in _read(path)[KEY]


def load_authority(path: Path, passphrase: str | None) -> tuple[bytes, Any]:
    """Read the authority's certificate (PEM) and private key from FLARE's cert.json.

    Raises:
        KitError: The file cannot be read, or the passphrase is missing or wrong.
    """
    kept = _read(path)
    encrypted = _ENCRYPTED in kept[KEY]
    if encrypted and passphrase is None:
        raise KitError(f"{path}: the authority's key is encrypted; give its passphrase")
    try:
        password = passphrase.encode() if encrypted and passphrase is not None else None
        return kept[CERTIFICATE].encode(), load_pem_private_key(kept[KEY].encode(), password)
    except (ValueError, TypeError) as error:
        if encrypted:
            raise KitError(
                f"{path}: this passphrase does not open the authority's key; give the one it was encrypted with"
            ) from error
        raise KitError(f"{path}: its key cannot be read ({error}); put back your copy of it") from error


def save_authority(path: Path, certificate: bytes, key: Any, passphrase: str | None) -> None:
    """Write FLARE's cert.json with the authority's certificate (PEM) and private key alone.

    A passphrase encrypts the key (PKCS #8); without one it is written unencrypted.

    Raises:
        KitError: The passphrase is too short.
    """
    if passphrase is not None and len(passphrase) < LEAST_LETTERS:
        raise KitError(f"the passphrase has {len(passphrase)} letters; give at least {LEAST_LETTERS}")
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
    write_json(path, {CERTIFICATE: certificate.decode(), KEY: text})
    path.chmod(0o600)


def _read(path: Path) -> dict[str, str]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(kept[name]) for name in (CERTIFICATE, KEY)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{path}: cannot be read ({error!r}); put back your copy of it") from error
