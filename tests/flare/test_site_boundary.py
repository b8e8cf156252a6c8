"""What the server sends in a good run passes a site's boundary; all else it could ask FLARE for does not."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey

from shared_components.flare.patches.incoming_messages import stand_guard
from shared_components.flare.patches.replace import REPLACES
from shared_components.flare.site_message_filter import SiteBoundary

JOB = "4d5c3f80"
SITE, AT_JOB, SERVER, OF_JOB = "hospital-a", f"hospital-a.{JOB}", "server", f"server.{JOB}"
GOOD = [  # seen in runs of FedPer, of FedAvg with secure sums, and of a job that an administrator stopped
    (SERVER, "admin", "admin", SITE),
    (SERVER, "cellnet.channel", "bye", SITE),
    (OF_JOB, "stream of aux_communication", "__end_run__", SITE),
    (OF_JOB, "stream of aux_communication", "__end_run__", AT_JOB),
    (OF_JOB, "stream of download_service__", "download_service__download", AT_JOB),
    (OF_JOB, "stream of return_only", "server_command:get_task", AT_JOB),
    (OF_JOB, "stream of return_only", "aux_communication:__sync_runner__", AT_JOB),
    (OF_JOB, STREAM_CHANNEL, "sm__ACK", AT_JOB),
    (SERVER, STREAM_CHANNEL, "sm__ERROR", AT_JOB),
]
GOOD[2] = (*GOOD[2][:3], AT_JOB)  # handed on by the site's own process
NET = "cells route start_route stop stop_cell peers conns url_use speed echo stress change_root bulk_test bulk_item"
MORE = "msg_stats list_pools show_pool comm_config config_vars process_info heartbeat"
HOSTILE = [
    *((SERVER, "_net_manager", topic, to) for topic in f"{NET} {MORE}".split() for to in (SITE, AT_JOB)),
    *(
        (SERVER, f"{stream}client_command", topic, AT_JOB)
        for topic in ("abort", "abort_task", "configure_job_log", "show_errors", "show_stats", "check_status")
        for stream in ("", "stream of ")
    ),
    (SERVER, "admin", "admin", AT_JOB),
    (SERVER, "cellnet.channel", "bulk", SITE),
    (SERVER, "cellnet.channel", "bulk", AT_JOB),
    (SERVER, "credential_manager", "key_exchange", SITE),
    (SERVER, "aux_communication", "fed.event", SITE),
    (SERVER, "aux_communication", "fed.event", AT_JOB),
    (SERVER, "stream of aux_communication", "__do_task__", AT_JOB),
    (SERVER, "aux_communication", "ObjectStreamer.Request", SITE),
    (SERVER, "aux_communication", "ObjectStreamer.Request", AT_JOB),
    (SERVER, "download_service__", "download_service__download", SITE),
    (SERVER, "download_service__", "download_service__source_failure", AT_JOB),
    (SERVER, "server_command", "submit_update", AT_JOB),
    (SERVER, "server_command", "get_task", AT_JOB),
    (SERVER, f"stream of {STREAM_CHANNEL}", "sm__ACK", AT_JOB),
    (SERVER, STREAM_CHANNEL, "sm__CERT", AT_JOB),
    (SERVER, "multi_process_executor", "execute", AT_JOB),
    (SERVER, "a channel of tomorrow", "topic", SITE),
    (SERVER, None, None, SITE),
    (SERVER, ["admin"], "admin", SITE),
    (SERVER, "admin", "admin", "hospital-b"),
    (SERVER, "admin", "admin", "server"),
    (SERVER, "admin", "admin", "hospital-ab"),
]


def message(sender, channel, topic, to, *, kind=MessageType.REQ, origin=None, **more):
    headers = {
        MessageHeaderKey.ORIGIN: origin or sender,
        MessageHeaderKey.FROM_CELL: "server",
        MessageHeaderKey.DESTINATION: to,
        MessageHeaderKey.MSG_TYPE: kind,
    }
    if isinstance(channel, str) and channel.startswith("stream of "):
        headers |= {MessageHeaderKey.CHANNEL: STREAM_CHANNEL, MessageHeaderKey.TOPIC: "sm__DATA"}
        headers |= {StreamHeaderKey.CHANNEL: channel.removeprefix("stream of "), StreamHeaderKey.TOPIC: topic}
    else:
        headers |= {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    return Message({**headers, **more}, None)


@pytest.mark.parametrize("good", GOOD, ids=str)
def test_what_a_good_run_sends_passes(good):
    assert SiteBoundary().passes(message(*good), good[3], own_process=False)


@pytest.mark.parametrize("kind", [MessageType.REPLY, MessageType.RETURN])
def test_answers_pass_to_this_site_alone(kind):
    for to, passes in ((SITE, True), (AT_JOB, True), ("hospital-b", False), ("server", False)):
        answer = message(SERVER, "task", "heart_beat", to, kind=kind)
        assert SiteBoundary().passes(answer, SITE, own_process=False) == passes


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
@pytest.mark.parametrize("origin", [None, SITE, AT_JOB], ids=["as itself", "as the site", "as its job"])
def test_what_no_server_has_to_ask_is_refused_in_whosever_name(hostile, origin, caplog):
    taker = hostile[3] if hostile[3] in (SITE, AT_JOB) else SITE
    assert not SiteBoundary().passes(message(*hostile, origin=origin), taker, own_process=False)
    assert "a message of the server is refused: " in caplog.text and caplog.text.count("\n") == 1


@pytest.mark.parametrize("hostile", [one for one in HOSTILE if one[3] == AT_JOB], ids=str)
def test_nor_does_the_sites_own_process_hand_it_on_or_a_job_take_what_it_has_handed_on(hostile):
    assert not SiteBoundary().passes(message(*hostile), SITE, own_process=False)
    handed_on = message(*hostile, **{MessageHeaderKey.FROM_CELL: SITE})
    assert not SiteBoundary().passes(handed_on, AT_JOB, own_process=True)


def test_a_jobs_process_obeys_the_sites_own_and_takes_what_that_hands_on():
    command = message(SITE, "client_command", "check_status", AT_JOB, **{MessageHeaderKey.FROM_CELL: SITE})
    assert SiteBoundary().passes(command, AT_JOB, own_process=True)
    assert not SiteBoundary().passes(command, AT_JOB, own_process=False), "the server says that it is the site"
    end = message(OF_JOB, "aux_communication", "__end_run__", AT_JOB, **{MessageHeaderKey.FROM_CELL: SITE})
    assert SiteBoundary().passes(end, AT_JOB, own_process=True)


@pytest.mark.parametrize("key", [MessageHeaderKey.CONN_URL, MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED])
def test_nothing_makes_a_site_connect_elsewhere_or_wait(key):
    for good in GOOD:
        assert not SiteBoundary().passes(message(*good, **{key: "tcp://10.0.0.5:22"}), good[3], own_process=False)


@pytest.fixture
def cells(monkeypatch):
    """Return a function that lets a cell of this name receive a message, and says whether FLARE saw it."""
    own = CoreCell._process_received_msg
    monkeypatch.setattr(CoreCell, "_process_received_msg", getattr(own, REPLACES, own))
    stand_guard()
    seen = []
    replaced = CoreCell._process_received_msg
    inner = replaced.__closure__[[*replaced.__code__.co_freevars].index("process")]
    monkeypatch.setattr(inner, "cell_contents", lambda *_: seen.append(1))

    def receive(name, handle, incoming, *, sender="server", owner="localhost"):
        seen.clear()
        connector = SimpleNamespace(handle=handle)
        connection = SimpleNamespace(connector=connector, get_conn_properties=lambda: {"peer_cn": owner})
        root, _, job = name.partition(".")
        cell = SimpleNamespace(
            my_info=SimpleNamespace(fqcn=name, is_on_server=root == "server", is_root=not job),
            int_listener=SimpleNamespace(handle="CH listener"),
            bb_int_connector=SimpleNamespace(handle="CH parent") if job else None,
        )
        replaced(cell, Endpoint(sender), connection, incoming)
        return bool(seen)

    return receive


def test_who_sends_is_known_by_the_connection_and_not_by_a_name(cells):
    """FLARE's client believes the name that the other end gives where its driver shows it no certificate."""
    forged = message(SITE, "client_command", "abort", AT_JOB)
    assert cells(AT_JOB, "CH parent", forged)
    for sender in ("server", SITE, AT_JOB):
        for owner in ("localhost", "N/A", None):
            assert not cells(AT_JOB, "CH server", forged, sender=sender, owner=owner)
    child = message(AT_JOB, "admin", "train.notify_job_status", SITE)
    assert cells(SITE, "CH listener", child, sender=AT_JOB)
    assert not cells(SITE, "CH server", child, sender=AT_JOB)


def test_at_the_server_the_boundary_for_sites_stands_and_its_jobs_take_what_it_hands_on(cells):
    abort = message("hospital-b", "server_command", "abort", SERVER, **{MessageHeaderKey.FROM_CELL: "hospital-b"})
    assert not cells(SERVER, "CH site", abort, sender="hospital-b", owner="hospital-b")
    beat = message("hospital-b", "task", "heart_beat", SERVER, **{MessageHeaderKey.FROM_CELL: "hospital-b"})
    assert cells(SERVER, "CH site", beat, sender="hospital-b", owner="hospital-b")
    assert cells(OF_JOB, "CH parent", abort)
