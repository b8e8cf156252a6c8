"""Messages of honest parties pass the filters of the server and of a site; commands and forged names do not."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, MessageType
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, StreamHeaderKey
from nvflare.fuel.sec import authn
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name

from shared_components.flare.patches import connections
from shared_components.flare.patches.connections import check_incoming_messages
from shared_components.flare.patches.message_filters import MOST_SENTENCES, Boundary, RelayBoundary, SiteBoundary
from shared_components.flare.patches.region_routes import keep_within_region
from tests.flare.conftest import put_back

JOB = "4d5c3f80"
SITE, AT_JOB, SERVER, OF_JOB = "hospital-b", f"hospital-b.{JOB}", "server", f"server.{JOB}"
OTHER = f"hospital-a.{JOB}"
CHIEF = "_admin_5d1f9e0a-3c52-4b8e-9a51-0c6f0e7f2b11"
GOOD = [  # seen in runs of PFedSIS, of FedAvg with secure sums, and of a job that an administrator stopped
    *((SITE, "task", topic, SERVER) for topic in ("challenge", "register", "heart_beat", "report_job_failure", "quit")),
    (SITE, "cellnet.channel", "bye", SERVER), (AT_JOB, "cellnet.channel", "bye", SERVER),
    (CHIEF, "task", "register", SERVER), (CHIEF, "stream of hci_channel", "command", SERVER),
    (CHIEF, "stream of aux_communication", "ObjectStreamer.Request", SERVER),
    (CHIEF, "stream of aux_communication", "ObjectStreamer.Abort", SERVER),
    (CHIEF, "stream of download_service__", "download_service__download", SERVER),
    (AT_JOB, "stream of aux_communication", "__sync_runner__", OF_JOB),
    (AT_JOB, "stream of aux_communication", "__job_heartbeat__", OF_JOB),
    (AT_JOB, "stream of aux_communication", "__task_check__", OF_JOB),
    (AT_JOB, "stream of server_command", "get_task", OF_JOB), (AT_JOB, STREAM_CHANNEL, "sm__ACK", OF_JOB),
    (AT_JOB, "stream of server_command", "submit_update", OF_JOB), (SITE, STREAM_CHANNEL, "sm__ERROR", OF_JOB),
    (AT_JOB, "stream of download_service__", "download_service__download", OF_JOB),
    (AT_JOB, "stream of return_only", "download_service__:download_service__download", OF_JOB),
    (OF_JOB, "server_parent_listener", "update_run_status", SERVER),
    (OF_JOB, "stream of aux_communication", "__end_run__", AT_JOB),
]  # fmt: skip
HOSTILE = [
    (AT_JOB, STREAM_CHANNEL, "sm__DATA", OF_JOB), (AT_JOB, STREAM_CHANNEL, "sm__CERT", OF_JOB),
    (AT_JOB, "client_command", "abort", OTHER), (AT_JOB, "stream of client_command", "abort", OTHER),
    (AT_JOB, "stream of aux_communication", "__end_run__", OTHER), (AT_JOB, "cellnet.channel", "bye", "hospital-a"),
    (AT_JOB, STREAM_CHANNEL, "sm__ERROR", "hospital-a"), (SITE, "admin", "admin", "hospital-a"),
    (AT_JOB, "server_command", "abort", OF_JOB), (AT_JOB, "stream of server_command", "abort", OF_JOB),
    (AT_JOB, "stream of server_command", "app_command", OF_JOB),
    (AT_JOB, "stream of server_command", "handle_dead_job", OF_JOB),
    (SITE, "server_parent_listener", "update_run_status", SERVER), (SITE, "cellnet.channel", "stop", SERVER),
    (AT_JOB, "stream of aux_communication", "fed.event", OF_JOB), (AT_JOB, "aux_communication", "fed.event", OF_JOB),
    (SITE, "stream of aux_communication", "ObjectStreamer.Request", SERVER),
    (SITE, "task", "a topic of tomorrow", SERVER), (SITE, "a channel of tomorrow", "topic", SERVER),
    (SITE, None, None, SERVER), (SITE, "task", ["heart_beat"], SERVER),
    (CHIEF, "stream of server_command", "abort", OF_JOB), (CHIEF, "stream of aux_communication", "fed.event", SERVER),
    ("", "client_command", "abort", OTHER),
]  # fmt: skip
TO_SITES = [  # seen in runs of FedPer, of FedAvg with secure sums, and of a job that an administrator stopped
    (SERVER, "admin", "admin", SITE), (SERVER, "cellnet.channel", "bye", SITE),
    (OF_JOB, "stream of aux_communication", "__end_run__", AT_JOB),
    (OF_JOB, "stream of download_service__", "download_service__download", AT_JOB),
    (OF_JOB, "stream of return_only", "server_command:get_task", AT_JOB),
    (OF_JOB, "stream of return_only", "aux_communication:__sync_runner__", AT_JOB),
    (OF_JOB, STREAM_CHANNEL, "sm__ACK", AT_JOB), (SERVER, STREAM_CHANNEL, "sm__ERROR", AT_JOB),
]  # fmt: skip
NET = "cells route start_route stop stop_cell peers conns url_use speed echo stress change_root bulk_test bulk_item"
MORE = "msg_stats list_pools show_pool comm_config config_vars process_info heartbeat"
TO_SITES_HOSTILE = [
    *((SERVER, "_net_manager", topic, to) for topic in f"{NET} {MORE}".split() for to in (SITE, AT_JOB)),
    *(
        (SERVER, f"{stream}client_command", topic, AT_JOB)
        for topic in ("abort", "abort_task", "configure_job_log", "show_errors", "show_stats", "check_status")
        for stream in ("", "stream of ")
    ),
    *((SERVER, channel, topic, to) for to in (SITE, AT_JOB) for channel, topic in (
        ("cellnet.channel", "bulk"), ("aux_communication", "fed.event"), ("aux_communication", "ObjectStreamer.Request")
    )),
    (SERVER, "admin", "admin", AT_JOB), (SERVER, "credential_manager", "key_exchange", SITE),
    (SERVER, "stream of aux_communication", "__do_task__", AT_JOB),
    (SERVER, "download_service__", "download_service__download", SITE),
    (SERVER, "download_service__", "download_service__source_failure", AT_JOB),
    (SERVER, "server_command", "submit_update", AT_JOB), (SERVER, "server_command", "get_task", AT_JOB),
    (SERVER, f"stream of {STREAM_CHANNEL}", "sm__ACK", AT_JOB), (SERVER, STREAM_CHANNEL, "sm__CERT", AT_JOB),
    (SERVER, "multi_process_executor", "execute", AT_JOB), (SERVER, "a channel of tomorrow", "topic", SITE),
    (SERVER, None, None, SITE), (SERVER, ["admin"], "admin", SITE),
    *((SERVER, "admin", "admin", to) for to in ("hospital-a", "server", "hospital-ba")),
]  # fmt: skip


def message(sender, channel, topic, to, *, kind=MessageType.REQ, origin=None, owner="", **more):
    headers = {MessageHeaderKey.ORIGIN: origin or sender, MessageHeaderKey.DESTINATION: to}
    headers[MessageHeaderKey.MSG_TYPE] = kind
    if isinstance(channel, str) and channel.startswith("stream of "):
        headers |= {MessageHeaderKey.CHANNEL: STREAM_CHANNEL, MessageHeaderKey.TOPIC: "sm__DATA"}
        headers |= {StreamHeaderKey.CHANNEL: channel.removeprefix("stream of "), StreamHeaderKey.TOPIC: topic}
    else:
        headers |= {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    made = Message({**headers, **more}, None)
    if sender:
        made.set_prop(MessagePropKey.ENDPOINT, Endpoint(sender))
    own = "N/A" if sender == OF_JOB else sender.split(".")[0]
    made.set_prop(MessagePropKey.COMMON_NAME, owner or own)
    return made


# ---- at the server


@pytest.mark.parametrize("good", GOOD, ids=str)
def test_messages_of_a_normal_run_pass(good):
    assert Boundary().passes(message(*good)) and is_valid_admin_client_name(CHIEF)


@pytest.mark.parametrize("kind", [MessageType.REPLY, MessageType.RETURN])
def test_answers_to_the_server_pass_and_to_a_site_do_not(kind):
    assert Boundary().passes(message(SITE, "admin", "admin", SERVER, kind=kind))
    assert not Boundary().passes(message(SITE, "admin", "admin", "hospital-a", kind=kind))


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
@pytest.mark.parametrize("origin", [None, "server"], ids=["as itself", "in the server's name"])
def test_commands_and_messages_to_another_site_are_refused_in_any_name(hostile, origin, caplog):
    assert not Boundary().passes(message(*hostile, origin=origin))
    words = ("is refused: it is for", "is for the server's own processes", "is refused: it is in the name of")
    assert any(one in caplog.text for one in words)


NAMES = [MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL, StreamHeaderKey.FAILED_DESTINATION]


@pytest.mark.parametrize("key", NAMES)
@pytest.mark.parametrize("name", ["hospital-a", f"hospital-a.{JOB}", "server", OF_JOB, "", 7, ["hospital-b"]])
@pytest.mark.parametrize("kind", [MessageType.REQ, MessageType.REPLY, MessageType.RETURN])
def test_messages_in_anothers_name_are_refused(key, name, kind, caplog):
    for good in (one for one in GOOD if one[0] in (SITE, AT_JOB)):
        forged = message(*good, kind=kind)
        assert Boundary().passes(forged)
        forged.set_header(key, name)
        assert not Boundary().passes(forged), good
    assert "a message of hospital-b is refused: it is in the name of" in caplog.text


@pytest.mark.parametrize("key", NAMES)
def test_a_sites_job_process_may_name_its_site(key):
    assert Boundary().passes(message(AT_JOB, "stream of server_command", "get_task", OF_JOB, **{key: SITE}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (MessageHeaderKey.CONN_URL, "tcp://10.0.0.5:22", "it names an address to connect to"),
        (MessageHeaderKey.SECURE, True, "it asks for encryption beside TLS"),
        (MessageHeaderKey.ENCRYPTED, -1, "it is encrypted beside TLS"),
    ],
)
@pytest.mark.parametrize("kind", [MessageType.REQ, MessageType.REPLY, MessageType.RETURN])
def test_headers_that_would_make_the_server_connect_or_wait_are_refused(key, value, words, kind, caplog):
    for good in (one for one in GOOD if one[0] != OF_JOB):
        forged = message(*good, kind=kind)
        forged.set_header(key, value)
        assert not Boundary().passes(forged), good
        forged.set_header(key, False)  # as FLARE writes it in every answer
        assert Boundary().passes(forged), good
    assert words in caplog.text


def test_a_site_may_report_an_error_of_any_stream_of_the_server():
    """For example of the end of a run, a request that no site makes."""
    report = message(AT_JOB, STREAM_CHANNEL, "sm__ERROR", OF_JOB)
    report.set_header(StreamHeaderKey.CHANNEL, "aux_communication")
    report.set_header(StreamHeaderKey.TOPIC, "__end_run__")
    assert Boundary().passes(report)
    report.set_header(MessageHeaderKey.TOPIC, "sm__DATA")
    assert not Boundary().passes(report)


@pytest.mark.parametrize("name", ["server.hospital-b", OF_JOB, "server"])
def test_a_site_with_a_name_of_the_server_is_identified_by_its_certificate(name, caplog):
    """FLARE accepts the first of these names from a site with the certificate of hospital-b."""
    CellIdentityResolver("server").require_match("server.hospital-b", "hospital-b", "peer")
    assert not Boundary().passes(message(name, "client_command", "abort", OTHER, owner="hospital-b"))
    assert "a message of hospital-b is refused" in caplog.text


def test_a_flood_of_refused_messages_does_not_flood_the_log(caplog):
    boundary = Boundary()
    for number in range(3 * MOST_SENTENCES):
        for _ in range(2):
            assert not boundary.passes(message(SITE, f"channel\n{number}", "topic", SERVER))
    assert len(caplog.records) == MOST_SENTENCES and all(r.getMessage().isprintable() for r in caplog.records)


# ---- at a site


def from_server(*where, **more):
    return message(*where, **{MessageHeaderKey.FROM_CELL: "server", **more})


@pytest.mark.parametrize("good", TO_SITES, ids=str)
def test_a_servers_messages_of_a_normal_run_pass_and_are_forwarded(good):
    for receiver in (good[3], SITE):
        assert SiteBoundary().passes(from_server(*good), receiver, own_process=False)


@pytest.mark.parametrize("kind", [MessageType.REPLY, MessageType.RETURN])
def test_answers_pass_only_to_this_site(kind):
    for to, passes in ((SITE, True), (AT_JOB, True), ("hospital-a", False), ("server", False)):
        answer = from_server(SERVER, "task", "heart_beat", to, kind=kind)
        assert SiteBoundary().passes(answer, SITE, own_process=False) == passes


@pytest.mark.parametrize("hostile", TO_SITES_HOSTILE, ids=str)
@pytest.mark.parametrize("origin", [None, SITE, AT_JOB], ids=["as itself", "as the site", "as its job"])
def test_unlisted_requests_of_a_server_are_refused_in_any_name(hostile, origin, caplog):
    receiver = hostile[3] if hostile[3] in (SITE, AT_JOB) else SITE
    assert not SiteBoundary().passes(from_server(*hostile, origin=origin), receiver, own_process=False)
    assert "a message of the server is refused: " in caplog.text and caplog.text.count("\n") == 1


@pytest.mark.parametrize("hostile", [one for one in TO_SITES_HOSTILE if one[3] == AT_JOB], ids=str)
def test_unlisted_requests_are_not_forwarded_and_a_job_refuses_forwarded_ones(hostile):
    assert not SiteBoundary().passes(from_server(*hostile), SITE, own_process=False)
    forwarded = from_server(*hostile, **{MessageHeaderKey.FROM_CELL: SITE})
    assert not SiteBoundary().passes(forwarded, AT_JOB, own_process=True)


def test_a_jobs_process_accepts_its_sites_commands_and_forwarded_messages():
    command = message(SITE, "client_command", "check_status", AT_JOB, **{MessageHeaderKey.FROM_CELL: SITE})
    assert SiteBoundary().passes(command, AT_JOB, own_process=True)
    assert not SiteBoundary().passes(command, AT_JOB, own_process=False), "the server pretends to be the site"
    end = message(OF_JOB, "aux_communication", "__end_run__", AT_JOB, **{MessageHeaderKey.FROM_CELL: SITE})
    assert SiteBoundary().passes(end, AT_JOB, own_process=True)


@pytest.mark.parametrize("key", [MessageHeaderKey.CONN_URL, MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED])
def test_headers_that_would_make_a_site_connect_or_wait_are_refused(key):
    for good in TO_SITES:
        assert not SiteBoundary().passes(from_server(*good, **{key: "tcp://10.0.0.5:22"}), good[3], own_process=False)


@pytest.fixture
def cells(monkeypatch):
    """Return a function that lets a cell receive a message, and returns whether FLARE processes it."""
    put_back(monkeypatch, (CoreCell, "_process_received_msg"))
    monkeypatch.setattr(connections, "_CHECKS", {})
    check_incoming_messages()
    seen = []
    replaced = CoreCell._process_received_msg
    inner = replaced.__closure__[[*replaced.__code__.co_freevars].index("own")]
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


def test_a_sender_is_identified_by_the_connection_and_not_by_a_name(cells):
    """FLARE's client believes the name in the message if its driver shows no certificate."""
    forged = message(SITE, "client_command", "abort", AT_JOB)
    assert cells(AT_JOB, "CH parent", forged)
    for sender in ("server", SITE, AT_JOB):
        for owner in ("localhost", "N/A", None):
            assert not cells(AT_JOB, "CH server", forged, sender=sender, owner=owner)
    child = message(AT_JOB, "admin", "train.notify_job_status", SITE)
    assert cells(SITE, "CH listener", child, sender=AT_JOB)
    assert not cells(SITE, "CH server", child, sender=AT_JOB)


