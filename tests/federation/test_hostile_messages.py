"""Hostile messages, once for all readers: the site's filter, the server and the site refuse them by the same words."""

import dataclasses
import math
import time

import numpy as np
import pytest
import torch

from shared_components.data.site import WITHHOLDABLE
from shared_components.data.site_file import load_site
from shared_components.federation.in_process import answer
from shared_components.federation.messages import Message, Place, RejectedUpdate, Request, SiteRefusal
from shared_components.federation.messages.parse import parse_reply, parse_request
from shared_components.federation.messages.schema import REPLY, REQUEST
from shared_components.federation.protocol import Answers, parse_answers
from shared_components.flare.outgoing_check import check_reply, expected_payload
from tests.federation.conftest import make_job

DEEP: list = []
for _ in range(5000):
    DEEP = [DEEP]
MANY = {str(number): 1.0 for number in range(200_000)}  # took minutes once
HASH = "a" * 64
NO_HASHES = ("A" * 64, "a" * 63, HASH + "\n", "Jane Doe")
SCORES = {"dice": {"shaft": 0.5, "wrist": None, "mean": 0.5}, "frames": 4, "policy": "diagonal"}
PIECE = {"tensor": "w", "role": "global"}
STYLE = [[0.5] * 3, [0.1] * 3]

