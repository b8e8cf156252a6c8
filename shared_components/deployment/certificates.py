"""Whether a startup kit's certificate lets its party in: with one that does not, FLARE waits without a word."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from shared_components.deployment.kits import Kit, KitError

SOON = timedelta(days=30)


def ends(kit: Kit) -> datetime:
    """Return when a kit's certificate ends, or its root's if that is sooner."""
    return min(
        own_certificate(kit).not_valid_after_utc,
        _read(kit.folder / "startup" / "rootCA.pem").not_valid_after_utc,
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
        return (
            "its certificate is not of the authority whose rootCA.pem lies beside it; ask for the kit again"
        )
    for what, one in (("its certificate", own), ("the federation's authority", root)):
        if now < one.not_valid_before_utc:
            begins = f"{one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            return f"{what} holds from {begins} on, and this machine's clock says {now:%Y-%m-%d %H:%M}"
        if now > one.not_valid_after_utc:
            return f"{what} ended on {one.not_valid_after_utc:%Y-%m-%d}; ask for a renewed kit"
    return ""


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
