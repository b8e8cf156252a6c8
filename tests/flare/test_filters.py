"""The filter inside FLARE's own client runner: it records tasks, checks results, and fails closed."""

import json
from unittest.mock import Mock

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from shared_components.core.partition import Role
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job, Message
from shared_components.federation.messages.parse import parse_request_header
from shared_components.federation.site import runner as site_module
from shared_components.federation.site.agreed_job import agreed_job, keep_agreed
from shared_components.flare import filters, wire
from shared_components.flare.deployment import kits
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.filters import DeclaredPiecesOnly
from shared_components.flare.outgoing_check import expected_payload
from tests.federation.conftest import TINY, make_job
from tests.flare.client import HEAD, Client
from tests.flare.conftest import copied
from tests.flare.test_declared import honest

BLOCKED = ReturnCode.TASK_RESULT_FILTER_ERROR


def guards(way, root):
    """Return the filters of a job's config, of the site's privacy scope, or of both.

    FLARE itself reads the privacy.json that `surgfl secure-kit` writes.
    """
    chosen = {"job": DeclaredPiecesOnly()} if way != "site" else {}
    if way != "job":
        for folder in ("local", "startup"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "local" / "privacy.json").write_text(json.dumps(kits._privacy(kits.Kit(root, "site"), {})[0]))
        policy = create_privacy_manager(Workspace(str(root), root.name), names_only=False)
        assert policy.is_policy_defined()
        chosen["scope"] = policy.get_scope("")
    return chosen


@pytest.fixture(autouse=True)
def enrolled(workspace):
    """Let site-1 find its data, and be enrolled in a run of each job here."""
    wire.register()
    for method in ("fedavg", "fedper", "pfedsis"):
        header = wire.from_wire(task(make_job(method))).header
        keep_agreed(parse_request_header("round", header), workspace.with_name("ws-state"), site="site-1")


@pytest.fixture(params=("job", "site", "both"))
def client(request, workspace):
    """Return a function that makes a client with the filter in the job, in the site's privacy scope, or in both."""
    root = workspace / "site-1"
    return lambda answer: Client(answer, root, **guards(request.param, root))


def task(job=None, **header) -> Shareable:
    job = job or make_job("fedavg")
    known = {"job": job.to_json(), "run": "a-run", "index": 0, "number": 0, "round": 1, "sites": 3, "numbers": 3}
    known |= {"items": {}, "send_initial": False}
    return wire.to_shareable(Message({**known, **header}))


def honestly(*_):
    return wire.to_shareable(honest(make_job("fedavg")))


def test_an_honest_reply_passes_unchanged(client):
    message = honest(make_job("pfedsis"))
    sent = client(lambda *_: wire.to_shareable(message)).give("round", task(make_job("pfedsis")))
    passed = wire.from_wire(copied(sent))
    assert sent.get_return_code() == ReturnCode.OK and passed.header == message.header
    assert passed.pieces.keys() == message.pieces.keys() and passed.groups.keys() == message.groups.keys()
    for name, value in message.pieces.items():
        assert torch.equal(value, passed.pieces[name])


def test_a_reply_is_judged_by_the_job_that_the_server_sent(client, caplog):
    message = honest(make_job("fedper"))
    message.pieces[HEAD] = torch.zeros(4)
    lie = {"job": make_job("fedavg").to_json(), "classes": ["background", "shaft", "wrist", "clasper"]}
    for header in (message.header, message.header | lie):
        reply = wire.to_shareable(Message(header, message.pieces))
        sent = client(lambda *_, reply=reply: reply).give("round", task(make_job("fedper")))
        assert sent.get_return_code() == BLOCKED and "DXO" not in sent
    assert f"piece {HEAD} (4,) is not declared" in caplog.text
    assert "the answer to 'round': unknown key 'job'" in caplog.text


