"""FLARE reads HOCON and YAML of a job in a party's main process; with the patches a party reads two JSON files."""

import io
import json
import os
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.x509 import load_pem_x509_certificate
from nvflare.apis.fl_constant import SiteType
from nvflare.fuel.sec.authz import AuthorizationService, Authorizer
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import generate_keys, serialize_cert, sign_folders
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.json_configer import JsonConfigurator
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.security import COMMAND_CATEGORIES

from shared_components.flare.deployment.app_files import LARGEST_CODE, LARGEST_FILE
from shared_components.flare.patches.job_configuration import NOT_DEPLOYED, import_only_installed, read_only_json
from shared_components.flare.patches.site_commands import command_problem
from shared_components.flare.provision import Certificates
from tests.flare.conftest import put_back

REPLACED = ((ConfigFactory, "get_config_loader"), (AppDeployer, "deploy"), (JobMetaValidator, "_validate_zf"))
JOB = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0"
CLIENT, SERVER = "config/config_fed_client.json", "config/config_fed_server.json"
CONF = "config/config_fed_client.conf"
META = {"name": "job", "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    put_back(monkeypatch, *REPLACED)
    monkeypatch.setattr(PrivacyService, "is_scope_allowed", lambda scope: True)
    authorizer = Authorizer("hospital_a", COMMAND_CATEGORIES)
    permissions = {"lead": {"submit_job": "any"}, "project_admin": "any", "member": {"view": "any"}}
    assert not authorizer.load_policy({"format_version": "1.0", "permissions": permissions})
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    monkeypatch.setattr(AppAuthzService, "app_validator", DefaultAppValidator(SiteType.CLIENT))


@pytest.fixture
def ours():
    """Install the replacements."""
    read_only_json()


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """Return the name of an importable package, and a function that returns whether it was imported."""
    package = tmp_path / "importable" / "canary_of_a_job"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'sung')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    return package.name, (tmp_path / "sung").exists


@pytest.fixture
def web():
    """Serve HTTP on loopback; return the URL and the list of requested paths."""
    requested = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/x.conf", requested
    server.shutdown()
    thread.join(10)


