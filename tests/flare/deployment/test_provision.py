"""Kits from a federation file: their certificates, later parties, and the authority's key, plain or encrypted."""

import json
import shutil
import stat
import subprocess
from datetime import timedelta

import msgspec
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.provisioner import Provisioner

from shared_components.cli import main
from shared_components.flare.deployment.federation_file import (
    EXAMPLE,
    MOST_SITES,
    FederationFileError,
    parse_federation,
)
from shared_components.flare.deployment.kits import KitError
from shared_components.flare.provision import add, provision, read_issued
from shared_components.flare.storage import KitStorage
from tests.flare.deployment.conftest import DESCRIBED, NAMES


def certificate(folder, name="client.crt"):
    return x509.load_pem_x509_certificate((folder / "startup" / name).read_bytes())


def root(folder):
    return certificate(folder, "rootCA.pem")


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everybody_has_a_private_kit_with_a_certificate_of_the_configured_lifetime(kits):
    assert sorted(path.name for path in kits.iterdir()) == sorted([*NAMES, "ca"])
    for path in (kits, *kits.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    authority = "".join(path.read_text() for path in (kits / "ca").rglob("*.json"))
    assert authority.count("PRIVATE KEY-----") == 2  # begin and end of its own key
    for name in NAMES:
        own = certificate(kits / name, "server.crt" if name == "localhost" else "client.crt")
        own.verify_directly_issued_by(root(kits / name))
        assert own.not_valid_after_utc - own.not_valid_before_utc == timedelta(days=40)
        assert own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value == name
        assert read_issued(kits)["parties"][name]["ends"] == own.not_valid_after_utc.date().isoformat()
        (key,) = (kits / name / "startup").glob("*.key")
        assert json.dumps(key.read_text())[1:60] not in authority
    signer = root(kits / "localhost")
    assert signer.not_valid_after_utc - signer.not_valid_before_utc == timedelta(days=100)


def test_kits_have_the_servers_name_and_ports_and_certificates_expire_with_the_root(described, tmp_path):
    described["server"] |= {"host": "fl.example.org", "port": 9001, "admin_port": 9002}
    described["certificates"] = {"days": 5, "root_days": 5}
    kits = tmp_path / "kits"
    provision(parse_federation(described), kits)
    site = json.loads((kits / "hospital-a" / "startup" / "fed_client.json").read_text())
    assert site["servers"][0]["service"]["target"] == "fl.example.org:9001"
    assert site["client"]["connection_security"] == "mtls" and site["require_signed_jobs"] is True
    admin = json.loads((kits / "anna@example.org" / "startup" / "fed_admin.json").read_text())["admin"]
    assert (admin["host"], admin["port"], admin["connection_security"]) == ("fl.example.org", 9002, "mtls")
    folder = kits / "hospital-a"
    assert certificate(folder).not_valid_after_utc <= root(folder).not_valid_after_utc


def test_the_server_admits_as_many_sites_as_a_description_may_have(kits, described):
    (server,) = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())["servers"]
    assert server["max_num_clients"] == MOST_SITES > 100  # FLARE's own limit
    described["sites"] = [{"name": f"hospital-{n}", "organisation": f"hospital_{n}"} for n in range(MOST_SITES + 1)]
    with pytest.raises(FederationFileError, match=f"at most {MOST_SITES}"):
        parse_federation(described)


def test_a_later_site_gets_a_kit_of_the_same_authority_and_no_other_kit_changes(kits, larger):
    before = contents(kits)
    (new,) = add(larger, kits)
    certificate(new.folder).verify_directly_issued_by(root(kits / "localhost"))
    after = contents(kits)
    changed = {path for path in before if after[path] != before[path]}
    assert changed == {str(kits / "ca" / "issued.json")}
    assert all(str(new.folder) in path for path in set(after) - set(before))
    assert add(larger, kits) == []