def test_the_server_filters_messages_of_sites_and_its_jobs_accept_forwarded_ones(cells):
    abort = message("hospital-a", "server_command", "abort", SERVER, **{MessageHeaderKey.FROM_CELL: "hospital-a"})
    assert not cells(SERVER, "CH site", abort, sender="hospital-a", owner="hospital-a")
    beat = message("hospital-a", "task", "heart_beat", SERVER, **{MessageHeaderKey.FROM_CELL: "hospital-a"})
    assert cells(SERVER, "CH site", beat, sender="hospital-a", owner="hospital-a")
    assert cells(OF_JOB, "CH parent", abort)


# ---- behind a relay

RELAY, NODE, NODE_JOB = "north-relay", "north-relay.north", f"north-relay.north.{JOB}"
HERE, HERE_JOB = "north-relay.hospital-b", f"north-relay.hospital-b.{JOB}"
SOUTH = f"south-relay.south.{JOB}"
NEXT, NEXT_JOB = "north-relay.hospital-a", f"north-relay.hospital-a.{JOB}"
BY_RELAY = {MessageHeaderKey.FROM_CELL: RELAY}
UP = [  # seen in runs of FedAvg with two regions
    *((HERE_JOB, f"stream of {channel}", topic, NODE_JOB) for channel, topic in (
        ("server_command", "get_task"), ("server_command", "submit_update"), ("aux_communication", "__sync_runner__"),
        ("aux_communication", "__job_heartbeat__"), ("aux_communication", "__task_check__"),
        ("download_service__", "download_service__download"), ("return_only", "download_service__:download"),
    )),
    (HERE_JOB, STREAM_CHANNEL, "sm__ACK", NODE_JOB),
]  # fmt: skip
DOWN = [
    (NODE_JOB, "stream of return_only", "server_command:get_task", HERE_JOB),
    (NODE_JOB, "stream of download_service__", "download_service__download", HERE_JOB),
    (NODE_JOB, STREAM_CHANNEL, "sm__ACK", HERE_JOB),
]


