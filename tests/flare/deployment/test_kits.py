"""`secure` restricts a kit and keeps the party's own settings; certificates are checked before a connection."""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest.mock import Mock

import pytest
from msgspec.structs import asdict
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.security.security import COMMAND_CATEGORIES

from evidence.production.prepared import sign_again
from shared_components.cli import main
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site
from shared_components.federation.setup.limits import Limits, read_limits
from shared_components.flare import admin
from shared_components.flare.deployment.certificates import (
    certificate_problem,
    expiry_time,
    handshake_problem,
    owner_problem,
)
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.deployment.kits import (
    ALLOW_LIST,
    CODE,
    FILTER,
    FLARES_PATH,
    RIGHTS,
    SAFE_PATH,
    SAFE_START,
    KitError,
    find_kit,
    secure,
)
from shared_components.flare.provision import provision
from tests.flare.deployment.conftest import NAMES
from tests.flare.simulator import edit


def read(kits, name, file):
    return json.loads((kits / name / "local" / file).read_text())


def bare(kits, name):
    """Return a kit as FLARE's own provisioning leaves it."""
    for file in ("resources.json", "authorization.json", "privacy.json", "site.yaml", "limits.yaml"):
        (kits / name / "local" / file).unlink(missing_ok=True)
    return find_kit(kits / name)


CLASSES = json.loads(ALLOW_LIST.read_text())["client"]["class_allow_list"]


def test_flare_enforces_a_kits_list_as_exact_classes_and_has_no_rights_beside_ours(kits):
    values = read(kits, "hospital-a", "resources.json")
    policy, mode, default = ComponentPathAuthorizer()._get_policy_from_resources(values)
    assert policy == CLASSES and mode == "enforce" and not default
    matches = ComponentPathAuthorizer._path_matches_prefix
    other = ("shared_components.flare.executor.Other", FILTER + "2")
    assert not any(matches(path, entry) for entry in policy for path in other)
    assert {*COMMAND_CATEGORIES.values(), "submit_job", "clone_job", *CODE} == set(RIGHTS)


@pytest.mark.parametrize("name", ["hospital-a", "localhost"])
def test_a_kit_of_flare_is_restricted_once(kits, name):
    before = read(kits, name, "resources.json")
    kit = bare(kits, name)
    lines = secure(kit)
    assert len(lines) == (5 if name == "hospital-a" else 2) and all(line.startswith(str(kit.local)) for line in lines)
    assert read(kits, name, "resources.json") == before and secure(kit) == []
    for rights in read(kits, name, "authorization.json")["permissions"].values():
        assert rights["byoc"] == "none" and rights["get_job_log"] == "any"
        assert rights.get("shell_commands", "none") in ("none", "o:site" if name == "localhost" else "none")
    paths, ids = ([entry[key] for entry in before["components"]] for key in ("path", "id"))
    assert paths.count("shared_components.flare.peers.KeepToTheServer") == 1 and len(ids) == len(set(ids))
    assert paths.count("shared_components.flare.lost_sites.LostSites") == (name == "localhost")


SHOWS_ITS_PATH = """\
#!/bin/sh
exec {python} -c "import json, sys; print(json.dumps([sys.flags.safe_path, sys.path]))"
"""


