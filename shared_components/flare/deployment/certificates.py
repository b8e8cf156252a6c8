"""Check a startup kit's certificate, with an invalid one of which FLARE waits silently; keep the authority's key.

The key is on disk, plain or encrypted with a passphrase: whoever can read it can admit anybody.
"""

import contextlib
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from shared_components.common.atomic import write_json
from shared_components.common.sanitise import printable
from shared_components.flare.deployment.encrypted_key import LABEL, encrypt_key
from shared_components.flare.deployment.kits import Kit, KitError

SOON = timedelta(days=30)
ANSWER = 3.0  # seconds in which a server rejects a certificate, or else has accepted it
EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
CERTIFICATE, KEY = "root_cert", "root_pri_key"  # FLARE's names in its cert.json


def ends(kit: Kit) -> datetime:
    """Return when a kit's certificate or its root's ends, whichever is sooner."""
    return min(own_certificate(kit).not_valid_after_utc, _root(kit).not_valid_after_utc)


def why_outside(kit: Kit, *, now: datetime | None = None) -> str:
    """Return why this party's certificate is not valid; empty if it is.

    Raises:
        KitError: A certificate cannot be read.
    """
    now = now or datetime.now(UTC)
    own, root = own_certificate(kit), _root(kit)
    startup, part = kit.folder / "startup", "server" if kit.part == "server" else "client"
    try:
        ssl.create_default_context().load_cert_chain(startup / f"{part}.crt", startup / f"{part}.key")
    except OSError:  # of which a mismatch is one
        return f"startup/{part}.key is missing, damaged or the key of another certificate; ask for the kit again"
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return "its certificate is not of the authority whose rootCA.pem lies beside it; ask for the kit again"
    for what, one in (("its certificate", own), ("the federation's authority", root)):
        if now < one.not_valid_before_utc:
            begins = f"{one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            return f"{what} holds from {begins} on, and this machine's clock says {now:%Y-%m-%d %H:%M}"
        if now > one.not_valid_after_utc:
            return f"{what} ended on {one.not_valid_after_utc:%Y-%m-%d}; ask for a renewed kit"
    return ""


def why_refused(kit: Kit, host: str, port: int) -> str:
    """Return which certificate a TLS handshake with a server rejects; empty if none.

    Args:
        kit: A kit whose certificate :func:`why_outside` finds valid.
        host, port: The server's.

    Raises:
        KitError: The kit's certificate, its key or its root cannot be read, or do not fit together.
    """
    startup = kit.folder / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:
        raise KitError(f"{startup}: its certificates or its key cannot be read ({error})") from error
    context.check_hostname = False  # only the certificate matters here
    with contextlib.suppress(OSError):  # then the reason is not a certificate
        with socket.create_connection((host, port), ANSWER) as sock:
            return _disagreement(context, sock, f"{host}:{port}")
    return ""


def _disagreement(context: ssl.SSLContext, sock: socket.socket, server: str) -> str:
    try:
        with context.wrap_socket(sock) as channel:
            channel.recv(1)  # in TLS 1.3 a server checks the certificate after the client has finished its handshake
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == EXPIRED:
            return f"the certificate of the server at {server} has ended; ask its administrator to renew it"
        return (
            f"the server at {server} shows a certificate that is not of the authority whose rootCA.pem lies in this "
            "kit, which is of another federation, or of before it was provisioned anew; ask for its kit again"
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            sentence = f"the server at {server} does not take this kit's certificate"
            if "EXPIRED" in str(error.reason):
                return f"{sentence}, which has ended by its clock; compare it with this machine's"
            return (
                f"{sentence}, which is not of its authority; see that it is the right server, or ask for the kit again"
            )
    return ""


def why_anothers(kit: Kit, name: str) -> str:
    """Return why a kit's certificate is not that of the party of this name; empty if it is.

    Raises:
        KitError: It cannot be read.
    """
    names = owners(kit)
    if names == [name]:
        return ""
    found = printable(", ".join(names)) or "nobody"
    return f"its certificate is that of {found}, and the kit is that of {name}; ask for the kit again"


def owners(kit: Kit) -> list[str]:
    """Return the names in a kit's certificate, which should be one; raise KitError if it cannot be read."""
    return [str(one.value) for one in own_certificate(kit).subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def own_certificate(kit: Kit) -> x509.Certificate:
    """Return a party's certificate; raise KitError if it cannot be read."""
    return _read(kit.folder / "startup" / ("server.crt" if kit.part == "server" else "client.crt"))


def _root(kit: Kit) -> x509.Certificate:
    return _read(kit.folder / "startup" / "rootCA.pem")


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KitError(f"{path}: cannot be read ({error}); ask for the kit again") from error


def is_encrypted(path: Path) -> bool:
    """Return whether the key in an authority's cert.json is encrypted; raise KitError if the file cannot be read."""
    return LABEL in _read_authority(path)[KEY]


def load_authority(path: Path, passphrase: str | None) -> tuple[bytes, Any]:
    """Read the authority's certificate (PEM) and private key from FLARE's cert.json.

    Raises:
        KitError: The file cannot be read, or the passphrase is missing or wrong.
    """
    kept = _read_authority(path)
    encrypted = LABEL in kept[KEY]
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
    """
    if passphrase is None:
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    else:
        text = encrypt_key(key, passphrase)
    write_json(path, {CERTIFICATE: certificate.decode(), KEY: text})
    path.chmod(0o600)


def _read_authority(path: Path) -> dict[str, str]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(kept[name]) for name in (CERTIFICATE, KEY)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{path}: cannot be read ({error!r}); put back your copy of it") from error
