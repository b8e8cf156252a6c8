"""A reply may contain only the data that the server's job and the site's own description permit."""

import dataclasses
import re

import pytest
import torch

from shared_components.core.method import load_method
from shared_components.core.partition import Role, cut, partition_network
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job, Message, Place, Request
from shared_components.flare import outgoing_check
from shared_components.flare.outgoing_check import check_reply, expected_payload
from shared_components.networks.bundle_config import build_network
from tests.changed_method import changed
from tests.federation.conftest import make_job
from tests.flare.client import HEAD

LOCAL_DECODER = {"ape": False, "sensitivity_images": 2}  # PFedSIS's personal parts stay at home
SCORES = {"dice": {"shaft": 0.5, "wrist": None, "mean": 0.5}, "frames": 4, "policy": "diagonal"}


@pytest.fixture
def site(scenes):
    """Return a segmentation site that publishes nothing."""
    return dataclasses.replace(load_site(scenes[0], name="site-1"), publish=())


def asked(task="round", job=None):
    return Request(task, job or make_job("fedavg"), "a-run", round=1, place=Place(0, 3, 0, 3))


def network_of(job: Job, channels=4):
    return build_network(job.open_bundle().network, out_channels=channels)


def honest(job: Job, channels=4) -> Message:
    """Return what a site sends after a round, without the training."""
    method, network = load_method(job.method, **job.arguments), network_of(job, channels)
    partition, state = partition_network(network, method.partition), network.state_dict()
    groups = {}
    if method.local.measure:
        groups["sensitivity"] = {n: v.abs() for n, v in cut(state, partition, Role.GLOBAL).items()}
    header = {"round": 1, "samples": 4, "loss": {"segmentation": 0.5}, "metrics": SCORES, "memory_mb": 300.0}
    return Message(header | {"seconds": {"total": 1.5}}, cut(state, partition, Role.GLOBAL, Role.MIXED), groups)


def refused(message, question, site, words):
    with pytest.raises(ValueError, match=words):
        check_reply(message, question, site)


# ---- after a round


SINGLE = {"network": {"temporal": False, "text": "none"}, "tasks": {"segmentation": {"frames": 1}}}


@pytest.mark.parametrize(
    "method, changes",
    [
        ("fedavg", {}), ("pfedsis", {}), ("pfedsis", {"arguments": LOCAL_DECODER}),
        ("fedavg", {"bundle": "fedst", **SINGLE}), ("fedavg", {"bundle": "fedst"}),
        ("fedst", {"bundle": "fedst", "network": {"text": "prompt"}}),
        ("pfedsis", {"bundle": "pvt_fpn", "network": {"appearance_head": True}, "arguments": LOCAL_DECODER}),
    ],
)  # fmt: skip
def test_honest_updates_pass_whatever_network_is_chosen(method, changes, site):
    job = make_job(method, **changes)
    check_reply(honest(job), asked(job=job), site)


def test_the_sites_own_description_determines_the_number_of_channels(site):
    depth = dataclasses.replace(site, task="depth")
    check_reply(honest(make_job("fedavg"), channels=1), asked(), depth)
    refused(honest(make_job("fedavg"), channels=4), asked(), depth, "head_global.* is not declared")
    refused(honest(make_job("fedavg"), channels=1), asked(), site, "head_global.* is not declared")


@pytest.mark.full_width
def test_a_local_piece_and_the_local_half_of_a_query_are_blocked(site):
    """Rows 0:16 of the first block's query are GLOBAL, rows 16:32 the site's own (GPD, half of 32 rows)."""
    job = make_job("pfedsis", arguments=LOCAL_DECODER)
    query = "encoder.block1.0.attn.q.weight"
    assert f"{query}[0:16]" in honest(job).pieces
    local = {"decoder_personal.lateral.0.weight": (256, 128, 1, 1), f"{query}[16:32]": (16, 32)}
    for name, shape in local.items():
        message = honest(job)
        message.pieces[name] = torch.zeros(shape)
        refused(message, asked(job=job), site, rf"{re.escape(name)} .* is not declared")


