"""FLARE's job descriptions, log records and errors, as an administrator sees them."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.fuel.flare_api import api_spec

from shared_components.flare import admin, console
from shared_components.flare.admin import AdminError, Administrator, connect, explain_errors, lines_of, listed

BEGUN = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def system(*running, begun=BEGUN):
    jobs = [api_spec.JobInfo(job, "app") for job in running]
    return api_spec.SystemInfo(api_spec.ServerInfo("started", begun), [], jobs)


def meta(status, start="2027-01-15T08:00:01+00:00", **more):
    return {"job_id": "0f1e", "name": "pfedsis", "status": status, "start_time": start, **more}


STATES = {
    "SUBMITTED": "waiting", "DISPATCHED": "starting", "RUNNING": "running", "FINISHED:COMPLETED": "finished",
    "FINISHED:ABORTED": "stopped", "FINISHED:EXECUTION_EXCEPTION": "failed", "FINISHED:CAN_NOT_SCHEDULE": "failed",
}  # fmt: skip


@pytest.mark.parametrize(("status", "state"), STATES.items())
def test_flares_states_are_translated(status, state):
    assert listed(meta(status), system("0f1e")).state == state


def test_a_job_that_began_before_the_server_did_is_lost_unless_a_process_runs_it():
    earlier = meta("RUNNING", "2027-01-15T07:59:59+00:00")
    assert listed(earlier, system()).state == "lost"
    assert listed(earlier, system("0f1e")).state == "running"
    assert listed(earlier, system(begun=BEGUN - 2)).state == "running", "it is ending"
    assert listed(meta("FINISHED:COMPLETED", "2027-01-15T07:59:59+00:00"), system()).state == "finished"
    # a dispatched job that never began counts from its submission
    dispatched = meta("DISPATCHED", "", submit_time_iso="2027-01-15T07:59:59.5+00:00")
    job = listed(dispatched, system())
    assert (job.state, job.submitted) == ("lost", "2027-01-15 07:59:59")


def record(text, name=console.__name__):
    return json.dumps({"fullName": name, "message": text}) + "\n"


def test_only_lines_of_the_controllers_console_are_returned():
    log = record("round 1/2  a") + record("FAILED: not ours", "nvflare.private") + record("one\ntwo")
    assert lines_of(log + '["a list"]\n{"fullName": "cut o') == ["round 1/2  a", "one", "two"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (api_spec.AuthorizationError("x"), "anna may not submit a job; the role in its certificate"),
        (api_spec.AuthenticationError("bad\n cert"), "anna may not submit a job: bad cert; the kit"),
        (api_spec.NoConnection("x"), "the server at h:1 cannot be reached"),
        (ConnectionRefusedError("x"), "the server at h:1 cannot be reached"),
        (api_spec.SessionExpired("idle"), "the session has ended (idle); repeat the command"),
        (api_spec.JobNotFound("x"), "there is no job 0f1e"), (AssertionError("kit"), "FLARE refuses: kit"),
        (api_spec.InternalError("several\nlines"), "FLARE refuses: several lines"),
    ],
)  # fmt: skip
def test_every_exception_of_flare_becomes_one_sentence(error, words):
    with pytest.raises(AdminError) as refusal, explain_errors("anna may not submit a job", "0f1e", address="h:1"):
        raise error
    assert str(refusal.value).startswith(words) and "\n" not in str(refusal.value)


def test_a_kit_of_another_kind_is_refused_before_anything_is_connected(tmp_path):
    for part in ("startup", "local"):
        (tmp_path / part).mkdir()
    with pytest.raises(ValueError, match="is no startup kit"), connect(tmp_path):
        pass
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    with pytest.raises(ValueError, match="kit of a site; --admin needs an administrator's kit"), connect(tmp_path):
        pass


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Return an administrator's kit without a certificate, which counts as good."""
    folder = tmp_path / "kit"
    for part in ("startup", "local"):
        (folder / part).mkdir(parents=True)
    described = {"admin": {"username": "anna@example.org", "host": "h", "port": 1}}
    (folder / "startup" / "fed_admin.json").write_text(json.dumps(described))
    monkeypatch.setattr(admin.certificates, "certificate_problem", lambda kit: "")
    monkeypatch.setattr(admin.certificates, "owner_problem", lambda kit, name: "")
    return folder


def test_the_session_is_closed_after_an_error(kit, monkeypatch):
    session = Mock()
    monkeypatch.setattr(admin, "open_session", lambda *_, **__: session)
    with pytest.raises(KeyError), connect(kit) as administrator:
        assert administrator.name == "anna@example.org"
        raise KeyError("anything")
    session.close.assert_called_once()


@pytest.mark.parametrize(
    ("problem", "words"), [("another authority", "kit: another authority"), ("", "the server at h:1 cannot be reached")]
)
def test_an_unreachable_servers_certificate_is_checked(kit, monkeypatch, problem, words):
    monkeypatch.setattr(admin, "open_session", Mock(side_effect=api_spec.NoConnection("x")))
    monkeypatch.setattr(admin.certificates, "handshake_problem", lambda kit, host, port: problem)
    with pytest.raises(AdminError, match=words) as error, connect(kit):
        pass
    assert "\n" not in str(error.value)


def test_watching_a_job_prints_each_line_of_its_log_once():
    log = iter(["", record("one"), record("one") + record("two\nthree"), record("one") + record("two\nthree\nend")])
    states = iter(["SUBMITTED", "RUNNING", "RUNNING", "FINISHED:COMPLETED"])
    session = SimpleNamespace(
        get_system_info=lambda: system("0f1e"),
        get_job_meta=lambda job: meta(next(states)),
        get_job_logs=lambda job, log_file_name: {"logs": {"server": next(log)}},
    )
    lines = list(Administrator(session, "anna").watch("0f1e", every=0.0))
    assert lines == ["job 0f1e is waiting", "job 0f1e is running", "one", "two", "three", "end"]


def test_the_reason_of_a_failed_job_is_its_last_line_or_flares_record_of_its_start():
    logs = {"logs": {"server": record("FAILED: too few sites")}}
    described = meta("FINISHED:FAILED_TO_RUN", job_deploy_detail=["server: OK", "hospital-a: no right"])
    session = SimpleNamespace(get_job_logs=lambda job, log_file_name: logs, get_job_meta=lambda job: described)
    assert Administrator(session, "anna").why("0f1e") == "too few sites"
    logs = {"logs": {}}
    assert Administrator(session, "anna").why("0f1e") == "hospital-a: no right"
    described = meta("FINISHED:CAN_NOT_SCHEDULE", schedule_history=["not enough sites: 0"])
    assert Administrator(session, "anna").why("0f1e") == "not enough sites: 0"