def zipped(files):
    """Return a zip archive of these texts by name; a list of pairs may repeat a name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, text)
    return buffer.getvalue()


def app(**more):
    """Return the files of an app: both configurations, and others."""
    return {"config/": "", CLIENT: "{}", SERVER: "{}", **more}


def job(files, meta=META):
    return zipped({"job/meta.json": json.dumps(meta), **{f"job/app/{name}": text for name, text in files.items()}})


def deploy(tmp_path, data, *, role="lead", root=""):
    """Let FLARE deploy a zipped app of a submitter with this role; return its answer."""
    run = tmp_path / "kit" / JOB
    workspace = SimpleNamespace(
        get_run_dir=lambda _: str(run), get_app_dir=lambda _: str(run / "app_site"), site_name="site",
        get_job_meta_path=lambda _: str(run / "meta.json"), get_file_path_in_startup=lambda _: root,
    )  # fmt: skip
    submitter = {"submitter_name": "lena@example.org", "submitter_org": "consortium", "submitter_role": role}
    return AppDeployer().deploy(
        workspace=workspace, job_id=JOB, job_meta=submitter, app_name="app", app_data=data, fl_ctx=None
    )


HOCON = {
    "package": 'include package("{package}.inner:x.conf")', "url": 'include url("{url}")',
    "file": 'include required(file("{secret}"))',
}  # fmt: skip


def test_flare_itself_runs_code_connects_and_shows_whether_files_exist(tmp_path, canary, web):
    """When this fails, FLARE reads only JSON itself."""
    answers = []
    for kind in HOCON:
        for secret in (__file__, "/no/such/file"):
            text = HOCON[kind].format(package=canary[0], url=web[0], secret=secret)
            try:
                answers.append(deploy(tmp_path, zipped({SERVER: "{}", CONF: text}), role="nobody"))
            except Exception as error:
                answers.append(str(error))
    assert canary[1]() and web[1] and answers[4] != answers[5]


@pytest.mark.parametrize("kind", HOCON)
@pytest.mark.parametrize("place", ["instead", "beside", "below"])
@pytest.mark.parametrize("extension", [".conf", ".conf.default", ".yml", ".yaml", ".json.default"])
def test_a_party_reads_only_the_two_json_files(ours, kind, place, extension, tmp_path, canary, web):
    folder = "config/deeper" if place == "below" else "config"
    text = HOCON[kind].format(package=canary[0], url=web[0], secret=__file__)
    files = app(**{f"{folder}/config_fed_client{extension}": text})
    if place == "instead":
        del files[CLIENT]
    answer = deploy(tmp_path, zipped(files))
    assert answer.startswith(f"the job contains {folder}/config_fed_client{extension}; a job consists of meta.json")
    assert not (tmp_path / "kit").exists()
    valid, problem, _ = JobMetaValidator().validate("job", job(files))
    assert not valid and problem.startswith(f"the job contains job/app/{folder}/config_fed_client{extension};")
    command = Message(TrainingTopic.DEPLOY, zipped(files))
    command.set_headers({RequestHeader.JOB_ID: JOB, RequestHeader.JOB_META: {"job_id": JOB}})
    assert command_problem(command, "server") == answer
    assert not canary[1]() and not web[1]


@pytest.mark.parametrize("extension", [".conf", ".yml", ".yaml", ".conf.default"])
def test_the_meta_of_a_submission_is_json(ours, extension, canary):
    text = HOCON["package"].format(package=canary[0])
    files = {f"job/meta{extension}": text, **{f"job/app/{name}": text for name, text in app().items()}}
    valid, problem, _ = JobMetaValidator().validate("job", zipped(files))
    assert not valid and f"job/meta{extension}" in problem and not canary[1]()


def test_a_job_of_two_json_files_is_accepted_and_may_be_signed(ours, tmp_path):
    assert deploy(tmp_path, zipped(app())) is None
    assert (tmp_path / "kit" / JOB / "app_site" / CLIENT).read_text() == "{}"
    names = [NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE]
    signed = {**app(), **{f"{folder}{name}": "{}" for folder in ("", "config/") for name in names}}
    assert JobMetaValidator().validate("job", job(signed)) == (True, "", META)
    papers = zipped([("job/README.md", "x"), ("job/meta.json", json.dumps(META)), ("job/app/config/", ""),
                     (f"job/app/{SERVER}", "{}"), (f"job/app/{CLIENT}", "{}")])  # fmt: skip
    assert JobMetaValidator().validate("job", papers)[0]


def test_the_submitters_role_is_checked_before_anything_is_parsed(ours, tmp_path, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    answer = deploy(tmp_path, zipped({**app(), CLIENT: "this is no JSON"}), role="member")
    assert answer == "lena@example.org (member) may not submit jobs here"
    assert not (tmp_path / "kit" / JOB).exists()


@pytest.mark.parametrize(
    "name",
    [
        "config/evil/__init__.py", "config/evil.py", "evil.py", "README.md", "config/comm_config.json", "x/y.json",
        "config/Config_fed_client.json", "./config/config_fed_client.json", "config//config_fed_client.json",
        "custom", "config/custom/x.py", "log_config.json", "config/config_fed_client.json.default", "resources.json",
    ],
)  # fmt: skip
def test_any_other_file_is_refused_by_name_before_it_is_unpacked(ours, name, tmp_path):
    answer = deploy(tmp_path, zipped([*app().items(), (name, "{}")]))
    assert name in answer and "remove the file" in answer and not (tmp_path / "kit").exists()


@pytest.mark.parametrize("data", [b"", b"PK", None, "text", zipped(app())[:-30]])
def test_data_that_are_no_archive_are_refused(ours, data, tmp_path):
    assert deploy(tmp_path, data) == "the app is no readable zip archive"


def test_duplicate_and_too_large_files_are_refused(ours, tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped([*app().items(), (CLIENT, "{}")])
    assert deploy(tmp_path, twice) == f"the job contains {CLIENT} twice"
    large = zipped({**app(), CLIENT: " " * (LARGEST_FILE + 1)})
    assert deploy(tmp_path, large) == f"{CLIENT} has {LARGEST_FILE + 1} bytes, more than the limit of 1000000"
    half = b"\0" * (LARGEST_CODE // 2)
    bomb = zipped({**app(), "custom/a.bin": half, "custom/b.bin": half + b"\0"})
    assert "custom folders have 100000001 bytes" in deploy(tmp_path, bomb)


def test_an_app_without_configuration_is_refused_and_its_code_is_still_detected(ours, tmp_path):
    files = app()
    del files[CLIENT]
    assert deploy(tmp_path, zipped(files)).startswith("Missing required config config_fed_client.json inside ")
    assert deploy(tmp_path, zipped({**app(), "custom/x.py": ""})) == "BYOC not permitted"
    assert not (tmp_path / "kit" / JOB).exists()


@pytest.mark.parametrize(
    ("role", "may"), [("project_admin", True), ("lead", True), ("member", False), ("super", False), ("", False)]
)
def test_a_job_is_accepted_by_the_role_of_its_submitter(ours, tmp_path, role, may, caplog):
    answer = deploy(tmp_path, zipped(app()), role=role)
    assert answer == (None if may else f"lena@example.org ({role}) may not submit jobs here")
    assert ("may not submit jobs here" in caplog.text) == (not may)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Return a federation's authority, its certificate's file, and another authority."""
    folder = tmp_path_factory.mktemp("authority")
    authorities = []
    for name in ("federation", "stranger"):
        made = Certificates(days=10, root_days=20)
        certificate, key = made.new_root(name)
        made.root_cert, made.pri_key, made.subject = load_pem_x509_certificate(certificate), key, name
        authorities.append(made)
        (folder / f"{name}.pem").write_bytes(certificate)
    return (*authorities, folder)


