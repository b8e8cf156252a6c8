"""The report of everything that leaves a site equals the messages of a real federation."""

import json

import pytest
import torch

from shared_components.core.method import load_method, method_names
from shared_components.core.task import make_task
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, total_bytes
from shared_components.federation.setup.allowed_payload import expect
from shared_components.federation.site import runner as site
from shared_components.federation.site.disclosure import FILE, what_leaves
from tests.federation.conftest import SITES, Federation, make_job, rewritten, same

CLASSES = ("background", "shaft", "wrist", "clasper")
ROUND, FINISH = "round", "finish"
KINDS = ("weights", "extra", "item", "value")


def report_of(job, **options):
    method = load_method(job.method, **job.arguments)
    task = make_task("segmentation", classes=CLASSES)
    return what_leaves(job, expect(job, method, task), **options)


def parts(report, task, *kinds):
    return {p.name: p for p in report.parts if p.task == task and p.kind in (kinds or ("weights", "item", "value"))}


@pytest.mark.parametrize("method", method_names())
def test_the_bytes_of_every_method_are_those_of_its_networks_state(method):
    """By hand: the four roles make up the network's state, and what leaves is GLOBAL, MIXED and the extras."""
    job = make_job(method)
    report = report_of(job, publish=("style", "text"))
    whole = sum(weights.bytes for weights in report.weights)
    assert whole == parts(report, FINISH)["model"].bytes > 100_000
    by_role = {weights.role: weights.bytes for weights in report.weights}
    extras = [part.bytes for part in parts(report, ROUND, "extra").values()]
    assert len(extras) == len(load_method(method, **job.arguments).local.extras)
    assert report.bytes_of(ROUND) == by_role["global"] + by_role["mixed"] + sum(extras)
    assert report.bytes_of(FINISH) == 0 and parts(report, FINISH)["model"].leaves is False


@pytest.mark.parametrize("method", ["pfedsis", "fedper", "fedseg", "qfedavg"])
def test_a_sites_answers_hold_what_its_report_says(federate, job_on_toy, tmp_path, method):
    federation = federate(job_on_toy(method, rounds=1))
    enrolled = federation.replies()
    (folder,) = (tmp_path / "runs" / f"test-{method}").glob("2*")
    saved = json.loads((folder / "site-1" / FILE).read_text())
    names = {kind: {p["name"] for p in saved["parts"] if p["task"] == "enrol" and p["kind"] == kind} for kind in KINDS}
    assert set(enrolled["site-1"].header) - {"items", "round"} == names["value"]
    assert set(enrolled["site-1"].header["items"]) == names["item"]
    federation.send(enrolled)
    reply = federation.replies()["site-1"]
    sent = total_bytes(reply.pieces) + sum(map(total_bytes, reply.groups.values()))
    float64 = sum(v.numel() * 4 for g in reply.groups.values() for v in g.values() if v.dtype == torch.float64)
    assert saved["megabytes"]["round"] == (sent - float64) / 1e6
    names = {kind: {p["name"] for p in saved["parts"] if p["task"] == ROUND and p["kind"] == kind} for kind in KINDS}
    assert (set(reply.groups), set(reply.header) - {"round"}) == (names["extra"], names["value"])


def test_the_report_is_there_before_the_site_answers(federate, tmp_path, monkeypatch, caplog):
    """The report is written even if the site dies while it measures its profile."""
    monkeypatch.setattr(site.SiteRunner, "_items", lambda *_: 1 / 0)
    federation = federate(make_job("fedavg"))
    with caplog.at_level("INFO"), pytest.raises((FederationError, ZeroDivisionError)):
        federation.replies(["site-1"])
    (written,) = (tmp_path / "runs").glob(f"*/*/site-1/{FILE}")
    assert json.loads(written.read_text())["method"] == "fedavg"
    assert "each round sends" in caplog.text and str(written) in caplog.text


def test_consent_and_withholding_decide_about_items_models_and_values():
    job = make_job("pfedsis")
    unknown, none, all_ = (report_of(job, publish=p) for p in (None, (), ("style", "model", "result")))
    assert [parts(r, "enrol")["style"].leaves for r in (unknown, none, all_)] == [None, False, True]
    assert all_.bytes_of(FINISH) == unknown.bytes_of(FINISH) > none.bytes_of(FINISH) == 0
    report = report_of(make_job("fedavg"), publish=(), withhold=("scores", "memory"))
    stays = {(part.task, part.name) for part in report.parts if not part.leaves}
    models = {(FINISH, "model"), (FINISH, "result")}  # nothing is published
    assert stays == models | {(ROUND, "metrics"), (FINISH, "metrics"), (FINISH, "final")} | {
        (task, "memory_mb") for task in ("enrol", ROUND, FINISH)
    }


def test_a_federation_ends_well_where_a_site_withholds_all_that_it_may(federate, scenes, toy_bundle, tmp_path):
    own = rewritten(scenes[1], tmp_path / "withholding", withhold=["loss", "scores", "seconds", "memory"])
    assert load_site(own).withhold == ("loss", "scores", "seconds", "memory")
    federation = Federation(make_job("fedavg"), tmp_path / "runs", [scenes[0], own, scenes[2]], SITES)
    federation.run()
    replies = federation.replies()
    assert set(replies["site-2"].header) == {"round"} and "final" in replies["site-1"].header
    plain = federate(make_job("fedavg"), folder=tmp_path / "plain").run()
    assert same(federation.weights(), plain.weights())
    federation.finish()
    records = federation.server.records
    assert not any("metrics" in r or "loss" in r for r in records if r.get("site") == "site-2")
    assert any("metrics" in r for r in records if r.get("site") == "site-1")


def test_noise_and_secure_sums_change_what_is_said_to_leave():
    privacy = {"clip": 1.0, "noise_multiplier": 4.0, "delta": 1e-5}
    plain, noisy = (report_of(make_job("fedper", **more), publish=("style",)) for more in ({}, {"privacy": privacy}))
    leaving = {(p.task, p.name) for p in noisy.parts if p.leaves}
    assert leaving < {(p.task, p.name) for p in plain.parts if p.leaves}
    assert {name for task, name in leaving if task == ROUND} == {"global pieces", "samples"}
    assert {name for task, name in leaving if task == FINISH} == set()
    assert parts(noisy, ROUND)["samples"].form.startswith("1,")
    assert noisy.bytes_of(ROUND) == plain.bytes_of(ROUND)
    plain, summed = (
        report_of(make_job("fedavg", **more), publish=()) for more in ({}, {"secure_sums": {"threshold": 2}})
    )
    assert "masked" in parts(summed, ROUND)["global pieces"].form
    assert summed.bytes_of(ROUND) == 2 * plain.bytes_of(ROUND)
    assert "sums_key" in parts(summed, "enrol") and "sums_key" not in parts(plain, "enrol")
    assert not any(part.task == "unmask" for part in plain.parts) and parts(summed, "unmask")