def test_a_reply_is_judged_by_the_job_of_the_enrolment(client, caplog):
    changed = make_job("fedper").to_json() | {"method": "fedavg"}
    reply = honest(make_job("fedavg"))
    assert HEAD in reply.pieces and HEAD not in honest(make_job("fedper")).pieces
    made = client(lambda *_: wire.to_shareable(reply))
    for name in ("round", "enrol"):
        sent = made.give(name, task(job=Job.from_json(changed)))
        assert sent.get_return_code() == BLOCKED and "DXO" not in sent
        assert f"the server's {name} message has another method than the site enrolled with" in caplog.text


def test_nothing_leaves_without_an_enrolment_or_a_description_of_the_site(client, caplog, monkeypatch, tmp_path):
    made = client(honestly)
    assert made.give("round", task(run="another")).get_return_code() == BLOCKED
    assert "has no enrolled.json" in caplog.text
    monkeypatch.setenv("SURGFL_SITE_CONFIG", str(tmp_path))
    assert made.give("round", task()).get_return_code() == BLOCKED


def test_the_first_enrolment_that_leaves_is_kept_whatever_executor_answers_it(client, workspace, scenes):
    job = make_job("fedper")
    due = expected_payload(job, load_site(scenes[0], name="site-1"))
    profile = {"round": 0, "samples": 4, "card": due.task.card.to_json(), "partition": due.partition.to_json()}
    reply = wire.to_shareable(Message(profile, due.pieces(Role.GLOBAL)))
    made = client(lambda *_: reply)
    first = task(job, run="new", round=0)
    assert made.give("enrol", first).get_return_code() == ReturnCode.OK
    header = wire.from_wire(first).header
    assert agreed_job(parse_request_header("round", header), workspace.with_name("ws-state"), site="site-1") == job


def test_the_executors_changes_of_the_task_or_the_context_change_nothing(client):
    message = honest(make_job("fedper"))
    message.pieces[HEAD] = torch.zeros(4)

    def answer(name, data, fl_ctx):
        data.update(task(make_job("fedavg")))
        fl_ctx.set_prop(FLContextKey.TASK_DATA, task(make_job("fedavg")), private=True, sticky=False)
        return wire.to_shareable(message)

    assert client(answer).give("round", task(make_job("fedper"))).get_return_code() == BLOCKED


def test_only_the_checked_message_leaves_a_result_with_other_keys_headers_and_notes(client):

    def answer(*_):
        dxo = from_shareable(honestly())
        dxo.set_meta_prop("photo", "secret")
        dxo.data[wire.PIECES].set_meta_prop("photo", "secret")
        result = dxo.to_shareable()
        result["patient"] = "secret"
        result.set_header("patient", "secret")
        result.set_cookie_jar({"patient": "secret"})
        return result

    sent = client(answer).give("round", task())
    assert sent.get_return_code() == ReturnCode.OK
    assert "patient" not in sent["__headers__"] and not sent.get_cookie_jar() and "patient" not in sent
    dxo = from_shareable(sent)
    assert dxo.meta.keys() <= {wire.HEADER} and dxo.data.keys() == {wire.PIECES}
    assert not dxo.data[wire.PIECES].meta
    assert json.loads(dxo.meta[wire.HEADER]) == honest(make_job("fedavg")).header


def test_only_the_sentence_of_a_refusal_leaves(client):
    def answer(*_):
        refusal = wire.to_shareable(honest(make_job("fedper")))
        refusal.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
        refusal.set_header(wire.ERROR, "site site-1: no data" + "!" * 10_000)
        refusal["patient"] = "secret"
        return refusal

    sent = client(answer).give("round", task(make_job("fedper")))
    assert sent.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert sent.get_header(wire.ERROR).startswith("site site-1: no data!") and len(sent.get_header(wire.ERROR)) == 2000
    assert "DXO" not in sent and "patient" not in sent


def test_a_task_has_one_answer_and_is_forgotten_with_its_context(workspace):
    reply, lone = honestly(), DeclaredPiecesOnly()
    made = Client(lambda *_: reply, workspace / "site-1", job=lone)
    with made.manager.new_context() as fl_ctx:
        assert made.again("round", task(), fl_ctx).get_return_code() == ReturnCode.OK
        with pytest.raises(ValueError, match="has not seen the task"):
            lone.process(reply, fl_ctx)
    assert made.give("round", task()).get_return_code() == ReturnCode.OK
    with made.manager.new_context() as fl_ctx, pytest.raises(ValueError, match="has not seen the task"):
        lone.process(honestly(), fl_ctx)


