"""Encrypt a private key as PKCS #8 with PBKDF2 of many rounds; cryptography's own PKCS #8 has 2,048 and no choice.

RFC 8018: PBES2 of PBKDF2 with HMAC-SHA-256 and AES-256-CBC, which OpenSSL and cryptography read.
"""

import base64
import os
import textwrap

from cryptography.hazmat.asn1 import Null, encode_der
from cryptography.hazmat.primitives import hashes, padding
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import ObjectIdentifier

ROUNDS = 600_000  # OWASP's Password Storage Cheat Sheet for PBKDF2 with HMAC-SHA-256
LABEL = "ENCRYPTED PRIVATE KEY"
PBES2, PBKDF2 = ObjectIdentifier("1.2.840.113549.1.5.13"), ObjectIdentifier("1.2.840.113549.1.5.12")
HMAC_SHA256, AES256_CBC = ObjectIdentifier("1.2.840.113549.2.9"), ObjectIdentifier("2.16.840.1.101.3.4.1.42")
BLOCK, KEY = 16, 32  # bytes


def encrypt_key(key: PrivateKeyTypes, passphrase: str) -> str:
    """Return a private key as PEM, encrypted with a passphrase."""
    salt, start = os.urandom(BLOCK), os.urandom(BLOCK)
    derived = PBKDF2HMAC(hashes.SHA256(), KEY, salt, ROUNDS).derive(passphrase.encode())
    padder = padding.PKCS7(8 * BLOCK).padder()
    plain = padder.update(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())) + padder.finalize()
    cipher = Cipher(algorithms.AES(derived), modes.CBC(start)).encryptor()
    function = _sequence(encode_der(HMAC_SHA256), encode_der(Null()))
    derivation = _sequence(encode_der(PBKDF2), _sequence(encode_der(salt), encode_der(ROUNDS), function))
    scheme = _sequence(derivation, _sequence(encode_der(AES256_CBC), encode_der(start)))
    content = encode_der(cipher.update(plain) + cipher.finalize())
    text = base64.b64encode(_sequence(_sequence(encode_der(PBES2), scheme), content)).decode()
    return "\n".join([f"-----BEGIN {LABEL}-----", *textwrap.wrap(text, 64), f"-----END {LABEL}-----", ""])


def _sequence(*parts: bytes) -> bytes:
    body = b"".join(parts)
    size = (len(body).bit_length() + 7) // 8
    length = bytes([len(body)]) if len(body) < 0x80 else bytes([0x80 | size]) + len(body).to_bytes(size)
    return b"\x30" + length + body
