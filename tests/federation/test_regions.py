"""Sums by region: with a node per region or without, bits and records are the same; a node checks like the server."""

import dataclasses

import pytest
import torch

from shared_components.core.method import method_names
from shared_components.federation.in_process import answer, open_together
from shared_components.federation.messages import FederationError, Job, Message, RejectedUpdate
from shared_components.federation.messages.region import split_answer
from shared_components.federation.protocol import Answers, run_federation
from shared_components.federation.regions import answer_order, answers_of_region, messages_by_region, sites_by_region
from shared_components.federation.site.runner import SiteRunner
from tests.federation.conftest import make_job, same

REGIONS = {"south": ["site-3"], "north": ["site-2", "site-1"]}
NAMES = ("site-1", "site-2", "site-3")


class Relayed:
    """A federation in this process, whose server asks one node per region; ``change`` alters a site's answer."""

    def __init__(self, job, scenes, folder, *, change=lambda task, site, message: message):
        self.server, self.runners = open_together(job, dict(zip(NAMES, scenes, strict=True)), folder)
        self.change, self.asked, self.node = change, [], {}

    def exchange(self, ask):
        replies, failures = {}, {}
        for region, message in messages_by_region(ask, self.server).items():
            asked = sites_by_region(self.server.job, ask.messages)[region]
            self.asked.append((ask.task, region, asked))
            given = answer_order(ask.task, message, lambda own, request, judge: answer(own, self.runners))
            given = self.change(ask.task, region, given)
            answers = answers_of_region(self.server, ask.task, region, given, asked)
            replies, failures = replies | answers.replies, failures | answers.failures
        return Answers(replies, failures)

    def run(self):
        run_federation(self.server, self.exchange)
        return self


def flat(job, scenes, folder):
    server, runners = open_together(job, dict(zip(NAMES, scenes, strict=True)), folder)
    run_federation(server, lambda ask: answer(ask, runners))
    return server


def timeless(records):
    """Return records without measured times and memory."""
    aside = ("seconds", "seconds_wall", "memory_mb")
    return [{key: value for key, value in record.items() if key not in aside} for record in records]


@pytest.mark.parametrize(
    ("method", "wire"), [("fedavg", "float32"), ("fedavg", "bf16"), ("fedbn", "float32"), ("fedadam", "bf16")]
)
def test_nodes_and_a_flat_run_with_the_same_regions_give_equal_bits_and_records(
    job_on_toy, scenes, tmp_path, method, wire
):
    job = job_on_toy(method, regions=REGIONS, wire=wire)
    relayed, alone = Relayed(job, scenes, tmp_path / "a").run(), flat(job, scenes, tmp_path / "b")
    assert same(relayed.server.state.models.shared, alone.state.models.shared)
    assert same(relayed.server.state.aggregator, alone.state.aggregator)
    assert timeless(relayed.server.records) == timeless(alone.records)
    assert {record["site"] for record in alone.records if record["kind"] == "site"} == set(NAMES)
    assert relayed.asked[:2] == [("enrol", "north", ["site-1", "site-2"]), ("enrol", "south", ["site-3"])]


def test_a_regions_mean_is_weighed_by_samples_in_the_order_of_sites_and_regions(job_on_toy, scenes, tmp_path):
    job = job_on_toy("fedavg", rounds=1, regions=REGIONS)
    relayed = Relayed(job, scenes, tmp_path)
    sent = {}

    def exchange(ask):
        if ask.task == "round":
            sent.update(answer(ask, relayed.runners).replies)
        return relayed.exchange(ask)

    run_federation(relayed.server, exchange)
    for name, value in relayed.server.state.models.shared.items():
        if not value.is_floating_point():
            continue
        weights = {site: sent[site].header["samples"] for site in NAMES}
        x = {site: sent[site].pieces[name].double() for site in NAMES}
        pair = weights["site-1"] + weights["site-2"]
        north = (x["site-1"] * (weights["site-1"] / pair) + x["site-2"] * (weights["site-2"] / pair)).float().double()
        total = pair + weights["site-3"]
        expected = (north * (pair / total) + x["site-3"] * (weights["site-3"] / total)).float()
        assert torch.equal(value, expected), name


def test_a_node_leaves_out_a_bad_update_and_names_the_site_like_the_server(job_on_toy, scenes, tmp_path, monkeypatch):
    inner = SiteRunner.answer

    def bad(runner, request):
        given = inner(runner, request)
        if request.task == "round" and runner.name == "site-2":
            return Message(given.header, changed(given.pieces, lambda v: v * float("nan")))
        return given

    monkeypatch.setattr(SiteRunner, "answer", bad)
    job = job_on_toy("fedavg", regions=REGIONS, min_sites=2)
    relayed, alone = Relayed(job, scenes, tmp_path / "a").run(), flat(job, scenes, tmp_path / "b")
    (rejected,) = relayed.server.last_record["rejected"]
    assert rejected["site"] == "site-2" and "not finite" in rejected["reason"]
    assert same(relayed.server.state.models.shared, alone.state.models.shared)
    assert timeless(relayed.server.records) == timeless(alone.records)