REPLIES = [  # task, what a site changes in the plain values of its reply, words of the refusal
    ("round", {"extra": 1}, "unknown key 'extra'; known keys: round, samples, loss, metrics"),
    ("round", {3: 4}, "unknown key 3; known keys"),
    ("round", {"los": {}}, "unknown key 'los'; did you mean 'loss'? known"),
    ("round", {"job": make_job("fedper").to_json()}, "unknown key 'job'"),
    *((task, {key: {}}, f"unknown key '{key}'") for task, key in (
        ("round", "final"), ("round", "prepared"), ("finish", "loss"), ("enrol", "metrics"), ("unmask", "samples"))),
    *(("round", {"round": bad}, f"round is {bad!r}; it is a whole number") for bad in ("0", True)),
    ("round", {"samples": "four"}, "samples is 'four'; it is a whole number, at least 1 and at most 1000000000"),
    *(("round", {"samples": bad}, f"samples is {bad}; it is") for bad in ([1, 2], 4.0, math.nan, 10**30)),
    *(("enrol", {"samples": bad}, f"samples is {bad}; it is") for bad in (True, 0)),
    ("round", {"seconds": {"total": 10**400}}, "seconds.total is a whole number of over 80 digits; it is a number"),
    ("round", {"seconds": {"total": math.inf}}, "seconds.total is inf; it is a number, at least 0 and at most 1e+30"),
    *(("round", {"seconds": {"total": bad}}, f"seconds.total is {bad}; it is") for bad in (-1.0, True)),
    *(("round", {key: bad}, f"{key} is {bad!r}; write") for key, bad in (("seconds", None), ("loss", "low"))),
    ("round", {"seconds": DEEP}, "seconds is [[[[...]]]]; write"),
    ("round", {"loss": {"x" * 10_000: 1.0}}, "loss is {'xxx"),
    ("round", {"loss": {"a" * 101: 1.0}}, "loss is {'aaa"),
    ("round", {"loss": {"": 1.0}}, "loss is {'': 1.0}"),
    ("round", {"loss": {"\x1b[2J": 1.0}}, r"loss has the text '\x1b[2J'; a name has no control characters"),
    ("round", {"loss": {"a\nb": 1.0}}, r"loss has the text 'a\nb'"),
    ("round", {"loss": MANY}, "loss is {'0': 1.0"),
    ("round", {"loss": {"segmentation": 10**400}}, "loss.segmentation is a whole number of over"),
    *(("round", {"loss": {"a": bad}}, f"loss.a is {bad!r}; it is a number") for bad in ([1.0], "0.5", math.nan)),
    ("round", {"metrics": [1]}, "metrics is [1]; it is a table of scores"),
    *(("round", {"metrics": {"dice": bad}}, f"metrics.dice is {bad!r}; a metric has a number") for bad in (
        {"mean": "high"}, {"mean": True}, "aGVsbG8=")),
    ("round", {"metrics": {"dice": {"mean": 0.5, "frame": [1, 2, 3]}}}, "metrics.dice.frame is [1, 2, 3]; it is"),
    ("round", {"metrics": {"dice": {"mean": DEEP}}}, "metrics.dice.mean is [[["),
    ("round", {"metrics": {"rmse": {"mean": math.inf}}}, "metrics.rmse.mean is inf; it is"),
    ("round", {"metrics": {"dice": MANY}}, "metrics has 200000 numbers; at most 2000 are read"),
    ("round", {"metrics": {name: {"mean": 1.0} for name in MANY}}, "metrics is {'0': {'mean': 1.0}"),
    ("round", {"metrics": {"policy": "x" * 101}}, "metrics.policy is 'xxx"),
    ("round", {"metrics": {"a" * 101: {"mean": 1.0}}}, "metrics is {'aaa"),
    ("round", {"memory_mb": 10**400}, "memory_mb is a whole number of over 80 digits; it is a number"),
    ("round", {"memory_mb": {"a": 1}}, "memory_mb is {'a': 1}; it is a number, at least 0 and at most 1e+30, or null"),
    ("finish", {"final": {"site": "site-1", "split": "a" * 101, **SCORES}}, "final.split is 'aaa"),
    ("finish", {"final": {"site": "site-1", "notes": "Jane Doe", **SCORES}}, "final.notes is 'Jane Doe'; a metric has"),
    ("finish", {"final": {"site": "site-1", "dice": [0.1, 0.2]}}, "final.dice is [0.1, 0.2]; it is"),
    ("finish", {"final": "text"}, "final is 'text'; it is a table of scores"),
    ("enrol", {"card": None}, "card is None; write its settings as 'name: value'; known keys: kind, outputs, inputs"),
    ("enrol", {"card": {"kind": "segmentation"}}, "'card.outputs' is missing"),
    ("enrol", {"card": {"kind": 3, "outputs": [], "inputs": [], "frames": 1}}, "card.kind is 3; it is a text"),
    ("enrol", {"card": {"kind": "a", "outputs": "b", "inputs": [], "frames": 1}}, "card.outputs is 'b'"),
    ("enrol", {"card": {"kind": "a", "outputs": ["b\n"], "inputs": [], "frames": 1}}, r"card has the text 'b\n'"),
    ("enrol", {"card": {"kind": "a", "outputs": [], "inputs": [], "frames": True}}, "card.frames is True; it is"),
    ("enrol", {"partition": None}, "partition is None"),
    ("enrol", {"partition": [DEEP]}, "partition[1] is [[["),
    ("enrol", {"partition": [{"tensor": "w", "role": "everywhere"}]}, "partition[1].role is 'everywhere'"),
    ("enrol", {"partition": [{"tensor": "w"}]}, "'partition[1].role' is missing"),
    ("enrol", {"partition": [PIECE, PIECE]}, "partition names a piece twice"),
    ("enrol", {"partition": [{**PIECE, "start": -1}]}, "partition[1].start is -1; it is a whole number"),
    ("enrol", {"partition": [{**PIECE, "tensor": "w" * 401}]}, "partition[1].tensor is 'www"),
    ("enrol", {"partition": [{**PIECE, "note": "Jane Doe"}]}, "unknown key 'partition[1].note'"),
    *(("enrol", {"fixed": bad}, f"fixed is {bad!r}; it is a hash, or empty") for bad in (3, "Jane Doe")),
    ("enrol", {"fixed": HASH + "\n"}, "fixed is 'aaa"),
    *(("enrol", {"prepared": bad}, "prepared is ") for bad in (None, 1, math.nan, ["clip"], b"clip")),
    *(("enrol", {"prepared": bad}, "the name of an encoder, or empty") for bad in ("a" * 101, "two\nlines", "näme")),
    *(("enrol", {"start": bad}, f"start is {bad!r}") for bad in (None, "rendered")),
    ("enrol", {"start": {"start": "rendered"}}, "'start.sha256' is missing"),
    ("enrol", {"start": {"start": "elsewhere", "sha256": ""}}, "start.start is 'elsewhere'; use one of random, rend"),
    ("enrol", {"start": {"start": ["file"], "sha256": ""}}, "start.start is ['file']"),
    *(("enrol", {"start": {"start": "file", "sha256": bad}}, "start.sha256 is ") for bad in NO_HASHES),
    ("enrol", {"start": {"start": "file", "sha256": "", "path": "/data/a"}}, "unknown key 'start.path'"),
    ("enrol", {"items": ["style"]}, "items is ['style']"),
    ("enrol", {"items": {"age": 4}}, "unknown profile item 'age'"),
    *(("enrol", {"items": {"style": bad}}, "profile item 'style' should be six numbers") for bad in (
        [STYLE, STYLE], [[0.5] * 3, [0.1, 0.1, 2]])),
    ("enrol", {"items": {"text": "x" * 1001}}, "profile item 'text' should be the text of site.yaml"),
    *(("enrol", {"items": {"text_vector": bad}}, "profile item 'text_vector' should be the text") for bad in (
        [0.5], {"values": [0.5]}, {"encoder": "e", "values": []}, {"encoder": "e", "values": [0.5] * 4097},
        {"encoder": "e", "values": [1000.1]}, {"encoder": "e", "values": [math.nan]}, {"encoder": "e", "values": ["0"]},
        {"encoder": "a\nb", "values": [0.5]}, {"encoder": "e", "values": [0.5], "text": "Jane Doe"})),
    ("enrol", {"sums_key": "a"}, "sums_key is 'a'"),
    ("enrol", {"sums_key": {"key": "a"}}, "sums_key.key is 'a'"),
    ("enrol", {"sums_key": {"key": HASH, "signature": "aa"}}, "sums_key has a signature without a certificate, or"),
]  # fmt: skip