def signed(tmp_path, authority, role):
    """Return an app that a person with a role has signed, zipped."""
    key, public = generate_keys()
    certificate = authority._generate_cert(
        "anna@example.org", "university", authority.subject, authority.pri_key, public, role=role
    )
    folder = tmp_path / f"signed by {role}"
    for name, text in app().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text:
            (folder / name).write_text(text)
    (folder / "anna.crt").write_bytes(serialize_cert(certificate))
    sign_folders(str(folder), key, str(folder / "anna.crt"))
    (folder / "anna.crt").unlink()
    return zipped({str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()})


def test_a_signed_job_is_accepted_by_its_signers_role_whatever_the_server_says_of_the_submitter(
    ours, tmp_path, authority
):
    own, stranger, folder = authority
    root = str(folder / "federation.pem")
    by_member, by_lead = signed(tmp_path, own, "member"), signed(tmp_path, own, "lead")
    refused = "anna@example.org (member) may not submit jobs here"
    assert deploy(tmp_path, by_member, role="lead", root=root) == refused
    assert not (tmp_path / "kit" / JOB).exists()
    assert deploy(tmp_path, by_lead, role="member", root=root) is None
    forged = deploy(tmp_path, signed(tmp_path, stranger, "lead"), role="lead", root=root)
    assert forged == "app app does not pass signature verification"


def test_a_reply_to_a_deployment_contains_no_exception_and_no_file_stays(ours, tmp_path, monkeypatch, caplog):
    def fail(*_):
        (tmp_path / "kit" / JOB / "half").touch()
        raise FileNotFoundError("/data/ours/patients.csv")

    monkeypatch.setattr(AppAuthzService, "validate_app", fail)
    assert deploy(tmp_path, zipped(app())) == NOT_DEPLOYED
    assert "/data/ours/patients.csv" in caplog.text and not (tmp_path / "kit" / JOB).exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": NaN}', "contains NaN"), ('{"a": [-Infinity]}', "contains -Infinity"), ("[1]", "a JSON list"),
        ('{"a": {"b": 1, "b": 2}}', "has the key 'b' twice"), ("include x", "Expecting value"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"), ("", "Expecting value"),
        ('{"a": ' + "1" * 5000 + "}", "4300 digits"), (" " * (LARGEST_FILE + 1), "larger than 1000000 bytes"),
    ],
)  # fmt: skip
def test_json_is_read_strictly_and_not_repeated_in_logs(ours, text, why, tmp_path, caplog):
    path = tmp_path / "config_fed_client.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        ConfigFactory.load_config(str(path)).to_dict()
    with pytest.raises(ValueError, match=why):
        ConfigFactory.get_config_loader(ConfigFormat.JSON).load_config_from_str(text)
    assert len(caplog.text) < 1000


def test_json_of_a_party_is_read_and_other_formats_have_no_loader(ours, tmp_path):
    (tmp_path / "resources.json.default").write_text('{"a": "é"}')
    assert ConfigFactory.load_config("resources.json", [str(tmp_path)]).to_dict() == {"a": "é"}
    assert ConfigFactory.load_config("comm_config.json", [str(tmp_path)]) is None
    for other in (ConfigFormat.PYHOCON, ConfigFormat.OMEGACONF):
        with pytest.raises(ValueError, match="only JSON"):
            ConfigFactory.get_config_loader(other)


TEXTS = {
    "environment": "{$SURGFL_TEST_SECRET}", "inside": "x{$SURGFL_TEST_SECRET}y", "width": "x{SITE_NAME:>100000}",
    "reference": "{other}", "plain": "{}", "repeated": ["{SITE_NAME}{SITE_NAME}"], "other": "value",
}  # fmt: skip


def test_a_job_with_text_between_braces_is_refused_and_flare_itself_replaces_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SURGFL_TEST_SECRET", "secret")
    path = tmp_path / "config_fed_server.json"
    path.write_text(json.dumps(TEXTS))

    def configured():
        configurator = JsonConfigurator(str(path), base_pkgs=[], module_names=[], sys_vars={"SITE_NAME": "hospital-a"})
        configurator.configure()
        return configurator.config_data

    flares = configured()
    assert flares["environment"] == "secret" and flares["inside"] == "xsecrety" and flares["reference"] == "value"
    assert len(flares["width"]) == 100_001 and flares["repeated"] == ["hospital-ahospital-a"], "FLARE's own"
    read_only_json()
    for key, text in TEXTS.items():
        path.write_text(json.dumps({key: text, "nested": [{"{": 1}] if key == "other" else 1}))
        with pytest.raises(ValueError, match=r"contains '.*[{].*'; no text of a job may contain braces"):
            configured()
    path.write_text('{"other": "value"}')
    assert configured() == {"other": "value"}


def test_nothing_is_imported_from_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "x" / ".."), *sys.path])
    import_only_installed()
    assert not any(Path(folder).resolve() == tmp_path for folder in sys.path) and "" not in sys.path
    assert os.environ["PYTHONSAFEPATH"] == "1"