def test_a_job_fails_if_a_node_leaves_too_few_sites(job_on_toy, scenes, tmp_path):
    def gone(task, region, given):
        if task == "round" and region == "north":
            return Message({})
        return given

    relayed = Relayed(job_on_toy("fedavg", regions=REGIONS, min_sites=2), scenes, tmp_path, change=gone)
    with pytest.raises(FederationError, match="has 1 valid update and needs 2: site-1: the answer of region north is"):
        relayed.run()


def changed(pieces, change):
    return {name: change(value) if value.is_floating_point() else value for name, value in pieces.items()}


def with_header(given, **changes):
    return Message(given.header | changes, given.pieces, given.groups)


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        (lambda g: with_header(g, sites={"site-3": g.header["sites"]["site-1"]}), "names 'site-3', which it was not"),
        (lambda g: with_header(g, sites={"site-1": {"round": 0, "samples": 10**6}}), "its mean contains site-1, but"),
        (lambda g: with_header(g, sites={"site-1": {"round": 7, "samples": 1}}), "it is of round 8, this is round 1"),
        (lambda g: with_header(g, more=1), "unknown key"),
        (lambda g: with_header(g, bytes={"site-1": -1}), "bytes"),
        (lambda g: Message(g.header, changed(g.pieces, lambda v: v + 1e9)), "moved the weights"),
        (lambda g: Message(g.header, changed(g.pieces, lambda v: v * float("nan"))), "not finite"),
        (lambda g: Message(g.header, {}), "pieces are missing"),
        (lambda g: Message(g.header, g.pieces, {"loss": {"value": torch.tensor(1.0)}}), "no region sends in a round"),
        (lambda g: Message(g.header, changed(g.pieces, lambda v: v.double())), "should be torch.float32"),
    ],
)
def test_the_server_refuses_a_forged_answer_of_a_node_for_all_of_its_sites(job_on_toy, scenes, tmp_path, forged, words):
    def change(task, region, given):
        return forged(given) if task == "round" and region == "north" else given

    relayed = Relayed(job_on_toy("fedavg", rounds=1, regions=REGIONS, min_sites=1), scenes, tmp_path, change=change)
    rejected = relayed.run().server.last_record["rejected"]
    assert [one["site"] for one in rejected] == ["site-1", "site-2"]
    for one in rejected:
        assert "the answer of region north is refused: " in one["reason"] and words in one["reason"]


def test_a_node_needs_its_share_of_the_sufficient_replies_rounded_up(job_on_toy, scenes, tmp_path):
    relayed = Relayed(job_on_toy("fedavg", rounds=1, regions=REGIONS, min_sites=2), scenes, tmp_path)
    needed = {}

    def exchange(ask):
        needed[ask.task] = {r: m.header["needed"] for r, m in messages_by_region(ask, relayed.server).items()}
        return relayed.exchange(ask)

    run_federation(relayed.server, exchange)
    assert needed["enrol"] == {"north": 2, "south": 1} and needed["round"] == {"north": 2, "south": 1}


REFUSED = [name for name in method_names() if name in ("krum", "fedmedian", "pfedsis", "qfedavg", "fedld")]


@pytest.mark.parametrize("method", REFUSED)
def test_methods_whose_server_needs_single_updates_are_refused(scenes, tmp_path, method):
    server, _ = open_together(make_job(method, regions=REGIONS), dict(zip(NAMES, scenes, strict=True)), tmp_path)
    with pytest.raises(FederationError, match=f"{method} does not work with regions"):
        server.enrol_messages()


def test_a_region_must_contain_every_site_once(job_on_toy, scenes, tmp_path):
    job = job_on_toy("fedavg", regions={"north": ["site-1", "site-2"]})
    server, _ = open_together(job, dict(zip(NAMES, scenes, strict=True)), tmp_path)
    with pytest.raises(FederationError, match="regions leave out site-3; put every site into a region"):
        server.enrol_messages()
    with pytest.raises(ValueError, match=r"regions\.south names 'site-1', which is in north; name it once"):
        dataclasses.replace(job, regions={"north": ["site-1"], "south": ["site-1"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "regions and privacy do not work together"),
        ({"secure_sums": {"threshold": 2}}, "regions and secure_sums do not work together"),
        ({"regions": {"a b": ["site-1"]}}, "region 'a b' is no folder name"),
        ({"regions": {"north": []}}, "write a list of the region's sites"),
        ({"regions": {"north": "site-1"}}, "write a list of the region's sites"),
    ],
)
def test_a_job_with_regions_refuses_what_is_not_proven(changes, words):
    with pytest.raises(ValueError, match=words):
        Job(**{"name": "x", "bundle": "pvt_fpn", "method": "fedavg", "regions": REGIONS, **changes})


def test_published_models_and_first_weights_of_sites_pass_through_a_node():
    given = Message(
        {"sites": {"site-1": {}, "site-2": {}}, "failures": {"site-3": "late"}, "rejected": {}, "bytes": {}}, {},
        {"site-1:model": {"w": torch.ones(2)}, "site-2:pieces": {"w": torch.zeros(2)}},
    )  # fmt: skip
    replies, failures = split_answer("finish", "north", given, NAMES)
    assert (
        set(replies["site-1"].groups) == {"model"} and not replies["site-1"].pieces and failures == {"site-3": "late"}
    )
    assert torch.equal(replies["site-2"].pieces["w"], torch.zeros(2)) and not replies["site-2"].groups
    with pytest.raises(RejectedUpdate, match="names 'site-3'"):
        split_answer("finish", "north", given, NAMES[:2])