PLACES = [(key, bad) for key in ("round", "index", "number", "numbers", "sites")
          for bad in ("../../evil", "0", -1, 10**30, 1.5, True, None, [0], {"a": 1})]  # fmt: skip
REQUESTS = [  # task, what a server changes in its message, words of the refusal
    *(("round", {key: bad}, f"the server's round message: {key} is ") for key, bad in PLACES),
    ("round", {"number": 3}, "number is 3, and numbers is 3; it is a smaller number"),
    ("round", {"sites": 4}, "sites is 4, and numbers is 3"),
    ("round", {"index": 3}, "index is 3, and sites is 3"),
    ("enrol", {"send_initial": "$exit()"}, "send_initial is '$exit()'; it is true or false"),
    ("enrol", {"job": ["a"]}, "job: it is ['a']; write its settings"),
    ("round", {"job": {"name": "x"}}, "job: 'bundle' is missing; add it"),
    ("round", {"job": make_job("fedavg").to_json() | {"rouns": 3}}, "unknown key 'rouns'; did you mean 'rounds'"),
    ("enrol", {"evil": 1}, "the server's enrol message: unknown key 'evil'; known keys: job, run"),
    ("enrol", {3: 1}, "unknown key 3"),
    *(("enrol", {key: ...}, f"{key!r} is missing") for key in ("job", "run", "round", "index", "send_initial")),
    ("round", {"items": ...}, "'items' is missing"),
    ("unmask", {}, "'sums' is missing"),
    ("enrol", {"run": 5}, "run is 5; it is a text"),
    ("enrol", {"run": "../../evil"}, "run '../../evil' is no folder name"),
    ("enrol", {"run": "latest"}, "its run is called 'latest', as the site's link to the newest one"),
    *((task, {"round": 10**6}, "message is of round 1000001 of 2") for task in ("enrol", "round")),
    ("round", {"round": 2}, "message is of round 3 of 2"),
    ("unmask", {"round": 2, "sums": {"nonce": "0" * 32, "sites": []}}, "message is of round 3 of 2"),
    *((task, {"round": 3}, "message is of round 4 of 2") for task in ("enrol", "finish")),
    ("round", {"items": {"style": "$exit()"}}, "items.style is '$exit()'"),
    ("round", {"items": {"evil": [1]}}, "unknown profile item 'evil'"),
    ("round", {"items": {"text": ["x" * 10**6]}}, "profile item 'text' should be"),
    ("round", {"items": {"style": [[[math.nan] * 3] * 2]}}, "profile item 'style' should be six numbers"),
    ("round", {"answered": "../1"}, "answered is '../1'; it is a whole number, at least 0 and at most 10"),
    ("round", {"pool": ["../../evil", 7]}, "pool[2] is 7; it is a text"),
    ("unmask", {"sums": {"nonce": ""}}, "'sums.sites' is missing"),
    ("unmask", {"sums": {"nonce": "", "sites": [], "evil": 1}}, "unknown key 'sums.evil'"),
    ("shell", {}, "the server asks for 'shell'; a site does enrol, round, unmask, finish"),
]


