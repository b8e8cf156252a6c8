"""Startup kits vouch for keys: another site's, another project's, another run's and an old signature do not count."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from shared_components.federation.secure_sums.identity import CONNECTION, Identity, kit_identity

PUBLIC = bytes(range(32))


def named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def certificate(name, public, issuer, key, *, days=10):
    now = datetime.now(UTC)
    begin = now - timedelta(days=20)
    return (
        x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer)).public_key(public)
        .serial_number(x509.random_serial_number()).not_valid_before(begin)
        .not_valid_after(now + timedelta(days=days)).sign(key, SHA256())
    )  # fmt: skip


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """Return a function that makes a site's kit for either of two projects."""
    roots = {name: rsa.generate_private_key(65537, 2048) for name in ("ours", "theirs")}

    def make(site, project="ours", days=10):
        folder = tmp_path_factory.mktemp("kit")
        own = rsa.generate_private_key(65537, 2048)
        root = roots[project]
        files = {
            "client.key": own.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
            "client.crt": certificate(site, own.public_key(), project, root, days=days).public_bytes(Encoding.PEM),
            "rootCA.pem": certificate(project, root.public_key(), project, root).public_bytes(Encoding.PEM),
        }
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / CONNECTION).write_text(json.dumps({"servers": [{"identity": "server1"}]}))
        return Identity(folder)

    return make


def test_a_key_that_its_kit_has_signed_is_taken_and_other_keys_sites_runs_projects_and_times_are_refused(kit):
    own, signed = kit("site-2"), kit("site-1").sign(b"job/run", PUBLIC)
    own.check("site-1", b"job/run", signed)
    foreign = kit("site-1", project="theirs").sign(b"job/run", PUBLIC)
    old = kit("site-1", days=-1).sign(b"job/run", PUBLIC)
    unsigned = "the key of site-1 is not signed by a startup kit of this project"
    broken = ({"key": bytes(32).hex()}, {"certificate": "no certificate"}, {"signature": "00"})
    for site, run, sent, words in (
        *(("site-1", b"job/run", signed | other, unsigned) for other in (*broken, foreign)),
        ("site-1", b"job/other", signed, unsigned),
        ("site-3", b"job/run", signed, r"the key of site-3 is signed by \['site-1'\]"),
        ("site-1", b"job/run", {"key": PUBLIC.hex()}, "the key of site-1 is not signed by its startup kit"),
        ("site-1", b"job/run", old, "the certificate of site-1 is not valid now"),
    ):
        with pytest.raises(ValueError, match=words):
            own.check(site, run, sent)


def test_a_certificate_of_an_unknown_version_is_its_sites_fault(kit):
    own, signed = kit("site-2"), kit("site-1").sign(b"job/run", PUBLIC)
    der = x509.load_pem_x509_certificate(signed["certificate"].encode()).public_bytes(Encoding.DER)
    changed = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020104"), 1)
    lines = base64.encodebytes(changed).decode()
    signed["certificate"] = f"-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n"
    with pytest.raises(ValueError, match="the key of site-1 is not signed by a startup kit"):
        own.check("site-1", b"job/run", signed)


def test_a_folder_without_a_kit_has_no_identity_and_a_broken_kit_is_told(tmp_path):
    assert kit_identity(tmp_path) is None
    (tmp_path / "client.key").write_text("no key")
    with pytest.raises(ValueError, match=r"rootCA\.pem cannot be read"):
        kit_identity(tmp_path)
