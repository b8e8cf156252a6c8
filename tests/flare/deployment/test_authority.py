"""The authority's key: encrypted, it stands on no disk as it is, not even while kits are made."""

import json
import shutil
import stat

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.provisioner import Provisioner

from shared_components.cli import main
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.deployment.kits import KitError
from shared_components.flare.provision import add, provision
from tests.flare.deployment.test_provision import certificate, contents, root

WORDS = "a horse, a staple and a cell"
STATE = "ca/small/state/cert.json"


def key_of(kits):
    return json.loads((kits / STATE).read_text())["root_pri_key"]


def numbers(key):
    return key.private_numbers().d


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    from .conftest import DESCRIBED

    out = tmp_path_factory.mktemp("locked") / "kits"
    provision(parse_federation(DESCRIBED), out, passphrase=WORDS)
    return out


@pytest.fixture
def encrypted(locked, tmp_path):
    return shutil.copytree(locked, tmp_path / "kits")


def test_the_key_is_encrypted_and_is_that_of_the_root_of_all_kits(encrypted):
    key = load_pem_private_key(key_of(encrypted).encode(), WORDS.encode())
    assert key.public_key() == root(encrypted / "hospital-a").public_key()
    with pytest.raises(TypeError, match="Password was not given"):
        load_pem_private_key(key_of(encrypted).encode(), None)
    assert stat.S_IMODE((encrypted / STATE).stat().st_mode) == 0o600


def test_a_later_site_needs_the_passphrase_and_gets_a_kit_of_the_same_authority(encrypted, larger):
    before = contents(encrypted)
    with pytest.raises(KitError, match=r"cert.json: the authority's key is encrypted; give its passphrase"):
        add(larger, encrypted)
    with pytest.raises(KitError, match="this passphrase does not open the authority's key; give the one it"):
        add(larger, encrypted, passphrase=WORDS + "!")
    assert contents(encrypted) == before
    (kit,) = add(larger, encrypted, passphrase=WORDS)
    certificate(kit.folder).verify_directly_issued_by(root(encrypted / "localhost"))
    assert "BEGIN ENCRYPTED" in key_of(encrypted)


@pytest.mark.parametrize("later", [False, True])
def test_no_file_has_the_plain_key_while_kits_are_made(encrypted, larger, tmp_path, monkeypatch, later):
    """Looked for when FLARE has written all that it writes, before anything is removed."""
    seen, made = [], Provisioner.provision

    def look(self, project, *arguments, **options):
        done = made(self, project, *arguments, **options)
        seen.append([path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()])
        return done

    monkeypatch.setattr(Provisioner, "provision", look)
    if later:
        out = encrypted
        add(larger, out, passphrase=WORDS)
    else:
        out = tmp_path / "new"
        provision(larger, out, passphrase=WORDS)
    secret = numbers(load_pem_private_key(key_of(out).encode(), WORDS.encode()))
    keys = [plain_keys(content) for content in seen[0]]
    assert sum(map(len, keys)) >= 2, "those of the parties are there, in their kits"
    assert not any(numbers(key) == secret for found in keys for key in found)


def plain_keys(content):
    """Return the private keys that a file has as they are, as PEM or in JSON."""
    found, text = [], content.decode("latin-1").replace("\\n", "\n")
    for kind in ("PRIVATE KEY", "RSA PRIVATE KEY"):
        for part in text.split(f"-----BEGIN {kind}-----")[1:]:
            body = part.partition(f"-----END {kind}-----")[0]
            pem = f"-----BEGIN {kind}-----{body}-----END {kind}-----"
            found.append(load_pem_private_key(pem.encode(), None))
    return found


def test_the_search_finds_a_key_that_is_not_encrypted(kits):
    assert len(plain_keys((kits / STATE).read_bytes())) == 1


def test_a_key_that_was_plain_is_encrypted_when_somebody_is_added(kits, larger):
    before = numbers(plain_keys((kits / STATE).read_bytes())[0])
    add(larger, kits, passphrase=WORDS)
    assert numbers(load_pem_private_key(key_of(kits).encode(), WORDS.encode())) == before
    assert plain_keys((kits / STATE).read_bytes()) == []


def test_a_short_passphrase_makes_nothing(described, tmp_path):
    with pytest.raises(KitError, match="the passphrase has 11 letters; give at least 12"):
        provision(parse_federation(described), tmp_path / "kits", passphrase="eleven words"[:11])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def command(described, tmp_path):
    """Return a function that runs `surgfl provision` with these options."""
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(described))
    base = ["provision", str(tmp_path / "federation.yaml"), "--out", str(tmp_path / "kits")]
    return lambda *options: main([*base, *map(str, options)])


def test_the_command_takes_the_passphrase_from_a_file_the_environment_or_a_terminal(
    command, tmp_path, monkeypatch, capsys
):
    file = tmp_path / "passphrase"
    file.write_text(WORDS + "\nanother line\n")
    assert command("--encrypt", "--passphrase-file", file) == 0
    assert load_pem_private_key(key_of(tmp_path / "kits").encode(), WORDS.encode())
    assert command("--add") == 2
    assert "SURGFL_CA_PASSPHRASE in the environment, or run it in a terminal" in capsys.readouterr().err
    monkeypatch.setenv("SURGFL_CA_PASSPHRASE", WORDS)
    assert command("--add") == 0
    monkeypatch.delenv("SURGFL_CA_PASSPHRASE")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("shared_components.commands.provision.getpass", lambda prompt: WORDS)
    assert command("--add") == 0
    assert "Its key is encrypted." in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, words",
    [
        (["--passphrase-file", "{file}"], "the authority's key is not encrypted; --encrypt does that"),
        (["--encrypt", "--passphrase-file", "{file}.gone"], "gone: cannot be read"),
        (["--encrypt"], "the passphrase of the authority's key is missing; give --passphrase-file"),
    ],
)
def test_a_passphrase_that_does_nothing_or_is_not_there_is_refused(command, tmp_path, capsys, options, words):
    file = tmp_path / "passphrase"
    file.write_text(WORDS)
    assert command(*(one.format(file=file) for one in options)) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not (tmp_path / "kits").exists()


def test_two_different_passphrases_at_the_terminal_are_refused(command, tmp_path, monkeypatch, capsys):
    typed = iter([WORDS, WORDS + "!"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("shared_components.commands.provision.getpass", lambda prompt: next(typed))
    assert command("--encrypt") == 2
    assert "the two passphrases differ" in capsys.readouterr().err and not (tmp_path / "kits").exists()