@pytest.mark.parametrize("good", [*UP, *DOWN], ids=str)
def test_messages_between_a_site_and_its_node_pass_the_relay_and_both_ends(good):
    party = HERE if good[0] == HERE_JOB else NODE
    sent = message(*good, **{MessageHeaderKey.FROM_CELL: party})
    sent.set_prop(MessagePropKey.ENDPOINT, Endpoint(party))
    assert RelayBoundary().passes(sent, RELAY)
    for receiver, forwarder in ((good[3].rpartition(".")[0], RELAY), (good[3], good[3].rpartition(".")[0])):
        forwarded = message(*good, **{MessageHeaderKey.FROM_CELL: forwarder})
        assert SiteBoundary().passes(forwarded, receiver, own_process=receiver == good[3])


@pytest.mark.parametrize("good", TO_SITES, ids=str)
def test_a_servers_messages_pass_a_relay_and_reach_a_site_or_a_node(good):
    for party in (HERE, NODE):
        to = good[3].replace(SITE, party)
        sent = from_server(*good[:3], to)
        sent.set_prop(MessagePropKey.ENDPOINT, Endpoint(SERVER))
        assert RelayBoundary().passes(sent, RELAY)
        assert SiteBoundary().passes(message(*good[:3], to, **BY_RELAY), party, own_process=False)


