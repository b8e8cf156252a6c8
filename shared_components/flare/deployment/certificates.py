"""Check the certificates of startup kits, and read and write the authority's private key.

FLARE waits without a message if a certificate is not valid. Whoever can read the authority's key can admit anybody, so
a passphrase can encrypt it.
"""

import base64
import json
import os
import socket
import ssl
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.asn1 import Null, encode_der
from cryptography.hazmat.primitives import hashes, padding
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from shared_components.common.atomic import write_json
from shared_components.common.sanitise import printable
from shared_components.flare.deployment.kits import Kit, KitError

SOON = timedelta(days=30)  # before its end a certificate should be renewed
ANSWER_SECONDS = 3.0  # a server rejects a certificate within this time, or has accepted it
EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
CERTIFICATE, KEY = "root_cert", "root_pri_key"  # FLARE's names in its cert.json
ENCRYPTED = "ENCRYPTED PRIVATE KEY"  # PEM label
ROUNDS = 600_000  # OWASP's Password Storage Cheat Sheet for PBKDF2 with HMAC-SHA-256
BLOCK, KEY_LENGTH = 16, 32  # bytes


def expiry_time(kit: Kit) -> datetime:
    """Return when a kit's certificate or its root certificate expires, whichever is sooner."""
    return min(own_certificate(kit).not_valid_after_utc, _root(kit).not_valid_after_utc)


def certificate_problem(kit: Kit, *, now: datetime | None = None) -> str:
    """Return why a kit's certificate is not valid, or an empty text; raise KitError if it cannot be read."""
    now = now or datetime.now(UTC)
    own, root = own_certificate(kit), _root(kit)
    startup, name = kit.folder / "startup", "server" if kit.part == "server" else "client"
    try:
        ssl.create_default_context().load_cert_chain(startup / f"{name}.crt", startup / f"{name}.key")
    except OSError:  # also if the key and the certificate do not match
        return f"startup/{name}.key is missing, damaged or belongs to another certificate; ask for the kit again"
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return "the authority in startup/rootCA.pem has not signed its certificate; ask for the kit again"
    for subject, certificate in (("its certificate", own), ("the federation's root certificate", root)):
        if now < certificate.not_valid_before_utc:
            begin = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            return f"{subject} is valid from {begin} on, but this machine's clock shows {now:%Y-%m-%d %H:%M}"
        if now > certificate.not_valid_after_utc:
            return f"{subject} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; ask for a renewed kit"
    return ""


