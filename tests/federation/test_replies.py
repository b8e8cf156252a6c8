"""Whatever a site sends: it is read in one place, or its site is refused by name and the others go on."""

import json
import math
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared_components.core.method import load_method, method_names
from shared_components.federation.message_schema import REPLY
from shared_components.federation.messages import FederationError, Message
from shared_components.federation.progress import flatten, progress_line
from shared_components.federation.protocol import Answers, understood
from shared_components.federation.server import parse_reply as place
from shared_components.federation.server.enrolment import EnrolmentReader
from shared_components.federation.server.round_log import RoundLog
from shared_components.federation.server.update_checks import RejectedUpdate, check_extras
from shared_components.federation.store import RECORDS
from tests.federation.conftest import Federation, make_job
from tests.federation.test_hostile_messages import odd_tensors

SITES = ("site-1", "site-2", "site-3")
NAME = "head_global.bias"


@pytest.fixture(scope="module")
def honest(tmp_path_factory, request):
    """Return an enrolled server, and what an honest site answers to each task."""
    scenes = request.getfixturevalue("scenes")
    federation = Federation(make_job("fedavg", rounds=1, min_sites=2), tmp_path_factory.mktemp("r"), scenes, SITES)
    enrol = federation.replies()
    federation.send(enrol)
    return federation.server, {"enrol": enrol["site-2"], "round": federation.replies(["site-2"])["site-2"]}


ODD = {  # what a site can put in the place of a tensor of four numbers, although it is a dense one
    "NaN": torch.full((4,), math.nan),
    "whole": torch.zeros(4, dtype=torch.int64),
    "half": torch.zeros(4, dtype=torch.float16),
    "empty": torch.zeros(0),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_tensor_refuses_its_site(honest, kind):
    server, known = honest
    sent = Message(known["round"].header, {**known["round"].pieces, NAME: ODD[kind]})
    with pytest.raises(RejectedUpdate, match=NAME):
        server.check_update("site-2", place.read("round", sent))


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
SHARED = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}
EXTRAS = {  # a good group of each method that declares one
    "pfedsis": {name: torch.ones_like(value) for name, value in SHARED.items()},
    "fedas": {"value": torch.tensor(1.0)},
    "fedseg": {"mean": torch.ones(2, 8), "present": torch.ones(2)},
    "qfedavg": {"value": torch.tensor(1.0)},
}


@pytest.mark.filterwarnings("ignore")  # torch warns of the dtypes themselves
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", EXTRAS)
def test_an_extra_of_a_dtype_that_nobody_measures_in_is_its_sites_fault(method, dtype):
    declared = load_method(method).local.extras
    (group,) = declared
    try:
        sent = {name: value.to(dtype) for name, value in EXTRAS[method].items()}
    except (RuntimeError, NotImplementedError):  # a quantised or packed dtype, of which torch makes no plain tensor
        sent = {name: torch.empty(value.shape, dtype=dtype) for name, value in EXTRAS[method].items()}
    if dtype in (torch.float32, torch.float64):
        check_extras({group: sent}, declared, SHARED, method=method)
    else:
        with pytest.raises(RejectedUpdate, match=f"its {group}: .* is {dtype}; a float32 or float64 is due"):
            check_extras({group: sent}, declared, SHARED, method=method)


def test_methods_that_declare_an_extra_are_all_tried():
    names = [name for name in method_names() if load_method(name).local.extras]
    assert names == sorted(EXTRAS)


@pytest.mark.parametrize("sent", [None, [], "message", {}, 4], ids=repr)
def test_what_is_no_message_refuses_its_site(sent):
    answers = understood("round", Answers({"site-2": sent}))
    assert answers.replies == {} and "no message of this job" in answers.failures["site-2"]


def test_an_honest_reply_is_read_as_it_is(honest):
    _, known = honest
    for task, reply in known.items():
        read = place.read(task, reply)
        assert read.header == reply.header and list(read.pieces) == list(reply.pieces)
        assert all(torch.equal(value, reply.pieces[name]) for name, value in read.pieces.items())


# ---- the proof by fuzzing

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, -1, 0])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["site-2", "segmentation", "global", "\x1b[31m", "\ud800", "a\nb", "‮"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(["mean", "dice", "total", "kind"]), inner, max_size=4)
    ),
    max_leaves=12,
)
tensors = st.sampled_from([*ODD.values(), *(odd for odd, _ in odd_tensors().values())]) | plain
pieces = st.dictionaries(st.sampled_from([NAME, "w"]) | st.text(max_size=6), tensors, max_size=4)
keys = st.sampled_from([*REPLY, "odd"])
quick = settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@quick
@given(
    task=st.sampled_from(["enrol", "round", "unmask", "finish"]),
    changes=plain | st.dictionaries(keys, plain, max_size=3),
    given_pieces=plain | pieces,
    groups=plain | st.dictionaries(st.sampled_from(["model", "sensitivity"]) | st.text(max_size=5), pieces | plain),
    keep=st.booleans(),
)
def test_nothing_that_a_site_can_send_raises_past_the_place(honest, task, changes, given_pieces, groups, keep):
    """What is not refused there can be checked, recorded, told and written without another error."""
    server, known = honest
    reply = known.get(task, Message({"round": 1, "metrics": {}, "final": {}}))
    header = {**reply.header, **changes} if isinstance(changes, dict) else changes
    body = {**reply.pieces, **given_pieces} if keep and isinstance(given_pieces, dict) else given_pieces
    answers = understood(task, Answers({"site-2": Message(header, body, groups)}))
    assert set(answers.replies) | set(answers.failures) == {"site-2"}
    for read in answers.replies.values():
        _use(server, task, read)