def test_a_fixed_piece_is_blocked(site):
    job = make_job("fedavg", training={"fixed": ["encoder"]})
    message = honest(make_job("fedavg"))
    refused(message, asked(job=job), site, "piece encoder.* is not declared")
    trained = {name: value for name, value in message.pieces.items() if not name.startswith("encoder")}
    check_reply(Message(message.header, trained), asked(job=job), site)


@pytest.mark.parametrize(
    "name, value",
    [
        ("patient", torch.zeros(3)), (HEAD, torch.zeros(5)), (HEAD, torch.zeros(2, 3, 32, 64)), (HEAD, "a text"),
        (HEAD, [1.0, 2.0, 3.0, 4.0]),
    ],
)  # fmt: skip
def test_undeclared_names_other_shapes_and_other_types_are_blocked(site, name, value):
    message = honest(make_job("fedavg"))
    message.pieces[name] = value
    refused(message, asked(), site, f"piece {name} .*(not declared|no tensor)")


@pytest.mark.parametrize("group", ["images", "sensitivity", "model"])
def test_a_group_that_the_method_does_not_declare_is_blocked(site, group):
    message = honest(make_job("fedavg"))
    message.groups[group] = {HEAD: torch.zeros(4)}
    open_site = dataclasses.replace(site, publish=("model",))
    refused(message, asked(), open_site, f"fedavg does not declare tensor group {group} for task 'round'")


def test_a_declared_extra_must_have_the_shapes_of_the_shared_pieces(site):
    job = make_job("pfedsis")
    message = honest(job)
    message.groups["sensitivity"][HEAD] = torch.zeros(2, 3, 32, 64)
    refused(message, asked(job=job), site, r"head_global\.bias has shape \(2, 3, 32, 64\)")
    message.groups["sensitivity"][HEAD] = "a text"
    refused(message, asked(job=job), site, "is no tensor but str")


@pytest.mark.parametrize(
    ("task", "words"), [("enrol", "pfedsis does not declare tensor group"), ("finish", "'finish' does not permit")]
)
def test_an_extra_leaves_only_after_a_round(site, task, words):
    job = make_job("pfedsis")
    refused(Message({"round": 1}, {}, honest(job).groups), asked(task, job), site, f"{words} sensitivity")


@pytest.mark.full_width
def test_a_reply_must_match_the_network_of_the_servers_job(site):
    single, clips = make_job("fedavg", bundle="fedst", **SINGLE), make_job("fedavg", bundle="fedst")
    refused(honest(clips), asked(job=single), site, "piece (temporal|selection|indicator).* is not declared")
    check_reply(honest(single), asked(job=clips), site)  # the server refuses missing pieces
    smaller = make_job("fedavg", bundle="fedst", network={"expansion": 1})
    refused(honest(clips), asked(job=smaller), site, r"piece temporal.16.fc1.weight \(320, 160\) is not declared")


@pytest.mark.parametrize(
    "network, words",
    [({"_target_": "os.system"}, "'_target_', which names code"), ({"text": "$exit()"}, "text is the expression"),
     ({"temporal": 0}, "temporal is 0; it is true or false")],
)  # fmt: skip
def test_nothing_leaves_for_an_invalid_job(site, network, words):
    values = make_job("fedavg", bundle="fedst").to_json() | {"network": network}
    with pytest.raises(ValueError, match=words):
        check_reply(Message({"round": 1}), asked(job=Job.from_json(values)), site)


# ---- plain values


@pytest.mark.parametrize(
    ("task", "key", "value"),
    [
        ("round", "round", 2),
        ("enrol", "card", {"kind": "segmentation", "outputs": ["Jane Doe"], "inputs": ["image"], "frames": 1}),
        ("enrol", "partition", [{"tensor": "Jane Doe", "role": "global"}]),
        ("enrol", "prepared", "sentence"), ("enrol", "sums_key", {"key": "a" * 64}),
        ("finish", "final", {"site": "Jane Doe", **SCORES}), ("finish", "final", SCORES),
    ],
)  # fmt: skip
def test_well_formed_values_must_belong_to_the_job_at_this_site(site, task, key, value):
    """Their forms are in tests/federation/test_hostile_messages.py."""
    refused(Message({key: value}), asked(task), site, f"its {key} does not belong to this job at this site: ")


