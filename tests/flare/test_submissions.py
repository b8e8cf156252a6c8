"""What a site says beside its answer ends no job and forges no line; FLARE by itself ends the job for all."""

from types import SimpleNamespace

import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.private.fed.server.server_commands import ServerCommandKey, SubmitUpdateCommand
from nvflare.private.fed.server.server_runner import ServerRunner

from shared_components.flare.controller import read_reply
from shared_components.flare.patches.sanitise_submissions import LONGEST_WORD, end_nothing, tame

FATAL = ServerRunner.ABORT_RETURN_CODES
FORGED = "round\n[E:forged] all is well"


def submission(**headers):
    made = DXO(DataKind.COLLECTION, data={}).to_shareable()
    for key, value in headers.items():
        made.set_header(key, value)
    return made


@pytest.fixture
def process(monkeypatch):
    """Return a function that lets FLARE's command process a submission and says with what it went on."""
    monkeypatch.setattr(SubmitUpdateCommand, "process", SubmitUpdateCommand.process)

    def run(data):
        data.set_peer_context(FLContext())
        data.set_header(ServerCommandKey.FL_CLIENT, SimpleNamespace(name="hospital-b"))
        came = []
        context = FLContext()
        runner = SimpleNamespace(process_submission=lambda *arguments: came.append(arguments))
        context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
        SubmitUpdateCommand().process(data, context)
        return came[0]

    return run


def test_flare_has_three_codes_by_which_a_site_ends_the_job():
    """If an upgrade takes them away, `sanitise_submissions` may go."""
    assert {ReturnCode.RUN_MISMATCH, ReturnCode.TASK_UNKNOWN, ReturnCode.UNSAFE_JOB} == set(FATAL)


@pytest.mark.parametrize("code", [*FATAL, 7, ["OK"], None])
def test_no_return_code_of_a_site_ends_the_job(process, code):
    end_nothing()
    end_nothing()  # a second time changes nothing
    reply = make_reply(ReturnCode.OK)
    reply.set_header(ReservedHeaderKey.RC, code)
    _, _, _, result, _ = process(reply)
    assert result.get_return_code() not in FATAL
    if code is not None:
        assert read_reply(result, "round") == "FLARE reports EXECUTION_EXCEPTION; the site's log says why"


@pytest.mark.parametrize("code", [ReturnCode.OK, ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_ABORTED])
def test_any_other_code_stays_and_so_does_what_is_sent(process, code):
    end_nothing()
    reply = make_reply(code)
    reply["DXO"] = kept = {"x": [1, 2]}
    _, _, _, result, _ = process(reply)
    assert result is reply and result.get_return_code() == code and result["DXO"] is kept


def test_names_and_ids_are_short_lines(process):
    end_nothing()
    sent = submission(**{FLContextKey.TASK_NAME: FORGED, ReservedKey.AUDIT_EVENT_ID: FORGED + "x" * 10**5})
    sent.set_header(ReservedHeaderKey.COOKIE_JAR, {FLContextKey.TASK_ID: FORGED, "odd\n": ["a\nb"]})
    _, name, number, result, _ = process(sent)
    assert name == number == "round [E:forged] all is well"
    event = result.get_header(ReservedKey.AUDIT_EVENT_ID)
    assert event.isprintable() and len(event) == LONGEST_WORD
    assert result.get_cookie_jar() == {FLContextKey.TASK_ID: "round [E:forged] all is well", "odd": "['a\\nb']"}


def test_what_flare_gave_comes_back_as_it_was(process):
    end_nothing()
    task = "1fd0f9d4-8a3b-4a4e-9f0a-6f7bb3f3c1aa"
    sent = submission(**{FLContextKey.TASK_NAME: "round", ReservedKey.AUDIT_EVENT_ID: task})
    sent.add_cookie(FLContextKey.TASK_ID, task)
    sent.add_cookie(ReservedHeaderKey.WORKFLOW, "federation")
    _, name, number, result, _ = process(sent)
    assert (name, number) == ("round", task) and result.get_cookie(ReservedHeaderKey.WORKFLOW) == "federation"
    assert result.get_header(ReservedKey.AUDIT_EVENT_ID) == task


@pytest.mark.parametrize("jar", ["a", 7, ["a"], {1: 2}])
def test_a_cookie_jar_of_another_kind_is_an_empty_one(jar):
    sent = Shareable()
    sent.set_header(ReservedHeaderKey.COOKIE_JAR, jar)
    tame(sent)
    assert sent.get_cookie(FLContextKey.TASK_ID) is None