@quick
@given(key=keys, value=plain, task=st.sampled_from(["enrol", "round", "unmask", "finish"]))
def test_one_changed_value_never_raises_past_the_place(honest, key, value, task):
    server, known = honest
    reply = known.get(task, Message({"round": 1, "metrics": {}, "final": {}}))
    answers = understood(task, Answers({"site-2": Message({**reply.header, key: value}, reply.pieces)}))
    for read in answers.replies.values():
        _use(server, task, read)


def _use(server, task, read):
    """Do with a reply that was read what the server does with it."""
    journal = RoundLog(server.folder / RECORDS, server.upload)
    record = journal.note("site-2", read, Message({}, {}), server.state.partition, round=server.state.round)
    line = progress_line(record, rounds=2, seconds_left=None, metric=server.first_metric("site-2"))
    assert line.isprintable() and all(map(math.isfinite, flatten(record).values()))
    json.dumps({**record, "final": read.header.get("final")}).encode()
    try:
        if task == "round":
            server.check_update("site-2", read)
        elif task == "enrol":
            EnrolmentReader(server.job, server.method).read("site-2", read, asked=True)
    except (RejectedUpdate, FederationError) as refusal:
        assert str(refusal)


# ---- whole runs


@pytest.mark.parametrize(
    "change",
    [{"seconds": {"total": 10**400}}, {"header": []}, {"pieces": {NAME: None}}, {"final": "text"}],
    ids=["seconds", "header", "piece", "final"],
)
def test_one_sites_answer_ends_nobody_elses_job(federate, change):
    federation = federate(make_job("fedavg", rounds=1, min_sites=2)).enrol()
    for task in ("round", "finish"):
        replies = federation.replies()
        reply = replies["site-2"]
        header = change.get("header", {**reply.header, **{k: v for k, v in change.items() if k != "pieces"}})
        replies["site-2"] = Message(header, change.get("pieces", reply.pieces), reply.groups)
        if task == "round":
            assert [r["site"] for r in federation.send(replies)["rejected"]] == ["site-2"]
        else:
            with pytest.raises(StopIteration):
                federation.send(replies)
    finals = [r["site"] for r in federation.server.records if r["kind"] == "final"]
    assert finals == ["site-1", "site-3"]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"card": {"kind": "segmentation", "outputs": [], "inputs": ["image"], "frames": 1}}, "site-2 .*task"),
        ({"samples": "four"}, "site-2: its answer to 'enrol': samples is 'four'"),
        ({"partition": [3]}, r"site-2: its answer to 'enrol': partition\[1\] is 3"),
    ],
    ids=["no classes", "samples", "partition"],
)
def test_a_site_that_enrols_badly_is_left_out_by_name(federate, caplog, change, words):
    federation = federate(make_job("fedavg", rounds=1, min_sites=2))
    replies = federation.replies()
    replies["site-2"].header.update(change)
    federation.send(replies)
    assert set(federation.asked.messages) == {"site-1", "site-3"}
    described = json.loads((federation.server.folder / "run.json").read_text())
    assert described["sites"] == ["site-1", "site-3"] and list(described["left_out"]) == ["site-2"]
    federation.run().finish()
    with pytest.raises(FederationError, match=words):
        whole = federate(make_job("fedavg", rounds=1))
        replies = whole.replies()
        replies["site-2"].header.update(change)
        whole.send(replies)


@pytest.mark.parametrize(
    "value, words",
    [
        (torch.full((4,), math.nan), "not finite"),
        (torch.full((4,), 1e30), r"beyond 1e\+06"),
        (torch.zeros(4, dtype=torch.float16), r"torch.float16 \(4,\); its network has torch.float32"),
        (None, f"its piece {NAME} is None"),
    ],
    ids=["NaN", "large", "half", "none"],
)
def test_weights_that_nobody_can_begin_from_come_from_the_next_site(federate, value, words):
    federation = federate(make_job("fedavg", rounds=1, min_sites=2))
    replies = federation.replies()
    replies["site-1"].pieces[NAME] = value
    federation.send(replies)
    assert federation.asked.task == "enrol" and list(federation.asked.messages) == ["site-2"]
    given_next = federation.replies()
    federation.send(given_next)
    assert torch.equal(federation.server.state.models.shared[NAME], given_next["site-2"].pieces[NAME])
    assert re.search(words, federation.server.left_out["site-1"])
    assert {m.header["number"] for m in federation.asked.messages.values()} == {1, 2}
    federation.run().finish()


def test_an_undeclared_tensor_at_enrolment_is_refused(federate):
    federation = federate(make_job("fedavg", rounds=1))
    replies = federation.replies()
    replies["site-1"].pieces["ballast"] = torch.zeros(1)
    with pytest.raises(FederationError, match=r"site-1 enrols with other pieces .* the first is ballast"):
        federation.send(replies)
