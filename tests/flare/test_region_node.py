"""A region's node without FLARE's network, and a controller that asks nodes instead of sites."""

import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandKey, ServerCommandNames
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message as CellMessage

from shared_components.federation.messages import FederationError, Message
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.regions import answer_order
from shared_components.flare import region_node, wire
from shared_components.flare.controller import check_regions
from shared_components.flare.exchange import read_reply
from shared_components.flare.executor import SiteExecutor
from shared_components.flare.patches.cells import LOST_SITES
from shared_components.flare.region_node import RegionNode
from tests.federation.conftest import make_job, same
from tests.flare.conftest import Place, copied

REGIONS = {"north": ["site-1", "site-2"], "south": ["site-3"]}
JOB, OWN = "0f1e", "task-7"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return a node whose process has a cell without a network; ``node.requests`` has its answers by topic."""
    requests = {}
    cell = SimpleNamespace(
        register_request_cb=lambda channel, topic, cb: requests.update({topic: cb}),
        update_fobs_context=lambda props: None,
    )
    place = Place(tmp_path, "north", simulator=False)
    handle = lambda topic, message_handle_func: requests.update({topic: message_handle_func})  # noqa: E731
    monkeypatch.setattr(place, "register_aux_message_handler", handle, raising=False)
    monkeypatch.setattr(place, "get_cell", lambda: cell, raising=False)
    monkeypatch.setattr(region_node, "gen_new_peer_ctx", lambda fl_ctx: fl_ctx)
    made = RegionNode(place)
    made.requests = requests
    return made


def request(site, payload):
    return CellMessage({MessageHeaderKey.ORIGIN: f"north-relay.{site}.{JOB}"}, payload)


def pull(node, site, last=""):
    """Ask for a task like FLARE's client; return its name, its id and its message."""
    asked = Shareable()
    asked.set_header(ServerCommandKey.LAST_TASK_ID, last)
    given = node.requests[ServerCommandNames.GET_TASK](request(site, asked)).payload
    name, own = given.get_header(ServerCommandKey.TASK_NAME), given.get_header(FLContextKey.TASK_ID)
    return name, own, wire.from_wire(given) if own else None


def push(node, site, result, own=OWN):
    result.set_header(ReservedKey.TASK_ID, own)
    node.requests[ServerCommandNames.SUBMIT_UPDATE](request(site, result))


@pytest.fixture
def asking(node):
    """Return a function that lets the node ask two sites in a thread, and the dictionary of its answers."""
    threads, found = [], {}

    def begin(*, needed=2, judge=lambda site, reply: True, **settings):
        job = make_job("fedavg", **{"grace_seconds": 0.1, "longest_wait_seconds": 20.0, **settings})
        ask = Ask("round", {site: Message({"to": site}) for site in REGIONS["north"]}, needed)
        stop = node._abort = Signal()
        node._id = OWN

        def wait():
            found["answers"] = node._ask_sites(ask, SimpleNamespace(job=job), judge)

        threads.append(threading.Thread(target=wait))
        threads[0].start()
        while node._open is None:
            assert threads[0].is_alive()
        return stop

    def end():
        threads[0].join(30)
        return found["answers"]

    return SimpleNamespace(begin=begin, end=end)


def reply(**header):
    return wire.to_shareable(Message({"round": 0, **header}))


def test_each_site_gets_its_own_message_until_it_has_it_and_a_lost_one_is_given_again(node, asking):
    assert pull(node, "site-1")[0] == "__try_again__"
    asking.begin()
    for _ in range(2):  # the first answer may be lost with the relay
        assert pull(node, "site-1") == ("round", OWN, Message({"to": "site-1"}, {}, {}))
    assert pull(node, "site-2")[2].header == {"to": "site-2"}
    assert pull(node, "site-1", last=OWN)[0] == pull(node, "site-3")[0] == "__try_again__"
    push(node, "site-1", reply(samples=3))
    assert pull(node, "site-1")[0] == "__try_again__"
    push(node, "site-2", reply(samples=4))
    answers = asking.end()
    assert {site: one.header["samples"] for site, one in answers.replies.items()} == {"site-1": 3, "site-2": 4}
    assert answers.failures == {} and pull(node, "site-2")[0] == "__try_again__"


def test_an_answer_counts_once_for_the_task_and_for_the_site_that_sent_it(node, asking, caplog):
    asking.begin()
    push(node, "site-3", reply(samples=9))
    push(node, "site-1", reply(samples=9), own="an earlier task")
    push(node, "site-1", reply(samples=3))
    push(node, "site-1", reply(samples=9))
    push(node, "site-2", make_reply(ReturnCode.EXECUTION_EXCEPTION))
    answers = asking.end()
    assert {site: one.header["samples"] for site, one in answers.replies.items()} == {"site-1": 3}
    assert answers.failures["site-2"].startswith("FLARE reports EXECUTION_EXCEPTION")
    assert caplog.text.count("a second or late answer of") == 3


def test_a_late_site_is_left_out_after_the_grace_time_if_enough_valid_replies_are_there(node, asking):
    asking.begin(needed=1)
    push(node, "site-2", reply(samples=3))
    assert "grace_seconds" in asking.end().failures["site-1"]


def test_a_rejected_reply_is_not_sufficient_and_the_longest_wait_ends_the_task(node, asking):
    asking.begin(needed=1, judge=lambda site, reply: False, longest_wait_seconds=0.5)
    push(node, "site-2", reply(samples=3))
    assert "longest_wait_seconds" in asking.end().failures["site-1"]


