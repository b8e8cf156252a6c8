"""Authenticate keys by startup kits: a site's certificate signs its key, the project's root signs the certificate.

Without signatures, the server could replace the keys that it forwards, and read every site's weights.
"""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID, NameOID

ROOT = "rootCA.pem"
FILES = ("client.key", "client.crt", ROOT)
CONNECTION = "fed_client.json"  # in a site's kit: names the server as in the server's certificate
SignedKey = dict[str, str]  # key; with a kit also certificate and signature

_PADDING = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


class Project:
    """Root certificate of a startup kit, of a site or the server; ValueError if it cannot be read."""

    def __init__(self, startup: Path) -> None:
        try:
            self._root = x509.load_pem_x509_certificate((startup / ROOT).read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{startup / ROOT} cannot be read ({error})") from error
        self._servers: frozenset[str] = frozenset()

    def check(self, site: str, about: bytes, signed: SignedKey) -> None:
        """Verify a site's key, signed by `Identity.sign` for the run ``about``.

        ValueError: the signature is missing or from another site or run, or the certificate has expired or belongs to
        the server, an administrator or an authority.
        """
        if "signature" not in signed:
            raise ValueError(f"the key of {site} is not signed by its startup kit; nothing was sent")
        try:
            certificate = x509.load_pem_x509_certificate(signed["certificate"].encode())
            certificate.verify_directly_issued_by(self._root)
            key: Any = certificate.public_key()
            text = _text(about, bytes.fromhex(signed["key"]))
            key.verify(bytes.fromhex(signed["signature"]), text, _PADDING, SHA256())
            names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        except (InvalidSignature, x509.InvalidVersion, ValueError, TypeError, AttributeError) as error:
            problem = f"the key of {site} is not signed by a startup kit of this project ({type(error).__name__})"
            raise ValueError(f"{problem}; nothing was sent") from error
        if names != [site]:
            raise ValueError(f"the key of {site} is signed by {names}; nothing was sent")
        if owner := _other_owner(certificate, self._servers):
            raise ValueError(f"the key of {site} is signed by {owner}, and by no site; nothing was sent")
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            raise ValueError(f"the certificate of {site} is not valid now; nothing was sent")


class Identity(Project):
    """Private key and certificates of a site's kit; ValueError if they cannot be read or the key is no RSA key."""

    def __init__(self, startup: Path) -> None:
        super().__init__(startup)
        try:
            content = {name: (startup / name).read_bytes() for name in FILES}
            private: Any = load_pem_private_key(content["client.key"], password=None)
            self._certificate = x509.load_pem_x509_certificate(content["client.crt"])
            servers = json.loads((startup / CONNECTION).read_text(encoding="utf-8"))["servers"]
            self._servers = frozenset(server["identity"] for server in servers)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{startup}: its key, its certificates or {CONNECTION} cannot be read ({error})"
            ) from error
        if not isinstance(private, rsa.RSAPrivateKey):
            raise ValueError(f"{startup / FILES[0]} is no RSA key; provision the kit again")
        self._private = private

    def sign(self, about: bytes, public: bytes) -> SignedKey:
        """Return a public key for the run ``about`` with the site's signature and certificate."""
        certificate = self._certificate.public_bytes(Encoding.PEM).decode()
        signature = self._private.sign(_text(about, public), _PADDING, SHA256()).hex()
        return {"key": public.hex(), "certificate": certificate, "signature": signature}


def _other_owner(certificate: x509.Certificate, servers: Collection[str]) -> str:
    """Return the kind of a certificate's owner; empty for a site.

    FLARE 2.9 writes an administrator's role into the subject. Certificates of servers and sites differ only in their
    names, and each site's kit has the server's name.
    """
    extensions = {extension.oid: extension.value for extension in certificate.extensions}
    authority: Any = extensions.get(ExtensionOID.BASIC_CONSTRAINTS)
    if authority is not None and authority.ca:
        return "an authority"
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if name.value in servers:
        return "the server"
    if certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
        return "an administrator"
    return ""


def kit_identity(startup: Path) -> Identity | None:
    """Return the identity in a startup kit's folder; None without a kit, as in a simulator."""
    return Identity(startup) if (startup / FILES[0]).is_file() else None


def _text(about: bytes, public: bytes) -> bytes:
    return b"surgfl secure sums, key of run " + len(about).to_bytes(4) + about + public
