"""FLARE reads HOCON and YAML of a job in a party's main process; with the patches a party reads two JSON files."""

import io
import json
import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import SiteType
from nvflare.fuel.sec.authz import AuthorizationService, Authorizer
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_config_loader import JsonConfigLoader
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private import json_configer
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.app import default_app_validator
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.private.json_configer import JsonConfigurator
from nvflare.private.privacy_manager import PrivacyService
from nvflare.security.security import COMMAND_CATEGORIES

from shared_components.flare.deployment.app_files import LARGEST_CODE, LARGEST_FILE
from shared_components.flare.patches.job_configuration import NOT_DEPLOYED, import_only_installed, read_only_json
from shared_components.flare.patches.site_commands import command_problem, restrict_commands
from tests.flare.conftest import put_back

REPLACED = (
    (ConfigFormat, "config_ext_formats"), (ConfigFactory, "get_config_loader"), (JsonConfigLoader, "_from_file"),
    (JsonConfigLoader, "load_config_from_str"), (default_app_validator, "_config_exists"), (AppDeployer, "deploy"),
    (JobMetaValidator, "_validate_zf"), (AppAuthzService, "authorize_app_info"),
    (json_configer, "resolve_var_refs"),
)  # fmt: skip
JOB = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0"
CLIENT, SERVER = "config/config_fed_client.json", "config/config_fed_server.json"
META = {"name": "job", "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    put_back(monkeypatch, *REPLACED)
    monkeypatch.setattr(PrivacyService, "is_scope_allowed", lambda scope: True)
    authorizer = Authorizer("hospital_a", COMMAND_CATEGORIES)
    assert not authorizer.load_policy({"format_version": "1.0", "permissions": {"lead": {"submit_job": "any"}}})
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    monkeypatch.setattr(AppAuthzService, "app_validator", DefaultAppValidator(SiteType.CLIENT))


@pytest.fixture
def ours():
    read_only_json()
    restrict_commands()


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """Return the name of an importable package, and a function that returns whether it was imported."""
    package = tmp_path / "importable" / "canary_of_a_job"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'sung')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    return package.name, (tmp_path / "sung").exists


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


def deploy(tmp_path, data, *, role="lead"):
    """Let FLARE deploy a zipped app of a submitter with this role; return its answer."""
    run = tmp_path / "kit" / JOB
    workspace = SimpleNamespace(
        get_run_dir=lambda _: str(run), get_app_dir=lambda _: str(run / "app_site"), site_name="site",
        get_job_meta_path=lambda _: str(run / "meta.json"),
    )  # fmt: skip
    submitter = {"submitter_name": "lena@example.org", "submitter_org": "consortium", "submitter_role": role}
    return AppDeployer().deploy(
        workspace=workspace, job_id=JOB, job_meta=submitter, app_name="app", app_data=data, fl_ctx=None
    )


INCLUDE = 'include package("{}.inner:x.conf")'  # FLARE's reader of HOCON imports the package


@pytest.mark.parametrize("place", ["instead", "beside", "below"])
@pytest.mark.parametrize("extension", [".conf", ".conf.default", ".yml", ".yaml", ".json.default"])
def test_a_party_reads_only_the_two_json_files(ours, place, extension, tmp_path, canary):
    folder = "config/deeper" if place == "below" else "config"
    files = app(**{f"{folder}/config_fed_client{extension}": INCLUDE.format(canary[0])})
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
    assert not canary[1]()


@pytest.mark.parametrize("extension", [".conf", ".yml", ".yaml", ".conf.default"])
def test_the_meta_of_a_submission_is_json(ours, extension, canary):
    meta = INCLUDE.format(canary[0])
    files = {f"job/meta{extension}": meta, **{f"job/app/{name}": text for name, text in app().items()}}
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
        "../config/config_fed_client.json", "/config/config_fed_client.json", "config/../config/config_fed_client.json",
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


def test_an_unpacked_app_is_checked_again_and_its_code_is_still_detected(ours, tmp_path):
    for name, text in app().items():
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        if text:
            (tmp_path / "app" / name).write_text(text)
    validate = DefaultAppValidator(SiteType.CLIENT).validate
    assert validate(str(tmp_path / "app")) == ("", {})
    (tmp_path / "app" / "custom").mkdir()
    assert validate(str(tmp_path / "app")) == ("", {"byoc": True})
    (tmp_path / "app" / "config" / "x.conf").symlink_to("/etc/passwd")
    assert validate(str(tmp_path / "app"))[0] == "the job contains config/x.conf, which no job may contain"
    (tmp_path / "app" / "config" / "x.conf").unlink()
    (tmp_path / "app" / CLIENT).unlink()
    assert validate(str(tmp_path / "app"))[0] == f"the job has no {CLIENT}"


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
        ConfigFactory.load_config(str(path))
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


def test_no_text_between_braces_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("SURGFL_TEST_SECRET", "secret")
    path = tmp_path / "config_fed_server.json"
    path.write_text(json.dumps(TEXTS))
    read_only_json()
    configurator = JsonConfigurator(str(path), base_pkgs=[], module_names=[], sys_vars={"SITE_NAME": "hospital-a"})

    configurator.configure()

    assert configurator.config_data == TEXTS


def test_nothing_is_imported_from_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "x" / ".."), *sys.path])
    import_only_installed()
    assert not any(Path(folder).resolve() == tmp_path for folder in sys.path) and "" not in sys.path
    assert os.environ["PYTHONSAFEPATH"] == "1"