def test_a_kit_is_renewed_when_the_old_kit_was_moved_away(kits, described):
    federation = parse_federation(described)
    with pytest.raises(KitError, match="hospital-a: exists already; move it away"):
        add(federation, kits, renew=("hospital-a",))
    shutil.move(kits / "hospital-a", kits / "old")
    (new,) = add(federation, kits, renew=("hospital-a",))
    own, old = certificate(new.folder), certificate(kits / "old")
    own.verify_directly_issued_by(root(kits / "localhost"))
    assert own.serial_number != old.serial_number and own.subject == old.subject
    assert read_issued(kits)["parties"]["hospital-a"]["serial"] == f"{own.serial_number:x}"
    with pytest.raises(KitError, match="--renew nobody: the file has no such party"):
        add(federation, kits, renew=("nobody",))


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("name", "other", "name is 'other', and the kits were made with 'small'"),
        ("server", {"host": "other.org", "organisation": "consortium"}, "and the kits were made with"),
        ("certificates", {"days": 40, "root_days": 90}, "root_days is 90, and the kits were made with 100"),
        ("sites", [{"name": "hospital-a", "organisation": "theirs"}], "hospital-a: organisation is 'theirs'"),
        ("administrators", [{"email": "anna@example.org", "organisation": "consortium", "role": "lead"}],
         "anna@example.org: role is 'lead', but the certificate was issued with 'project_admin'"),
    ],
)  # fmt: skip
def test_adding_parties_changes_no_certified_value(kits, described, section, change, words):
    before = contents(kits)
    described[section] = change
    with pytest.raises(KitError) as refused:
        add(parse_federation(described), kits)
    assert words in str(refused.value) and contents(kits) == before