def handshake_problem(kit: Kit, host: str, port: int) -> str:
    """Return which certificate a TLS handshake with a server rejects, or "" (KitError if the kit cannot be read)."""
    startup = kit.folder / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:
        raise KitError(f"{startup}: its certificates or its key cannot be read ({error})") from error
    context.check_hostname = False  # only the certificate matters here
    try:
        with (
            socket.create_connection((host, port), ANSWER_SECONDS) as connection,
            context.wrap_socket(connection) as channel,
        ):
            channel.recv(1)  # in TLS 1.3 a server checks the certificate after the client has finished its handshake
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == EXPIRED:
            return f"the certificate of the server at {host}:{port} has expired; ask its administrator to renew it"
        return (
            f"the authority in this kit's rootCA.pem has not signed the certificate of the server at {host}:{port}; "
            "the kit is from another federation or was replaced, so ask for it again"
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            refusal = f"the server at {host}:{port} rejects this kit's certificate"
            if "EXPIRED" in str(error.reason):
                return f"{refusal} as expired; compare the server's clock with this machine's"
            return f"{refusal}, which another authority has signed; check its address, or ask for the kit again"
    except OSError:
        pass  # the reason is not a certificate
    return ""


def owner_problem(kit: Kit, name: str) -> str:
    """Return whose certificate a kit contains if its owner is not ``name``, or an empty text."""
    if (names := owners(kit)) == [name]:
        return ""
    owner = printable(", ".join(names)) or "nobody"
    return f"its certificate belongs to {owner}, but the kit belongs to {name}; ask for the kit again"


def owners(kit: Kit) -> list[str]:
    """Return the names in a kit's certificate, which should be one name; raise KitError if it cannot be read."""
    attributes = own_certificate(kit).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [str(attribute.value) for attribute in attributes]


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
    return ENCRYPTED in _read_authority(path)[KEY]


def load_authority(path: Path, passphrase: str | None) -> tuple[bytes, Any]:
    """Read the authority's certificate (PEM) and private key from FLARE's cert.json.

    KitError: the file cannot be read, or the passphrase is missing or wrong.
    """
    authority = _read_authority(path)
    encrypted = ENCRYPTED in authority[KEY]
    if encrypted and passphrase is None:
        raise KitError(f"{path}: the authority's key is encrypted; enter its passphrase")
    password = passphrase.encode() if encrypted and passphrase is not None else None
    try:
        return authority[CERTIFICATE].encode(), load_pem_private_key(authority[KEY].encode(), password)
    except (ValueError, TypeError) as error:
        if encrypted:
            raise KitError(f"{path}: the passphrase does not open the authority's key; enter the right one") from error
        raise KitError(f"{path}: its key cannot be read ({error}); restore your copy of the file") from error


def save_authority(path: Path, certificate: bytes, key: Any, passphrase: str | None) -> None:
    """Write FLARE's cert.json: the authority's certificate (PEM) and its key, encrypted if there is a passphrase."""
    if passphrase is None:
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    else:
        text = _encrypt(key, passphrase)
    write_json(path, {CERTIFICATE: certificate.decode(), KEY: text})
    path.chmod(0o600)


def _read_authority(path: Path) -> dict[str, str]:
    try:
        authority = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(authority[name]) for name in (CERTIFICATE, KEY)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KitError(f"{path}: cannot be read ({error!r}); restore your copy of the file") from error


def _encrypt(key: PrivateKeyTypes, passphrase: str) -> str:
    """Return a private key as PEM, encrypted as RFC 8018 PBES2: PBKDF2 with HMAC-SHA-256, then AES-256-CBC.

    The PKCS #8 writer of cryptography allows only 2,048 rounds of PBKDF2. OpenSSL and cryptography read this form.
    """
    pbes2, pbkdf2 = x509.ObjectIdentifier("1.2.840.113549.1.5.13"), x509.ObjectIdentifier("1.2.840.113549.1.5.12")
    hmac_sha256, aes256_cbc = map(x509.ObjectIdentifier, ("1.2.840.113549.2.9", "2.16.840.1.101.3.4.1.42"))
    salt, start = os.urandom(BLOCK), os.urandom(BLOCK)
    derived = PBKDF2HMAC(hashes.SHA256(), KEY_LENGTH, salt, ROUNDS).derive(passphrase.encode())
    padder = padding.PKCS7(8 * BLOCK).padder()
    plain = padder.update(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())) + padder.finalize()
    cipher = Cipher(algorithms.AES(derived), modes.CBC(start)).encryptor()
    function = _sequence(encode_der(hmac_sha256), encode_der(Null()))
    derivation = _sequence(encode_der(pbkdf2), _sequence(encode_der(salt), encode_der(ROUNDS), function))
    scheme = _sequence(derivation, _sequence(encode_der(aes256_cbc), encode_der(start)))
    content = encode_der(cipher.update(plain) + cipher.finalize())
    text = base64.b64encode(_sequence(_sequence(encode_der(pbes2), scheme), content)).decode()
    return "\n".join([f"-----BEGIN {ENCRYPTED}-----", *textwrap.wrap(text, 64), f"-----END {ENCRYPTED}-----", ""])


def _sequence(*parts: bytes) -> bytes:
    """Return the DER encoding of a sequence of encoded parts."""
    body = b"".join(parts)
    size = (len(body).bit_length() + 7) // 8
    length = bytes([len(body)]) if len(body) < 0x80 else bytes([0x80 | size]) + len(body).to_bytes(size)
    return b"\x30" + length + body