@pytest.mark.parametrize("good", [one for one in GOOD if one[0] in (SITE, AT_JOB)], ids=str)
def test_a_sites_messages_to_the_server_pass_its_relay_and_the_server(good):
    sent = message(good[0].replace(SITE, HERE), *good[1:], **{MessageHeaderKey.FROM_CELL: HERE})
    sent.set_prop(MessagePropKey.ENDPOINT, Endpoint(HERE))
    assert RelayBoundary().passes(sent, RELAY)
    assert Boundary().passes(message(good[0].replace(SITE, HERE), *good[1:], owner=RELAY, **BY_RELAY))


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        ((NEXT_JOB, "server_command", "submit_update", NODE_JOB), "it is in the name of north-relay.hospital-a"),
        ((NODE_JOB, "return_only", "x", NEXT_JOB), "it is in the name of north-relay.north"),
        ((SERVER, "admin", "admin", NEXT), "it is in the name of server"),
        ((HERE_JOB, "server_command", "get_task", NEXT_JOB), "sites send messages only to their region's node"),
        ((HERE_JOB, "aux_communication", "__end_run__", NODE_JOB), "nobody in a region needs to ask"),
        ((HERE_JOB, "client_command", "abort", NODE_JOB), "nobody in a region needs to ask"),
        ((HERE_JOB, "aux_communication", "fed.event", NODE_JOB), "nobody in a region needs to ask"),
        ((HERE, "_net_manager", "stop", RELAY), "nobody needs to ask a relay for _net_manager stop"),
        ((HERE_JOB, "stream of admin", "admin", RELAY), "nobody needs to ask a relay for admin admin"),
        ((HERE, "admin", "admin", NODE), "not between two processes of a job in a region"),
        ((HERE_JOB, "server_command", "submit_update", f"{NODE}.another"), "not between two processes of a job"),
        ((HERE_JOB, "server_command", "submit_update", SOUTH), "not between two processes of a job"),
    ],
    ids=str,
)
def test_a_relay_refuses_forged_names_and_other_messages_of_a_site(hostile, words, caplog):
    sent = message(*hostile)
    sent.set_prop(MessagePropKey.ENDPOINT, Endpoint(HERE))
    assert not RelayBoundary().passes(sent, RELAY)
    assert "a message of north-relay.hospital-b is refused: " in caplog.text and words in caplog.text