@pytest.mark.parametrize("given", [None, "", "/opt/more"])
@pytest.mark.parametrize("name", ["hospital-a", "localhost", "anna@example.org"])
def test_a_start_script_imports_nothing_from_the_working_folder(kits, name, given, tmp_path):
    """An empty entry in PYTHONPATH, which FLARE's own script leaves, means the working folder to Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(SHOWS_ITS_PATH.format(python=sys.executable))
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"} | ({} if given is None else {"PYTHONPATH": given})
    kit = kits / name
    script = kit / "startup" / ("sub_start.sh" if name != "anna@example.org" else "fl_admin.sh")

    def run():
        done = subprocess.run(["bash", script, "--once"], cwd=kit, env=environment, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    before, mode = script.read_text(), script.stat().st_mode
    assert mode & 0o100 and secure(find_kit(kit)) == []
    safe, path = run()
    assert safe and not {"", str(kit), "."} & set(path), path
    assert (given in path) == (given == "/opt/more")
    script.write_text(before.replace(f"{SAFE_START}\n", "").replace(SAFE_PATH, FLARES_PATH))
    safe, path = run()
    assert not safe and {"", str(kit)} & set(path), "FLARE's own"
    (line,) = secure(find_kit(kit))
    assert line.startswith(f"{script}: Python imports nothing from the working folder")
    assert script.read_text() == before and script.stat().st_mode == mode


@pytest.mark.parametrize("text", ["#!/bin/sh\npython3 -m nvflare\n", "#!/bin/sh\nexec python3 own.py\n"])
def test_a_start_script_that_is_not_flares_is_refused_and_nothing_is_written(kits, text, capsys):
    (kits / "hospital-a" / "startup" / "sub_start.sh").write_text(text)
    kit = bare(kits, "hospital-a")
    assert main(["secure-kit", str(kit.folder)]) == 2
    assert "sub_start.sh: is not a script of FLARE's kits; provision the kit again" in capsys.readouterr().err
    assert not (kit.local / "resources.json").exists()


def test_a_server_stores_in_its_kit_and_detects_lost_sites_soon_and_no_log_leaves_a_site(kits):
    text = (kits / "localhost" / "local" / "resources.json").read_text()
    assert "/tmp" not in text and '"heart_beat_timeout": 30' in text
    assert "/tmp/nvflare" in (kits / "localhost" / "local" / "resources.json.default").read_text()
    assert read(kits, "hospital-a", "resources.json")["allow_log_streaming"] is False


def test_a_partys_own_settings_stay_and_its_permissive_ones_are_closed(kits):
    local = kits / "hospital-a" / "local"
    opened = {"class_allow_list": ["*"], "class_list_enforcement_mode": "warn", "labels": {"ward": 3}}
    edit(local / "resources.json", lambda own: own.update(opened))
    roles = {"lead": "any", "guest": {"view": "none", "byoc": "any"}}
    edit(local / "authorization.json", lambda own: own["permissions"].update(roles))
    assert len(secure(find_kit(kits / "hospital-a"))) == 2
    resources, rights = (read(kits, "hospital-a", f"{name}.json") for name in ("resources", "authorization"))
    assert resources["class_allow_list"] == CLASSES and resources["labels"] == {"ward": 3}
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert rights["permissions"]["lead"] == {right: "none" if right in CODE else "any" for right in RIGHTS}
    assert rights["permissions"]["guest"]["byoc"] == "none" and rights["permissions"]["guest"]["view"] == "none"


def test_custom_code_is_for_those_who_submit_and_is_taken_back(kits):
    kit = find_kit(kits / "hospital-a")
    (line,) = secure(kit, allow_custom_code=True)
    assert "a job may bring code, which then runs here" in line
    permissions = read(kits, "hospital-a", "authorization.json")["permissions"]
    assert {role: rights["byoc"] for role, rights in permissions.items()} == {
        "project_admin": "any", "lead": "any", "org_admin": "none", "member": "none",
    }  # fmt: skip
    (line,) = secure(kit)
    assert "no job may bring code" in line


def test_a_sites_own_filters_stay_and_ours_is_the_last_that_what_leaves_passes(kits):
    local = kits / "hospital-a" / "local"
    noise = {"path": "theirs.Noise", "args": {}}
    scope = {"name": "strict", "task_result_filters": [{"path": FILTER, "args": {"odd": 1}}, noise]}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "strict"}))
    assert len(secure(find_kit(kits / "hospital-a"))) == 1
    (scope,) = read(kits, "hospital-a", "privacy.json")["scopes"]
    assert scope["task_result_filters"] == [noise, {"path": FILTER, "args": {}, "direction": "out"}]
    assert scope["task_data_filters"] == [{"path": FILTER, "args": {}, "direction": "in"}]
    assert secure(find_kit(kits / "hospital-a")) == []


def test_site_yaml_errs_until_it_is_filled_in_limits_say_the_defaults_and_neither_is_ever_replaced(kits):
    site, limits = (kits / "hospital-a" / "local" / f"{name}.yaml" for name in ("site", "limits"))
    with pytest.raises(SiteError, match="unknown dataset"):
        load_site(site)
    assert read_limits(limits) == Limits()
    assert limits.read_text().count(": ") == sum(value is not None for value in asdict(Limits()).values())
    site.write_text("mine: 1\n")
    limits.write_text("iterations: 5\n")
    secure(find_kit(kits / "hospital-a"))
    assert site.read_text() == "mine: 1\n" and read_limits(limits).iterations == 5


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("resources.json", "{", "resources.json: cannot be read"),
        ("resources.json", "[]", "resources.json: contains no JSON object"),
        ("authorization.json", "{}", "authorization.json: FLARE cannot read it"),
        ("authorization.json", '{"permissions": 3}', "authorization.json: FLARE cannot read it"),
        ("privacy.json", '{"scopes": []}', "privacy.json: has no scope"),
        ("privacy.json", '{"scopes": [{"name": "a"}]}', "privacy.json: has no scope or no default_scope"),
        ("privacy.json", '{"scopes": [3], "default_scope": "a"}', "privacy.json: FLARE cannot read it"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_written(kits, file, text, words):
    local = bare(kits, "hospital-a").local
    (local / file).write_text(text)
    before = {path.name: path.read_bytes() for path in local.iterdir()}
    with pytest.raises(KitError) as refused:
        secure(find_kit(kits / "hospital-a"))
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in local.iterdir()} == before


def test_a_kit_without_flares_defaults_or_with_a_reserved_name_is_refused(kits):
    kit = bare(kits, "hospital-a")
    (kit.local / "resources.json.default").unlink()
    with pytest.raises(KitError, match=r"resources\.json\.default: no such file"):
        secure(kit)
    edit(kit.folder / "startup" / "fed_client.json", lambda config: config["client"].update(fqsn="Server"))
    with pytest.raises(KitError, match="the site is called 'Server', which is reserved"):
        secure(kit)


@pytest.mark.parametrize("what", ["ca", "hospital-a/local", "nowhere", ".", "our kit"])
def test_a_folder_that_is_no_kit_is_refused(kits, capsys, what):
    assert main(["secure-kit", str(kits / what)]) == 2
    error = capsys.readouterr().err
    words = "has a space or a quotation mark" if what == "our kit" else "is no startup kit; give a folder that contains"
    assert words in error and error.count("\n") == 1


def test_the_command_says_what_it_changed_and_what_was_in_place(kits, capsys):
    bare(kits, "localhost")
    assert main(["secure-kit", str(kits / "localhost")]) == 0
    text = capsys.readouterr().out
    assert "resources.json: a job may name FederationController, and no other class" in text
    assert "It takes effect at the next start" in text
    assert main(["secure-kit", str(kits / "localhost")]) == 0
    in_place = f"{kits / 'localhost'}: all is in place\n"
    assert capsys.readouterr().out.startswith(f"{in_place}Its certificate is valid until 2")
    assert main(["secure-kit", str(kits / "anna@example.org")]) == 0
    assert ": all is in place" in capsys.readouterr().out


def test_an_administrators_console_asks_for_no_name_also_with_a_kit_of_flare(kits, capsys):
    kit = kits / "anna@example.org"
    file = kit / "startup" / "fed_admin.json"
    assert json.loads(file.read_text())["admin"]["uid_source"] == "cert"
    edit(file, lambda values: values["admin"].update(uid_source="user_input"))  # as `nvflare provision` writes it
    assert main(["secure-kit", str(kit)]) == 0
    assert f"{file}: FLARE's console logs in by the name in the certificate" in capsys.readouterr().out
    assert main(["secure-kit", str(kit)]) == 0 and ": all is in place" in capsys.readouterr().out
    described = json.loads(file.read_text())["admin"]
    assert (described["uid_source"], described["username"]) == ("cert", "anna@example.org")


DAY = timedelta(days=1)


@pytest.fixture
def foreign(described, tmp_path):
    """Return the kits of another federation whose parties have the same names."""
    provision(parse_federation(described), tmp_path / "foreign")
    return tmp_path / "foreign"


@pytest.mark.parametrize("name", NAMES)
def test_a_new_kit_is_valid_until_its_certificate_expires(kits, name):
    kit, now = find_kit(kits / name), datetime.now(UTC)
    assert certificate_problem(kit) == "" and certificate_problem(kit, now=now + 39 * DAY) == ""
    assert "its certificate expired on " in certificate_problem(kit, now=now + 41 * DAY)
    assert "this machine's clock shows" in certificate_problem(kit, now=now - DAY)
    assert timedelta(days=39) < expiry_time(kit) - now <= timedelta(days=40)


@pytest.mark.parametrize("name", NAMES)
def test_a_kit_without_its_own_key_is_not_valid(kits, name, foreign):
    kit = find_kit(kits / name)
    key = kit.folder / "startup" / ("server.key" if kit.part == "server" else "client.key")
    for change in (key.unlink, key.touch, partial(shutil.copy, foreign / name / "startup" / key.name, key)):
        change()
        assert f"startup/{key.name} is missing, damaged or belongs to another certificate" in certificate_problem(kit)


def test_a_root_that_ends_first_counts(kits):
    now = datetime.now(UTC)
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + 1000 * DAY)
    kit = find_kit(kits / "hospital-a")
    assert certificate_problem(kit) == "" and expiry_time(kit) - now <= timedelta(days=100)
    assert "the federation's root certificate expired on " in certificate_problem(kit, now=now + 101 * DAY)


def test_a_foreign_an_expired_and_an_old_certificate_are_told_by_the_command(kits, foreign, capsys):
    now = datetime.now(UTC)
    for begins, until, by, code, words in (
        (now - DAY, now + DAY, foreign, 1, "the authority in startup/rootCA.pem has not signed its certificate"),
        (now - 2 * DAY, now - DAY, None, 1, "expired on"),
        (now - 2 * DAY, now + DAY, None, 0, "ask for a renewed kit"),
    ):
        sign_again(kits, "hospital-a", begins=begins, ends=until, by=by)
        assert main(["secure-kit", str(kits / "hospital-a")]) == code
        assert words in capsys.readouterr().out


def test_a_certificate_that_cannot_be_read_is_named(kits):
    (kits / "hospital-a" / "startup" / "client.crt").write_text("none")
    with pytest.raises(KitError, match=r"client\.crt: cannot be read"):
        certificate_problem(find_kit(kits / "hospital-a"))


def test_an_expired_or_foreign_certificate_of_an_administrator_is_reported_before_anything_is_connected(kits, capsys):
    kit, now = kits / "anna@example.org", datetime.now(UTC)
    assert owner_problem(find_kit(kit), "anna@example.org") == ""

    def report():
        assert main(["job", "list", "--admin", str(kit)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    sign_again(kits, kit.name, begins=now - 2 * DAY, ends=now - DAY)
    error = report()
    assert "its certificate expired on " in error and error.endswith("ask for a renewed kit\n")
    for file in ("client.crt", "client.key"):
        (kit / "startup" / file).write_bytes((kits / "hospital-a" / "startup" / file).read_bytes())
    assert "its certificate belongs to hospital-a, but the kit belongs to anna@example.org; ask" in report()


def greet(listener, kit):
    """Take one connection with a kit's certificate and say nothing; without a kit, hang up at once."""
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
    """Return the problem that a party sees in a handshake with a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener, server))
        thread.start()
        problem = handshake_problem(find_kit(kits / name), "127.0.0.1", listener.getsockname()[1])
        thread.join(10)
    assert not thread.is_alive()
    return problem


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_server_of_the_same_authority_takes_every_partys_certificate(kits, name):
    assert asked(kits, kits / "localhost", name) == ""


def test_a_server_of_another_federation_is_distinguished_from_an_absent_server(kits, foreign):
    problem = asked(foreign, kits / "localhost")
    assert "this kit's rootCA.pem has not signed the certificate of the server" in problem
    assert "ask for it again" in problem
    assert asked(kits, None) == "", "it hangs up, which is no problem of certificates"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert handshake_problem(find_kit(kits / "hospital-a"), "127.0.0.1", port) == ""


def test_certificates_that_the_server_rejects_and_an_expired_one_of_the_server_are_reported(kits, foreign):
    now = datetime.now(UTC)
    sign_again(kits, "hospital-a", begins=now - 2 * DAY, ends=now - DAY)  # by the server's clock
    assert "rejects this kit's certificate as expired" in asked(kits, kits / "localhost")
    sign_again(kits, "hospital-a", begins=now - DAY, ends=now + DAY, by=foreign)
    assert "rejects this kit's certificate, which another authority has signed" in asked(kits, kits / "localhost")
    sign_again(kits, "localhost", begins=now - 2 * DAY, ends=now - DAY)
    assert "has expired; ask its administrator to renew it" in asked(kits, kits / "localhost")


def test_a_key_that_is_another_certificates_is_named(kits):
    key = kits / "hospital-a" / "startup" / "client.key"
    key.write_bytes((kits / "anna@example.org" / "startup" / "client.key").read_bytes())
    with pytest.raises(KitError, match="startup: its certificates or its key cannot be read"):
        handshake_problem(find_kit(kits / "hospital-a"), "127.0.0.1", 1)


def test_the_certificate_names_an_administrator_whose_kit_does_not(kits, monkeypatch):
    """As those of `nvflare poc`."""
    path = kits / "anna@example.org" / "startup" / "fed_admin.json"
    described = json.loads(path.read_text())
    described["admin"] |= {"username": "", "uid_source": "cert"}
    path.write_text(json.dumps(described))
    opened = Mock()
    monkeypatch.setattr(admin, "open_session", opened)
    with admin.connect(kits / "anna@example.org") as administrator:
        assert administrator.name == opened.call_args.args[0] == "anna@example.org"
