"""Whether a kit's certificate lets its party in, and whether a server and it agree."""

import contextlib
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from evidence.production.prepared import sign_again
from shared_components.cli import main
from shared_components.flare.deployment.certificates import ends, why_anothers, why_outside, why_refused
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.deployment.kits import KitError, find_kit
from shared_components.flare.provision import provision
from tests.flare.deployment.conftest import NAMES

DAY = timedelta(days=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_new_kit_is_let_in_until_its_certificate_ends(kits, name):
    kit, now = find_kit(kits / name), datetime.now(UTC)
    assert why_outside(kit) == "" and why_outside(kit, now=now + 39 * DAY) == ""
    assert "its certificate ended on " in why_outside(kit, now=now + 41 * DAY)
    assert "this machine's clock says" in why_outside(kit, now=now - DAY)
    assert timedelta(days=39) < ends(kit) - now <= timedelta(days=40)


def test_a_root_that_ends_first_counts(kits):
    now = datetime.now(UTC)
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + 1000 * DAY)
    kit = find_kit(kits / "hospital-a")
    assert why_outside(kit) == "" and ends(kit) - now <= timedelta(days=100)
    assert "the federation's authority ended on " in why_outside(kit, now=now + 101 * DAY)


def test_a_foreign_and_an_expired_certificate_are_told_by_the_command(kits, described, tmp_path, capsys):
    now = datetime.now(UTC)
    provision(parse_federation(described), tmp_path / "foreign")
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + DAY, by=tmp_path / "foreign")
    assert main(["secure-kit", str(kits / "hospital-a")]) == 1
    assert "is not of the authority whose rootCA.pem lies beside it" in capsys.readouterr().out
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now - DAY)
    assert main(["secure-kit", str(kits / "hospital-a")]) == 1
    assert "ended on" in capsys.readouterr().out
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now + DAY)
    assert main(["secure-kit", str(kits / "hospital-a")]) == 0
    assert "ask for a renewed kit" in capsys.readouterr().out


def test_a_certificate_that_cannot_be_read_is_named(kits):
    (kits / "hospital-a" / "startup" / "client.crt").write_text("none")
    with pytest.raises(KitError, match=r"client\.crt: cannot be read"):
        why_outside(find_kit(kits / "hospital-a"))


def test_an_administrators_certificate_that_has_ended_is_told_before_anything_is_connected(kits, capsys):
    name, now = next(name for name in NAMES if "@" in name), datetime.now(UTC)
    sign_again(kits, name, begins=now - 2 * DAY, ends=now - DAY)
    assert main(["job", "list", "--admin", str(kits / name)]) == 2
    said = capsys.readouterr().err
    assert "its certificate ended on " in said and said.endswith("ask for a renewed kit\n") and said.count("\n") == 1


def test_another_partys_certificate_in_a_kit_is_told_before_anything_is_connected(kits, capsys):
    kit = kits / "anna@example.org"
    assert why_anothers(find_kit(kit), "anna@example.org") == ""
    for file in ("client.crt", "client.key"):
        (kit / "startup" / file).write_bytes((kits / "hospital-a" / "startup" / file).read_bytes())
    assert main(["job", "list", "--admin", str(kit)]) == 2
    said = capsys.readouterr().err
    assert "its certificate is that of hospital-a, and the kit is that of anna@example.org; ask" in said
    assert said.count("\n") == 1


@contextlib.contextmanager
def listening(kit=None):
    """Let a server with a kit's certificate take one connection and say nothing; without a kit, hang up at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener, kit))
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
    assert not thread.is_alive()


def greet(listener, kit):
    listener.settimeout(10)
    with contextlib.suppress(OSError), listener.accept()[0] as sock:
        if kit is None:
            return
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=kit / "startup" / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
        with context.wrap_socket(sock, server_side=True) as channel:
            channel.settimeout(1)
            channel.recv(1)


def asked(kits, server, name="hospital-a"):
    """Return what a party of some kits is told of a server."""
    with listening(server) as port:
        return why_refused(find_kit(kits / name), "127.0.0.1", port)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_server_of_the_same_authority_takes_every_partys_certificate(kits, name):
    assert asked(kits, kits / "localhost", name) == ""


def test_a_server_of_another_federation_is_told_from_one_that_is_not_there(kits, described, tmp_path):
    provision(parse_federation(described), tmp_path / "foreign")
    said = asked(tmp_path / "foreign", kits / "localhost")
    assert "not of the authority whose rootCA.pem lies in this kit" in said and "ask for its kit again" in said
    assert asked(kits, None) == "", "it hangs up, and that is no question of certificates"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert why_refused(find_kit(kits / "hospital-a"), "127.0.0.1", port) == ""


def test_a_certificate_that_the_server_does_not_take_is_told_with_why(kits, described, tmp_path):
    now = datetime.now(UTC)
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now - DAY)  # by the server's clock
    assert "does not take this kit's certificate, which has ended by its clock" in asked(kits, kits / "localhost")
    provision(parse_federation(described), tmp_path / "foreign")
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + DAY, by=tmp_path / "foreign")
    assert "does not take this kit's certificate, which is not of its authority" in asked(kits, kits / "localhost")


def test_a_servers_own_certificate_that_has_ended_is_its_administrators_to_renew(kits):
    now = datetime.now(UTC)
    sign_again(kits, "localhost", begins=now - 2 * DAY, ends=now - DAY)
    assert "has ended; ask its administrator to renew it" in asked(kits, kits / "localhost")


def test_a_key_that_is_another_certificates_is_named(kits):
    key = kits / "hospital-a" / "startup" / "client.key"
    key.write_bytes((kits / "anna@example.org" / "startup" / "client.key").read_bytes())
    with pytest.raises(KitError, match="startup: its certificates or its key cannot be read"):
        why_refused(find_kit(kits / "hospital-a"), "127.0.0.1", 1)