def odd_tensors():
    """Return what can stand in the place of a tensor, and how it is refused."""
    return {
        "numpy": (np.zeros(4, dtype=np.float32), "a value of type ndarray"),
        "None": (None, "None"),
        "list": ([0.0] * 4, "a value of type list"),
        "number": (1.0, "a value of type float"),
        "text": ("$exit()", "a value of type str"),
        "complex": (torch.zeros(4, dtype=torch.complex64), "of torch.complex64"),
        "sparse": (torch.zeros(4).to_sparse(), "a nested, sparse or quantised tensor"),
        "nested": (torch.nested.nested_tensor([torch.zeros(1), torch.zeros(3)]), "a nested, sparse or quantised"),
        "meta": (torch.zeros(4, device="meta"), "a tensor on 'meta'"),
        "expanded": (torch.zeros(()).expand(10**6, 10**6), "a view that repeats its numbers"),
        "many dimensions": (torch.zeros([1] * 30), "of 30 dimensions"),
    }


@pytest.fixture
def site(scenes):
    return dataclasses.replace(load_site(scenes[0], name="site-1"), publish=("style", "text"))


@pytest.fixture
def honest(site):
    """Return a function that gives an honest reply's plain values, with changes; Ellipsis removes a key."""
    expected = expected_payload(make_job("fedavg"), site)
    enrol = {
        "samples": 4, "card": expected.task.card.to_json(), "items": {}, "partition": expected.partition.to_json(),
        "fixed": "", "prepared": "", "start": {"start": "rendered", "sha256": HASH},
    }  # fmt: skip
    measured = {"loss": {"segmentation": 0.5}, "metrics": SCORES}
    known = {
        "enrol": enrol, "round": {"samples": 4, **measured}, "unmask": {},
        "finish": {"metrics": SCORES, "final": {"site": "site-1", "split": "validation", **SCORES}},
    }  # fmt: skip
    every = {"round": 1, "seconds": {"total": 1.5}, "memory_mb": None}
    return lambda task, change=None: known[task] | every | (change or {})


def leaves(header, task, site):
    check_reply(Message(header), Request(task, make_job("fedavg"), "a-run", 1, Place(0, 3, 0, 3)), site)


def request(task, change=None, **body):
    header = {"job": make_job("fedavg").to_json(), "run": "20261122-120000", "round": 0, "index": 0, "number": 0}
    header |= {"numbers": 3, "sites": 3} | ({"send_initial": True} if task == "enrol" else {"answered": None})
    header |= {"items": {}} if task in ("round", "finish") else {}
    changed = {key: value for key, value in (header | (change or {})).items() if value is not ...}
    return Message(changed, **body)


@pytest.mark.parametrize("task", ["enrol", "round", "finish"])
def test_honest_messages_are_read_as_they_are_on_every_side(site, honest, task):
    header = honest(task)
    leaves(header, task, site)
    assert parse_reply(task, Message(header)).header == header
    read, sent = parse_request(task, request(task)), request(task).header
    assert {"job": read.job.to_json(), "run": read.run, "round": read.round, **dataclasses.asdict(read.place)} == {
        key: sent[key] for key in ("job", "run", "round", "index", "number", "numbers", "sites")
    }


