"""Keys between two sites: X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869) and AES-256-GCM, from `cryptography`."""

import os
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = 32  # bytes, public and private
NONCE, TAG = 12, 16  # bytes that sealing adds


def public_of(private: bytes) -> bytes:
    """Return the public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_public(public: bytes) -> None:
    """Refuse a public key that makes every shared secret the same; raise ValueError."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise ValueError(f"{public.hex()} is no public key ({error})") from error


class Keys:
    """A site's private key, 32 bytes that never leave the site, and the public keys of all sites.

    ValueError: the site's public key does not belong to its private key, or two sites have the same key.
    """

    def __init__(self, site: str, private: bytes, public: Mapping[str, bytes]) -> None:
        own = public_of(private)
        if public.get(site) != own:
            raise ValueError(f"the server gives a key for {site} that is not its own")
        if len(set(public.values())) != len(public):
            raise ValueError("the server gives the same key for two sites")
        self.site, self.public = site, dict(public)
        self._private = X25519PrivateKey.from_private_bytes(private)

    def secret(self, other: str, purpose: bytes) -> bytes:
        """Return 32 bytes for one purpose that only this site and ``other`` can compute.

        ValueError: the other site's key is invalid, so that the secret would not depend on this site's key.
        """
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(self.public[other]))
        except ValueError as error:
            raise ValueError(f"the key of {other} is invalid ({error})") from error
        both = b"".join(sorted((self.public[self.site], self.public[other])))
        return HKDF(SHA256(), length=KEY, salt=both, info=purpose).derive(shared)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Encrypt content, and authenticate it together with ``about``."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt the result of `seal`; ValueError if key or ``about`` differ, or the content was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError) as error:
        raise ValueError("it was changed on its way, or is of another round") from error