def test_an_unreadable_task_in_a_reused_context_has_no_permission_of_the_earlier_task(client):
    made = client(honestly)
    with made.manager.new_context() as fl_ctx:
        assert made.again("round", task(), fl_ctx).get_return_code() == ReturnCode.OK
        foreign = DXO(DataKind.WEIGHTS, data={"w": torch.ones(1)}).to_shareable()
        sent = made.again("round", foreign, fl_ctx)
    assert sent.get_return_code() in (BLOCKED, ReturnCode.TASK_DATA_FILTER_ERROR) and "DXO" not in sent


def test_foreign_results_and_jobs_with_unknown_names_are_blocked(client):
    for reply in (make_reply(ReturnCode.OK), Shareable({"DXO": "no object"})):
        assert client(lambda *_, reply=reply: reply).give("round", task()).get_return_code() == BLOCKED
    made = client(honestly)
    for change in ({"method": "nonsense"}, {"bundle": "nonsense"}, {"photo": 1}):
        foreign = Message({"job": make_job("fedavg").to_json() | change, "index": 0, "round": 1})
        assert made.give("round", wire.to_shareable(foreign)).get_return_code() == BLOCKED


@pytest.mark.parametrize("error", [RuntimeError("a bug"), RecursionError(), MemoryError(), OSError(28, "full")])
@pytest.mark.parametrize("where", ["check_reply", "agreed_job", "find_site", "keep_agreed"])
def test_nothing_leaves_after_any_error_in_the_sites_own_filter(workspace, monkeypatch, error, where):
    root, job = workspace / "site-1", make_job("pfedsis")
    client = Client(lambda *_: wire.to_shareable(honest(job)), root, **guards("site", root))
    assert client.give("round", task(job)).get_return_code() == ReturnCode.OK
    monkeypatch.setattr(filters, where, Mock(side_effect=error))
    sent = client.give("round", task(job))
    assert sent.get_return_code() == BLOCKED and "DXO" not in sent and set(sent) == set(make_reply(BLOCKED))


def test_a_filter_that_is_installed_only_on_the_way_out_blocks_everything(workspace):
    root = workspace / "site-1"
    scope = guards("site", root)["scope"]
    scope.task_data_filters = {}
    assert Client(honestly, root, scope=scope).give("round", task()).get_return_code() == BLOCKED


def through_filters(workspace, site, task, data):
    """Let the real executor of a site answer, behind both filters."""

    def execute(name, data, fl_ctx):
        return SiteExecutor().execute(name, data, fl_ctx, Signal())

    return copied(Client(execute, workspace / site, **guards("both", workspace / site)).give(task, data))


@pytest.mark.parametrize("way", ["executor", "filter"])
def test_a_server_does_not_get_local_weights_out_of_a_run(by_hand, workspace, monkeypatch, caplog, way):
    """The executor refuses after an honest round and a restart; without the executor's check, the filter refuses."""

    def answer(controller, site, sent):
        data, message = copied(sent.data), wire.from_wire(copied(sent.data))
        if sent.name == "round" and message.header["round"] == 1:
            if way == "filter":
                monkeypatch.setattr(site_module, "agreed_job", lambda request, *_, **__: request.job)
            still = {**TINY, "iterations": 1, "learning_rate": 0.0, "weight_decay": 0.0}
            message.header["job"].update(method="fedavg", training=still)
            data = copied(wire.to_shareable(message))
        replies.append(through_filters(workspace, site, sent.name, data))
        return replies[-1]

    replies: list[Shareable] = []
    controller = by_hand("fedper", answer=answer, rounds=2).start(sites=["site-1"])
    assert [reply.get_return_code() for reply in replies[:2]] == [ReturnCode.OK] * 2
    assert replies[2].get_return_code() != ReturnCode.OK and "DXO" not in replies[2]
    assert "the server's round message has another method than the site enrolled with" in caplog.text
    assert len(controller.panics) == 1 and controller.server.state.round == 1