@pytest.mark.parametrize("task, change, words", REPLIES)
def test_a_hostile_reply_neither_leaves_its_site_nor_enters_the_server(site, honest, task, change, words):
    header = honest(task, change)
    began = time.process_time()
    with pytest.raises(ValueError) as held:
        leaves(header, task, site)
    answers = parse_answers(task, {"site-1": Message(honest(task)), "site-2": Message(header)})
    assert time.process_time() - began < 5
    assert set(answers.replies) == {"site-1"} and set(answers.failures) == {"site-2"}
    for message_text in (answers.failures["site-2"], str(held.value)):
        assert words in message_text and message_text.isprintable() and len(message_text) < 700
    assert str(held.value).endswith("nothing was sent")


@pytest.mark.parametrize("header", [[], None, "header"])
def test_a_header_that_is_no_dictionary_is_refused_on_every_side(site, header):
    with pytest.raises(RejectedUpdate, match=r"its header is .*, no dictionary"):
        parse_reply("round", Message(header))
    with pytest.raises(ValueError, match=r"the server's round message: its header is .*, no dictionary"):
        parse_request("round", Message(header))
    with pytest.raises(ValueError, match=r"the answer to 'round': it is .*; nothing was sent"):
        leaves(header, "round", site)


@pytest.mark.parametrize("task, change, words", REQUESTS)
def test_a_site_refuses_a_hostile_request_by_a_sentence(task, change, words):
    with pytest.raises(ValueError) as refused:
        parse_request(task, request(task, change))
    assert words in str(refused.value) and str(refused.value).isprintable() and len(str(refused.value)) < 500


@pytest.mark.parametrize("change", [{"round": -1}, {"sites": None}, {"send_initial": 1}])
def test_a_site_that_refuses_says_its_name(federate, change):
    federation = federate(make_job("fedavg"), names=("site-1",))
    message = federation.asked.messages["site-1"]
    message.header.update(change)
    with pytest.raises(SiteRefusal, match=rf"site site-1: the server's enrol message: {next(iter(change))} is "):
        federation.answer("site-1", "enrol", message)


@pytest.mark.parametrize("kind", odd_tensors())
def test_what_is_no_dense_tensor_of_real_numbers_is_refused_on_both_sides(kind):
    bad, words = odd_tensors()[kind]
    for body in ({"pieces": {"head": bad}}, {"groups": {"model": {"head": bad}}}):
        with pytest.raises(RejectedUpdate) as refused:
            parse_reply("round", Message({}, **body))
        assert "head is " in str(refused.value) and words in str(refused.value)
        with pytest.raises(ValueError) as refused:
            parse_request("round", request("round", **body))
        assert "head is " in str(refused.value) and words in str(refused.value)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_server_sends_finite_numbers(number):
    for body in ({"pieces": {"head": torch.tensor([number])}}, {"groups": {"x": {"head": torch.tensor([number])}}}):
        with pytest.raises(ValueError, match="the server's round message: head has values that are not finite"):
            parse_request("round", request("round", **body))


def test_every_declared_value_is_tried_and_a_driver_that_does_not_parse_is_refused():
    assert set(REPLY) == {key for _, change, _ in REPLIES for key in change} - {"extra", 3, "los", "job"}
    assert set(REQUEST) == {key for _, change, _ in REQUESTS for key in change} - {"evil", 3}
    assert {field.withheld for field in REPLY.values()} - {""} == set(WITHHOLDABLE)
    with pytest.raises(TypeError, match="the reply of site-2 was not parsed"):
        Answers({"site-2": Message({"round": 0})})


def test_a_hostile_reply_in_one_process_is_its_sites_failure(federate, monkeypatch):
    """The in-process runner is a boundary, too."""
    federation = federate(make_job("fedavg"), names=("site-1", "site-2"))
    honest = federation.sites["site-2"].answer
    hostile = lambda request: Message({**honest(request).header, "samples": "four"})  # noqa: E731
    monkeypatch.setattr(federation.sites["site-2"], "answer", hostile)
    answers = answer(federation.asked, federation.sites)
    assert set(answers.replies) == {"site-1"}
    assert "samples is 'four'; it is a whole number" in answers.failures["site-2"]
