"""Whether a startup kit's certificate lets its party in: with one that does not, FLARE waits without a word."""

from __future__ import annotations

import contextlib
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from shared_components.common.sanitise import printable
from shared_components.flare.deployment.kits import Kit, KitError

SOON = timedelta(days=30)
ANSWER = 3.0  # seconds in which a server says that it does not take a certificate, else it takes it
EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED


def ends(kit: Kit) -> datetime:
    """Return when a kit's certificate ends, or its root's if that is sooner."""
    return min(
        own_certificate(kit).not_valid_after_utc, _read(kit.folder / "startup" / "rootCA.pem").not_valid_after_utc
    )


def why_outside(kit: Kit, *, now: datetime | None = None) -> str:
    """Return why nobody will let this party in, or nothing where its certificate is good.

    Raises:
        KitError: A certificate cannot be read.
    """
    now = now or datetime.now(UTC)
    own, root = own_certificate(kit), _read(kit.folder / "startup" / "rootCA.pem")
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
    """Return which certificate a server and this party do not agree on, or nothing where it is none.

    They shake hands as TLS does, and no more.

    Args:
        kit: Whose certificate :func:`why_outside` finds good.
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
    context.check_hostname = False  # the certificate is asked for, not the name
    with contextlib.suppress(OSError):  # then it is no certificate that keeps them apart
        with socket.create_connection((host, port), ANSWER) as sock:
            return _disagreement(context, sock, f"{host}:{port}")
    return ""


def _disagreement(context: ssl.SSLContext, sock: socket.socket, server: str) -> str:
    try:
        with context.wrap_socket(sock) as channel:
            channel.recv(1)  # by TLS 1.3 a server looks at the certificate once the client has all it needs
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == EXPIRED:
            return f"the certificate of the server at {server} has ended; ask its administrator to renew it"
        return (
            f"the server at {server} shows a certificate that is not of the authority whose rootCA.pem lies in this "
            "kit, which is of another federation, or of before it was provisioned anew; ask for its kit again"
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            said = f"the server at {server} does not take this kit's certificate"
            if "EXPIRED" in str(error.reason):
                return f"{said}, which has ended by its clock; compare it with this machine's"
            return f"{said}, which is not of its authority; see that it is the right server, or ask for the kit again"
    return ""


def why_anothers(kit: Kit, name: str) -> str:
    """Return why a kit's certificate is not its party's, or nothing where it says this name.

    Raises:
        KitError: It cannot be read.
    """
    said = [str(one.value) for one in own_certificate(kit).subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if said == [name]:
        return ""
    found = printable(", ".join(said)) or "nobody"
    return f"its certificate is that of {found}, and the kit is that of {name}; ask for the kit again"


def own_certificate(kit: Kit) -> x509.Certificate:
    """Return a party's certificate.

    Raises:
        KitError: It cannot be read.
    """
    return _read(kit.folder / "startup" / ("server.crt" if kit.part == "server" else "client.crt"))


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KitError(f"{path}: cannot be read ({error}); ask for the kit again") from error
