"""Updates that the server refuses, by site name and reason, in rounds that go on."""

import dataclasses
import math

import pytest
import torch

from shared_components.core.card import Card
from shared_components.core.method import Profile, Update, load_method
from shared_components.federation.messages import FederationError, Message, RejectedUpdate, SiteRefusal
from shared_components.federation.messages.parse import check_pieces
from shared_components.federation.server.enrolment import outlying_counts
from shared_components.federation.server.update_checks import check_extras, outlying_extras
from tests.federation.conftest import SITES, Federation, make_job


@pytest.fixture(scope="module")
def round_one(tmp_path_factory, request, narrow_module):
    """A federation of FedAvg after enrolment, and the sites' honest replies."""
    scenes = request.getfixturevalue("scenes")
    federation = Federation(make_job("fedavg", min_sites=2), tmp_path_factory.mktemp("runs"), scenes, SITES).enrol()
    return federation, federation.replies()


def changed(reply, *, header=None, **pieces):
    return Message({**reply.header, **(header or {})}, {**reply.pieces, **pieces}, reply.groups)


NAME = "head_global.bias"


@pytest.mark.parametrize(
    "change, words",
    [
        *(({NAME: torch.tensor([bad] * 4)}, "not finite") for bad in (math.nan, math.inf)),
        ({NAME: torch.full((4,), 1e30)}, "largest_change"),
        ({NAME: torch.zeros(5)}, r"torch.float32 \(5,\); it should be torch.float32 \(4,\)"),
        *(({NAME: torch.zeros(4, dtype=kind)}, str(kind)) for kind in (torch.float64, torch.int64, torch.float16)),
        ({NAME: torch.zeros(0)}, r"torch.float32 \(0,\)"),
        ({"extra": torch.zeros(1)}, "nobody asked for, the first is extra"),
        ({"header": {"round": 7}}, "it is of round 8, this is round 1"),
        ({"header": {"samples": 10**9}}, "enrolled with 4"),
    ],
)
def test_a_bad_update_is_rejected_with_its_reason(round_one, change, words):
    federation, replies = round_one
    assert federation.server.check_update("site-1", replies["site-1"]).samples == 4  # an honest one passes
    with pytest.raises(RejectedUpdate, match=words):
        federation.server.check_update("site-2", changed(replies["site-2"], **change))


def test_counts_of_batches_are_no_distance_and_lift_no_bound():
    weight, count = torch.zeros(2), torch.tensor(0)
    check_pieces({"w": weight, "n": count + 10**6}, {"w": weight, "n": count}, largest_change=1.0)
    with pytest.raises(RejectedUpdate, match=r"moved the weights by 4\.24; the job allows 1 "):
        check_pieces({"w": weight + 3, "n": count}, {"w": weight, "n": count + 10**6}, largest_change=1.0)


def test_missing_pieces_and_undeclared_extras_are_rejected(round_one):
    federation, replies = round_one
    pieces = {n: v for n, v in replies["site-1"].pieces.items() if n != NAME}
    with pytest.raises(RejectedUpdate, match=r"1 of its pieces are missing, the first is head_global\.bias"):
        federation.server.check_update("site-1", Message(replies["site-1"].header, pieces))
    with pytest.raises(RejectedUpdate, match="extras"):
        groups = {**replies["site-1"].groups, "images": {"x": torch.zeros(1)}}
        reply = Message(replies["site-1"].header, replies["site-1"].pieces, groups)
        federation.server.check_update("site-1", reply)


def test_latest_names_the_run_whose_sites_enrolled_last(federate, toy_bundle, tmp_path):
    """A launch that is refused at enrolment does not change it; a resume moves it back."""
    first, second = federate(make_job("fedavg")), federate(make_job("fedavg"))
    latest = tmp_path / "runs" / "test-fedavg" / "latest"
    assert first.server.folder != second.server.folder and not latest.exists()
    second.enrol()
    assert latest.resolve() == second.server.folder
    first.enrol()
    assert latest.resolve() == first.server.folder


def test_a_round_survives_a_bad_update_and_records_it(federate, toy_bundle):
    federation = federate(make_job("fedavg", min_sites=2)).enrol()
    replies = federation.replies()
    replies["site-2"] = changed(replies["site-2"], **{"head.bias": torch.full((4,), float("nan"))})
    record = federation.send(replies)
    assert record["rejected"] == [{"site": "site-2", "reason": "piece head.bias has values that are not finite"}]
    expected = (replies["site-1"].pieces["head.bias"].double() + replies["site-3"].pieces["head.bias"].double()) / 2
    torch.testing.assert_close(federation.server.state.models.shared["head.bias"], expected.float())


@pytest.mark.parametrize("failures, why", [({"site-2": "it did not answer"}, "it did not answer"), ({}, "no answer")])
def test_too_few_updates_end_the_job_with_every_reason(federate, toy_bundle, failures, why):
    """A driver that forgets a site must not make the round need fewer."""
    federation = federate(make_job("fedavg")).enrol()
    with pytest.raises(FederationError, match=f"2 valid updates and needs 3: site-2: {why}"):
        federation.send(federation.replies(["site-1", "site-3"]), failures)