@pytest.mark.parametrize("hostile", [one for one in TO_SITES_HOSTILE if one[3] in (SITE, AT_JOB)], ids=str)
@pytest.mark.parametrize("origin", [None, RELAY, NODE_JOB, NEXT_JOB], ids=["server", "relay", "node", "another site"])
def test_a_site_behind_a_relay_refuses_the_same_requests_in_any_name(hostile, origin):
    receiver = hostile[3].replace(SITE, HERE)
    forged = message(*hostile[:3], receiver, origin=origin, **BY_RELAY)
    if (origin, receiver, hostile[1]) == (NODE_JOB, HERE_JOB, "download_service__"):
        assert hostile[2] != "download_service__download"
    assert not SiteBoundary().passes(forged, receiver, own_process=False), (hostile, origin)


def test_a_party_may_say_goodbye_to_its_relay_and_a_relay_to_its_parties():
    goodbye = message(HERE, "cellnet.channel", "bye", RELAY)
    goodbye.set_prop(MessagePropKey.ENDPOINT, Endpoint(HERE))
    assert RelayBoundary().passes(goodbye, RELAY)
    assert SiteBoundary().passes(message(RELAY, "cellnet.channel", "bye", HERE, **BY_RELAY), HERE, own_process=False)


def test_a_relays_connection_to_a_site_is_not_taken_for_a_process_of_the_site(cells):
    """FLARE uses one kind of connector for both."""
    command = message(HERE, "client_command", "abort", HERE_JOB, **{MessageHeaderKey.FROM_CELL: RELAY})
    assert not cells(HERE, "CH parent", command, sender=RELAY)
    assert cells(HERE_JOB, "CH parent", message(HERE, "client_command", "check_status", HERE_JOB), sender=HERE)


def test_messages_of_a_region_do_not_cross_the_server_and_others_do(monkeypatch):
    put_back(monkeypatch, (authn, "add_authentication_headers"))
    adds = {
        MessageType.REQ: "add_authentication_headers",
        MessageType.REPLY: "add_server_path_reply_authentication_headers",
    }

    def transit(origin, to, client, kind):
        made = message(origin, "server_command", "get_task", to, kind=kind)
        getattr(authn, adds[kind])(made, client, "token", "signature")
        assert "token" in made.headers.values(), "the relay would refuse it"
        return bool(made.get_header(MessageHeaderKey.SERVER_TRANSIT_REQUIRED))

    for kind in adds:
        assert transit(HERE_JOB, NODE_JOB, "hospital-b", kind), "FLARE sends it through the server"
    keep_within_region()
    for kind in adds:
        assert not transit(HERE_JOB, NODE_JOB, "hospital-b", kind)
        assert not transit(NODE_JOB, HERE_JOB, "north", kind)
        for other in (NEXT_JOB, SOUTH, OTHER):
            assert transit(HERE_JOB, other, "hospital-b", kind)