def test_nothing_is_overwritten_and_nothing_incomplete_stays(kits, described, monkeypatch):
    federation = parse_federation(described)
    with pytest.raises(KitError, match="exists already and is not empty"):
        provision(federation, kits)
    (kits / "plain").write_text("a file")
    with pytest.raises(KitError, match="exists already and is not empty"):
        provision(federation, kits / "plain")
    for name in ("our kits", "o'brien", "a\tb"):  # FLARE could not start a job there
        with pytest.raises(KitError, match="has a space or a quotation mark in it"):
            provision(federation, kits.parent / name)
    monkeypatch.setattr("shared_components.flare.provision.secure", lambda kit: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        provision(federation, kits.parent / "new")
    assert [path.name for path in kits.parent.iterdir()] == ["kits"]


@pytest.mark.parametrize("text", [None, "{", "[]", '{"name": 1, "server": 2, "parties": 3}'])
def test_an_authority_that_is_not_there_or_damaged_adds_nobody(kits, described, text):
    path = kits / "ca" / "issued.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(KitError, match=r"issued\.json: (no such file|cannot be read)"):
        add(parse_federation(described), kits)


def test_the_command_tells_each_person_what_to_do(tmp_path, capsys):
    file, out = tmp_path / "federation.yaml", tmp_path / "kits"
    assert main(["provision", "--example", str(file)]) == 0
    assert file.read_text() == EXAMPLE.read_text()
    assert main(["provision", str(file), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert f"{out}/hospital-a  site hospital-a, of hospital_a, until " in text
    assert "everybody connects to localhost, port 8002" in text and "fill in local/site.yaml" in text
    values = yaml.safe_load(file.read_text())
    values["sites"][2]["name"] = "hospital-d"
    file.write_text(yaml.safe_dump(values))
    assert main(["provision", str(file), "--out", str(out), "--add"]) == 0
    text = capsys.readouterr().out
    assert f"{out}/hospital-d  site" in text and "hospital-c: no longer in the file" in text
    assert main(["provision", str(file), "--out", str(out), "--add"]) == 0
    text = capsys.readouterr().out
    assert "everybody in the file has a kit; no kit was written" in text
    assert "hospital-c: no longer in the file; the certificate stays valid" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give FEDERATION.yaml and --out FOLDER"),
        (["{file}"], "give FEDERATION.yaml and --out FOLDER"),
        (["{file}", "--out", "{out}", "--renew", "a"], "--renew goes with --add"),
        (["{file}", "--out", "{out}", "--add"], "issued.json: no such file"),
        (["--example", "{file}"], "is there already; give another file"),
        (["{out}.yaml", "--out", "{out}"], "no such file; write a template by surgfl provision --example"),
    ],
)
def test_wrong_arguments_are_one_sentence(tmp_path, capsys, arguments, words):
    file, out = tmp_path / "f.yaml", tmp_path / "kits"
    shutil.copy(EXAMPLE, file)
    assert main(["provision", *(one.format(file=file, out=out) for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("surgfl provision: ") and error.count("\n") == 1
    assert not out.exists()


def test_a_server_stores_below_its_working_folder_wherever_that_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = KitStorage("storage")
    store.create_object("jobs/one", b"data", {"a": 1}, True)
    assert (tmp_path / "storage" / "jobs" / "one" / "data").read_bytes() == b"data"
    assert store.list_objects("jobs") and store.get_data("jobs/one") == b"data"


WORDS = "a horse, a staple and a cell"
STATE = "ca/small/state/cert.json"


def key_of(kits):
    return json.loads((kits / STATE).read_text())["root_pri_key"]


def numbers(kits):
    """Return the number of an encrypted key."""
    return load_pem_private_key(key_of(kits).encode(), WORDS.encode()).private_numbers().d


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    out = tmp_path_factory.mktemp("locked") / "kits"
    provision(parse_federation(DESCRIBED), out, passphrase=WORDS)
    return out


@pytest.fixture
def encrypted(locked, tmp_path):
    return shutil.copytree(locked, tmp_path / "kits")


def test_the_key_of_all_kits_root_is_encrypted_with_600_000_rounds(encrypted):
    key = load_pem_private_key(key_of(encrypted).encode(), WORDS.encode())
    assert key.public_key() == root(encrypted / "hospital-a").public_key()
    with pytest.raises(TypeError, match="Password was not given"):
        load_pem_private_key(key_of(encrypted).encode(), None)
    assert stat.S_IMODE((encrypted / STATE).stat().st_mode) == 0o600
    assert rounds_of(key_of(encrypted)) == (600_000, "hmacWithSHA256")


def test_a_later_site_needs_the_passphrase_and_gets_a_kit_of_the_same_authority(encrypted, larger):
    before = contents(encrypted)
    with pytest.raises(KitError, match=r"cert.json: the authority's key is encrypted; enter its passphrase"):
        add(larger, encrypted)
    with pytest.raises(KitError, match="the passphrase does not open the authority's key; enter the right one"):
        add(larger, encrypted, passphrase=WORDS + "!")
    assert contents(encrypted) == before
    (kit,) = add(larger, encrypted, passphrase=WORDS)
    certificate(kit.folder).verify_directly_issued_by(root(encrypted / "localhost"))
    assert "BEGIN ENCRYPTED" in key_of(encrypted)


@pytest.mark.parametrize("later", [False, True])
def test_no_file_has_the_plain_key_while_kits_are_made(encrypted, larger, tmp_path, monkeypatch, later):
    """FLARE has written all files by then, and nothing was removed."""
    seen, made = [], Provisioner.provision

    def look(self, project, *arguments, **options):
        done = made(self, project, *arguments, **options)
        seen.append([path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()])
        return done

    monkeypatch.setattr(Provisioner, "provision", look)
    out = encrypted if later else tmp_path / "new"
    (add if later else provision)(larger, out, passphrase=WORDS)
    keys = [key for content in seen[0] for key in plain_keys(content)]
    assert len(keys) >= 2, "the kits contain the parties' keys"
    assert numbers(out) not in keys


def plain_keys(content):
    """Return the numbers of the unencrypted private keys in a file, as PEM or in JSON."""
    keys, text = [], content.decode("latin-1").replace("\\n", "\n")
    for kind in ("PRIVATE KEY", "RSA PRIVATE KEY"):
        for part in text.split(f"-----BEGIN {kind}-----")[1:]:
            body = part.partition(f"-----END {kind}-----")[0]
            pem = f"-----BEGIN {kind}-----{body}-----END {kind}-----"
            keys.append(load_pem_private_key(pem.encode(), None).private_numbers().d)
    return keys


def test_a_key_that_was_plain_is_encrypted_when_somebody_is_added(kits, larger):
    (before,) = plain_keys((kits / STATE).read_bytes())
    add(larger, kits, passphrase=WORDS)
    assert numbers(kits) == before and plain_keys((kits / STATE).read_bytes()) == []


def rounds_of(pem):
    """Return the rounds of PBKDF2 that OpenSSL reads from a PKCS #8 key, and its hash function."""
    words = ["openssl", "asn1parse"]
    lines = subprocess.run(words, input=pem, capture_output=True, text=True, check=True).stdout.splitlines()
    after = next(number for number, line in enumerate(lines) if line.endswith(":PBKDF2"))
    rounds = next(line for line in lines[after:] if "INTEGER" in line)
    (function,) = (line.rpartition(":")[2] for line in lines if "hmacWith" in line)
    return int(rounds.rpartition(":")[2], 16), function


def older(kits, passphrase):
    """Encrypt the authority's key as SurgFL 0.1 did; return it."""
    path = kits / STATE
    authority = json.loads(path.read_text())
    key = load_pem_private_key(authority["root_pri_key"].encode(), None)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encryption = serialization.BestAvailableEncryption(passphrase.encode())
    path.write_text(json.dumps(authority | {"root_pri_key": key.private_bytes(pem, pkcs8, encryption).decode()}))
    return key


def test_an_older_key_with_a_weak_passphrase_still_opens_with_a_warning_and_gets_the_rounds(
    kits, larger, tmp_path, capsys
):
    key = older(kits, "aaaaaaaaaaaa")
    assert rounds_of(key_of(kits))[0] == 2048
    (tmp_path / "passphrase").write_text("aaaaaaaaaaaa")
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(larger)))
    words = ["provision", str(tmp_path / "federation.yaml"), "--out", str(kits), "--add"]
    assert main([*words, "--passphrase-file", str(tmp_path / "passphrase")]) == 0
    assert "For a new key its passphrase would be refused: it is easy to guess" in capsys.readouterr().out
    again = load_pem_private_key(key_of(kits).encode(), b"aaaaaaaaaaaa")
    assert again.private_numbers() == key.private_numbers() and rounds_of(key_of(kits))[0] == 600_000


@pytest.mark.parametrize(
    ("passphrase", "words"), [("eleven word", "has 11 letters; give at least 12"), ("a" * 12, "is easy to guess")]
)
@pytest.mark.parametrize("later", [False, True])
def test_a_weak_passphrase_makes_nothing(kits, described, passphrase, words, later):
    out = kits if later else kits.parent / "new"
    before = contents(kits)
    with pytest.raises(KitError, match=f"the passphrase {words}"):
        (add if later else provision)(parse_federation(described), out, passphrase=passphrase)
    assert contents(kits) == before and [path.name for path in kits.parent.iterdir()] == ["kits"]


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
def test_a_missing_or_unused_passphrase_is_refused(command, tmp_path, capsys, options, words):
    file = tmp_path / "passphrase"
    file.write_text(WORDS)
    assert command(*(one.format(file=file) for one in options)) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not (tmp_path / "kits").exists()


def test_two_different_passphrases_at_the_terminal_are_refused(command, tmp_path, monkeypatch, capsys):
    typed = iter([WORDS, WORDS + "!"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("shared_components.commands.provision.getpass", lambda prompt: next(typed))
    assert command("--encrypt") == 2
    assert "the two passphrases differ" in capsys.readouterr().err and not (tmp_path / "kits").exists()