def test_too_many_wanted_updates_or_a_missing_enrolment_end_the_job(federate, toy_bundle):
    assert federate(make_job("fedavg", min_sites=3)).asked.task == "enrol"
    with pytest.raises(FederationError, match="min_sites is 4, and the job has 3 sites; add sites, or give"):
        federate(make_job("fedavg", min_sites=4))
    federation = federate(make_job("fedavg"))
    replies = federation.replies()
    del replies["site-2"]
    with pytest.raises(FederationError, match="site-2 did not enrol"):
        federation.send(replies)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/x", "", ".hidden", "a/b", "a" * 200])
def test_a_job_or_run_cannot_choose_where_a_site_writes(name, federate, toy_bundle):
    with pytest.raises(ValueError, match="is no folder name"):
        dataclasses.replace(make_job(), name=name)
    federation = federate(make_job("fedavg"))
    message = federation.asked.messages["site-1"]
    message.header["run"] = name
    with pytest.raises(SiteRefusal, match=r"site-1.*is no folder name"):
        federation.answer("site-1", "enrol", message)


def test_an_update_of_a_site_that_the_round_did_not_ask_is_not_used(federate, toy_bundle):
    federation = federate(make_job("fedavg", client_fraction=0.5)).enrol()
    (idle,) = set(federation.server.state.sites) - set(federation.asked.messages)
    replies = federation.replies()
    record = federation.send({**replies, idle: next(iter(replies.values()))})
    assert record["rejected"] == [{"site": idle, "reason": "the round did not ask it"}]
    assert record["drawn"] == sorted(replies)


@pytest.mark.parametrize("there, enough", [(["site-1", "site-3"], True), (["site-1"], False)])
def test_the_finish_needs_the_sites_that_the_job_needs_and_not_those_of_its_method(federate, toy_bundle, there, enough):
    """Krum compares three at least; a delivery compares nothing."""
    job = make_job("krum", bundle="toy", rounds=1, min_sites=2)
    federation = federate(job).run()
    assert (federation.server.method.requires.min_sites, federation.asked.task) == (3, "finish")
    assert federation.asked.needed == 2
    missing = {name: "it is gone" for name in federation.asked.messages if name not in there}
    with pytest.raises(StopIteration if enough else FederationError, match=None if enough else "site-2: it is gone"):
        federation.send(federation.replies(names=there), missing)


SHARED = {"a": torch.zeros(2), "b": torch.zeros(1)}


def updates(*sizes):
    """Return updates with their largest sensitivity in a single element."""
    return [
        Update(f"site-{n}", 0, SHARED, {"sensitivity": {"a": torch.tensor([0.0, size]), "b": torch.zeros(1)}})
        for n, size in enumerate(sizes, 1)
    ]


@pytest.mark.parametrize(
    "sizes, named",
    [
        ((16.7, 12.4, 17.4), []),
        ((446.0, 2932.0, 82.0), []),  # traces of Fisher matrices differ so at honest sites
        ((16.7, 1e9, 17.4), ["site-2"]),
        ((3e38, 12.4, 17.4), ["site-1"]),
        ((1e-3, 2e-3, 0.9), []),  # below 1 a softmax hardly moves
        ((1e-3, 2e-3, 1.1), ["site-3"]),
        ((0.0, 12.4, 17.4), []),  # a site that reports nothing makes no other site look large
        ((16.7, 1e9), []),
        ((16.7, 1e9, 1e9, 15.0, 14.0), ["site-2", "site-3"]),
    ],
)
def test_who_reports_far_more_than_the_others_is_named_and_nobody_else(sizes, named):
    assert sorted(outlying_extras(updates(*sizes))) == named


@pytest.mark.parametrize("size", [2e9, 3e38])
@pytest.mark.parametrize("name, group", [("pfedsis", "sensitivity"), ("qfedavg", "loss"), ("fedas", "fisher")])
def test_an_extra_beyond_its_range_is_refused_even_of_a_single_site(name, group, size):
    method = load_method(name)
    pieces = (
        {"a": torch.tensor([0.1, size]), "b": torch.zeros(1)} if name == "pfedsis" else {"value": torch.tensor(size)}
    )
    with pytest.raises(RejectedUpdate, match=rf"its {group} goes up to \S+; at most 1e\+09"):
        check_extras({group: pieces}, method.local.extras, SHARED, method=name)


@pytest.mark.parametrize(
    "counts, named", [((40, 60, 8000), []), ((40, 60, 10**9), ["site-3"]), ((1, 9000, 8000), []), ((4, 10**9), [])]
)
def test_who_claims_far_more_samples_than_the_others_is_named(counts, named):
    profiles = {f"site-{n}": Profile(f"site-{n}", count, Card("depth")) for n, count in enumerate(counts, 1)}
    assert list(outlying_counts(profiles)) == named


def test_an_inflated_sensitivity_is_left_out_and_the_round_goes_on(federate):
    federation = federate(make_job("pfedsis", rounds=1, min_sites=2)).enrol()
    replies = federation.replies()
    first = next(iter(replies["site-2"].groups["sensitivity"].values()))
    first.view(-1)[0] = 1e8
    (rejected,) = federation.send(replies)["rejected"]
    assert rejected["site"] == "site-2" and "its sensitivity goes up to 1e+08" in rejected["reason"]