def test_the_name_of_an_encoder_leaves_for_a_method_that_conditions_its_network(site, monkeypatch):
    method = changed(load_method("fedavg"), local_condition_on_site=lambda network, facts: "sentence")
    monkeypatch.setattr(outgoing_check, "load_method", lambda name, **arguments: method)
    for name in ("", "sentence " + "0" * 64):
        check_reply(Message({"samples": 4, "prepared": name}), asked("enrol"), site)


def test_a_profile_item_leaves_only_if_site_yaml_publishes_it_and_the_method_asks_for_it(site):
    style = Message({"samples": 4, "items": {"style": [[0.5] * 3, [0.1] * 3]}})
    question = asked("enrol", make_job("pfedsis"))
    check_reply(style, question, dataclasses.replace(site, publish=("style",)))
    for publish in ((), ("text",)):
        closed = dataclasses.replace(site, publish=publish)
        refused(style, question, closed, "does not publish item style to pfedsis")
    own = dataclasses.replace(site, publish=("style", "text"))
    refused(style, asked("enrol"), own, "does not publish item style")
    refused(Message({"items": {"text": "porcine"}}), question, own, "does not publish item text")


@pytest.mark.parametrize(("key", "name"), [("metrics", "scores"), ("loss", "loss"), ("memory_mb", "memory")])
def test_withheld_values_do_not_leave(site, key, name):
    message = honest(make_job("fedavg"))
    check_reply(message, asked(), site)
    refused(message, asked(), dataclasses.replace(site, withhold=(name,)), f"withholds '{name}', but .* contains {key}")
    header = {other: value for other, value in message.header.items() if other != key}
    check_reply(dataclasses.replace(message, header=header), asked(), dataclasses.replace(site, withhold=(name,)))


# ---- at the finish


@pytest.mark.parametrize(("group", "other"), [("model", "result"), ("result", "model")])
def test_a_whole_model_leaves_at_the_finish_and_with_its_own_consent_only(site, group, other):
    job = make_job("fedper")
    final = {"site": site.name, "split": "validation", **SCORES}
    message = Message({"round": 1, "metrics": SCORES, "final": final}, {}, {group: network_of(job).state_dict()})
    open_site = dataclasses.replace(site, publish=("style", group))
    check_reply(message, asked("finish", job), open_site)
    closed = dataclasses.replace(site, publish=("style", other))
    refused(message, asked("finish", job), closed, f"does not publish {group!r}")
    for task in ("enrol", "round"):
        early = Message({}, {}, message.groups)
        refused(early, asked(task, job), open_site, f"fedper does not declare tensor group {group}")


def test_at_the_finish_no_piece_leaves_and_no_model_of_another_shape(site):
    job = make_job("fedper")
    open_site = dataclasses.replace(site, publish=("model",))
    for change in ({HEAD: torch.zeros(5)}, {"patient": torch.zeros(1)}, {HEAD: "a text"}):
        message = Message({}, {}, {"model": {**network_of(job).state_dict(), **change}})
        refused(message, asked("finish", job), open_site, "model .*(not declared|no tensor)")
    refused(Message({}, honest(make_job("fedavg")).pieces), asked("finish"), site, "'finish' does not permit pieces")
    refused(honest(make_job("fedavg")), asked("evaluate"), site, "the answer to 'evaluate': unknown key")


@pytest.mark.full_width
def test_shapes_need_no_memory_for_weights(site):
    pieces = expected_payload(make_job("pfedsis"), site).pieces(Role.GLOBAL, Role.MIXED)
    assert tuple(pieces["head_personal.weight"].shape) == (4, 128, 1, 1)
    assert tuple(pieces["encoder.block1.0.attn.q.weight[0:16]"].shape) == (16, 32)
    assert all(value.is_meta for value in pieces.values())