def test_a_node_does_not_wait_for_a_site_that_the_server_has_lost(node, asking):
    asking.begin()
    push(node, "site-2", reply(samples=3))
    node.requests[LOST_SITES](LOST_SITES, Shareable({LOST_SITES: {"site-1": "it was\nrestarted"}}), None)
    answers = asking.end()
    assert answers.failures == {"site-1": "it was restarted"} and list(answers.replies) == ["site-2"]


def test_the_server_tells_a_node_once_which_of_its_sites_are_lost_and_the_node_decides(by_hand, monkeypatch):
    """The node may have the update of a site that is lost afterwards, and then its mean contains the site."""
    monkeypatch.setattr(Place, "get_clients", connected)
    told, late = [], []

    def send_aux_request(self, targets, topic, request, **_):
        told.append((targets, topic, request[LOST_SITES]))
        threading.Timer(0.2, late.pop()).start()

    def answer(controller, region, task):
        given = as_node(controller, region, task)
        if (region, task.name) != ("north", "round"):
            return given
        late.append(lambda: controller.receive(region, task, given))
        controller._lost["site-2"] = "its process of the job died"
        return None

    monkeypatch.setattr(Place, "send_aux_request", send_aux_request, raising=False)
    controller = by_hand(answer=answer, regions=REGIONS, min_sites=2).start()
    assert told[0] == (["north"], LOST_SITES, {"site-2": "its process of the job died"}) and len(told) == 1
    (record,) = (one for one in controller.server.records if one["kind"] == "aggregation")
    assert record["rejected"] == []


def test_an_aborted_job_ends_a_nodes_task(node, asking):
    asking.begin().trigger(True)
    assert asking.end() == Answers({}, dict.fromkeys(REGIONS["north"], "the job has ended"))


def connected(self):
    """Return the clients of a server with two regions, as FLARE's engine does."""
    clients = []
    for region, sites in REGIONS.items():
        for name, fqsn, leaf in [(region, region, False), *((site, f"{region}.{site}", True) for site in sites)]:
            client = Client(name, "")
            client.set_fqsn(fqsn)
            client.set_is_leaf(leaf)
            clients.append(client)
    return clients


def as_node(controller, region, task):
    """Answer a region's task by the executors of its sites."""

    def exchange(ask, request, judge):
        data = {site: SimpleNamespace(name=ask.task, data=wire.to_shareable(m)) for site, m in ask.messages.items()}
        return Answers({site: read_reply(controller.ask(site, one), ask.task) for site, one in data.items()})

    return copied(wire.to_shareable(answer_order(task.name, wire.from_wire(copied(task.data)), exchange)))


def test_the_controller_asks_nodes_and_gets_the_bits_and_records_of_a_flat_run(by_hand, monkeypatch, messages):
    flat = by_hand(regions=REGIONS, rounds=2).start()
    monkeypatch.setattr(Place, "get_clients", connected)
    relayed = by_hand(answer=as_node, regions=REGIONS, rounds=2).start()
    assert relayed.panics == [] and relayed.given[:2] == [("enrol", "north"), ("enrol", "south")]
    assert same(flat.server.state.models.shared, relayed.server.state.models.shared)
    kinds = [[(one["kind"], one.get("site")) for one in c.server.records] for c in (flat, relayed)]
    assert kinds[0] == kinds[1] and kinds[0].count(("site", "site-1")) == 3


def test_the_sites_of_a_node_that_fails_are_left_out_and_named(by_hand, monkeypatch):
    monkeypatch.setattr(Place, "get_clients", connected)

    def answer(controller, region, task):
        lost = (region, task.name) == ("south", "round")
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if lost else as_node(controller, region, task)

    controller = by_hand(answer=answer, regions=REGIONS, min_sites=2).start()
    assert controller.panics == []
    rejected = next(one for one in controller.server.records if one["kind"] == "aggregation")["rejected"]
    assert [one["site"] for one in rejected] == ["site-3"]
    assert rejected[0]["reason"].startswith("the node of its region south: FLARE reports EXECUTION_EXCEPTION")


@pytest.mark.parametrize(("cell", "seconds"), [(f"north-relay.site-1.{JOB}", 20.0), (f"site-1.{JOB}", 300.0)])
def test_behind_a_relay_a_lost_request_is_repeated_soon_and_a_submission_keeps_its_time(cell, seconds, monkeypatch):
    runner = SimpleNamespace(submit_task_result_timeout=None)
    client = SimpleNamespace(client_runner=runner, communicator=SimpleNamespace(timeout=300.0))
    place = Place(None, "site-1", simulator=False)
    place.client, place.get_cell = client, lambda: SimpleNamespace(get_fqcn=lambda: cell)
    SiteExecutor().handle_event(EventType.START_RUN, place)
    assert client.communicator.timeout == seconds
    assert (runner.submit_task_result_timeout or client.communicator.timeout) == 300.0


def test_a_job_must_have_the_regions_through_which_its_sites_connect():
    job = make_job("fedavg", regions=REGIONS)
    check_regions(job, {})  # a flat deployment
    check_regions(job, {"north": ["site-1"]})  # a site is not here
    with pytest.raises(FederationError, match=r'write regions: {"south": \["site-1"\]}'):
        check_regions(job, {"south": ["site-1"]})
    with pytest.raises(FederationError, match="its regions are not the regions through which the sites connect"):
        check_regions(make_job("fedavg"), REGIONS)
