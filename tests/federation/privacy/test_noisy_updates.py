"""Noisy updates: one per question, entered in the ledger, and nothing else leaves."""

import dataclasses
import math
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml

from shared_components.core.method import load_method, method_names
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError, Message, SiteRefusal
from shared_components.federation.messages.parse import parse_request
from shared_components.federation.privacy.gaussian import clip_and_noise, epsilon
from shared_components.federation.runs.store import RoundFiles
from shared_components.federation.site.noisy_updates import check_entered, check_stripped
from shared_components.flare.outgoing_check import check_reply
from shared_components.networks import bundle_config
from tests.federation.conftest import NOT_TINY, empty, make_job, same
from tests.federation.privacy.conftest import NOISE, entries, plain_job, private_job

COVERED = (
    "cd2_pfed ditto fedadam fedavg fedavg_cluster fedavgm fedbn feddp fedhca2 fedld fedmedian fedper fedprox fedrep "
    "fedsam fedst krum local mat_fl multi_krum norm_bound pfedla surgfed trimmed_mean"
).split()
NOT_TINY_JOBS = {"pfedsis": {"arguments": {"sge": False}}}
BUNDLES = bundle_config.bundles_folder
CLIP = 1e-2
pytestmark = pytest.mark.usefixtures("toy_bundle")
NOT_COVERED = {
    "centralised": "pools the sites' frames",
    "fedas": "sends 'fisher' beside the weights",
    "fedseg": "sends 'prototypes' beside the weights",
    "pfedsis": "sends 'sensitivity' beside the weights",
    "qfedavg": "sends 'loss' beside the weights",
}


def test_every_method_is_covered_or_refused():
    assert sorted([*COVERED, *NOT_COVERED]) == method_names()


@pytest.mark.parametrize("method", sorted({*COVERED} - NOT_TINY))
def test_a_covered_method_runs_to_its_end_and_sends_noisy_weights_alone(federate, scenes, method):
    runs_privately(federate, scenes, private_job(method))


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(NOT_TINY & {*COVERED, *NOT_TINY_JOBS}))
def test_a_covered_method_of_a_network_of_its_own_runs_too(federate, scenes, monkeypatch, method):
    monkeypatch.setattr(bundle_config, "bundles_folder", BUNDLES)
    runs_privately(federate, scenes, make_job(method, privacy=NOISE, **NOT_TINY_JOBS.get(method, {})))


def runs_privately(federate, scenes, job):
    job = dataclasses.replace(job, rounds=max(2, load_method(job.method, **job.arguments).requires.min_rounds))
    federation = federate(job)
    while federation.asked.task != "finish":
        replies = federation.replies()
        for reply in replies.values():
            check_stripped(reply)
        federation.send(replies)
    assert all(bool(torch.isfinite(v).all()) for v in federation.weights().values())
    federation.finish()
    sent = 0 if job.method == "local" else job.rounds
    assert [len(entries(path)) for path in scenes] == [sent] * 3
    assert federation.server.last_record["epsilon"] == pytest.approx(epsilon({1.0: sent}, 1e-5))
    assert not federation.server.last_record["rejected"]


@pytest.mark.parametrize("method", NOT_COVERED)
def test_a_method_that_sends_more_is_refused_by_name_on_both_sides(federate, monkeypatch, method):
    words = f"{method} {NOT_COVERED[method]}.*does not cover"
    with pytest.raises(FederationError, match=words):
        federate(private_job(method))
    monkeypatch.setattr("shared_components.federation.server.received_updates.why_not_private", lambda method: "")
    with pytest.raises(FederationError, match=words):
        federate(private_job(method)).enrol()


def test_what_depends_on_the_data_stays_and_what_the_site_keeps_is_not_noisy(federate, scenes, tmp_path):
    """LOCAL pieces, optimizer and the site's files equal the same round without noise; consent changes nothing."""
    for path in scenes:
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "publish": ["style", "model"]}))
    plain = federate(plain_job("fedper"), folder=tmp_path / "plain").enrol()
    noisy = federate(private_job("fedper"), folder=tmp_path / "noisy")
    for reply in noisy.replies().values():
        assert reply.header["samples"] == 1 and reply.header["items"] == {} and not reply.groups
    noisy.enrol()
    want, sent = plain.replies(), noisy.replies()
    for name, reply in sent.items():
        assert reply.header == {"round": 0, "samples": 1} and not reply.groups
        assert reply.pieces.keys() == want[name].pieces.keys()
        assert all(not torch.equal(reply.pieces[n], v) for n, v in want[name].pieces.items())
        kept = [f.files(name).load()[1] for f in (plain, noisy)]
        assert same(*kept)
    noisy.send(sent)
    noisy.send(noisy.replies())
    for reply in noisy.replies().values():
        assert reply.header == {"round": 2} and empty(reply)
    noisy.finish()
    assert (noisy.server.folder / "site-1" / "final.json").is_file()
    records = (noisy.server.folder / "server" / "rounds.jsonl").read_text()
    assert not any(word in records for word in ("loss", "dice", "samples", "memory", '"total"'))


def test_the_update_is_clipped_and_has_the_jobs_noise(federate):
    """With 5,000 numbers, the standard deviation is z C, to 3 %."""
    federation = federate(private_job(privacy={"clip": 0.2, "noise_multiplier": 3.0}), names=("site-1",))
    federation.sites["site-1"].random = np.random.default_rng(0).bytes
    federation.enrol()
    received = federation.asked.messages["site-1"].pieces
    sent = federation.replies()["site-1"].pieces
    noise = torch.cat([(sent[n].double() - v.double()).flatten() for n, v in received.items() if v.is_floating_point()])
    assert float(noise.std()) == pytest.approx(0.6, rel=0.03)
    assert entries(federation.sites["site-1"].find_site(None, 0).path)[0].clipped


def test_zero_noise_and_no_clip_is_the_run_without_privacy(federate, monkeypatch, tmp_path):
    plain = federate(plain_job("fedper"), folder=tmp_path / "plain").run()

    def silent(began, trained, **known):
        return clip_and_noise(began, trained, clip=math.inf, noise_multiplier=0)

    monkeypatch.setattr("shared_components.federation.site.noisy_updates.clip_and_noise", silent)
    # every site of these scenes has as many frames, so that one each weighs the same
    assert len({profile.samples for profile in plain.server.state.profiles.values()}) == 1
    noisy = federate(private_job("fedper"), folder=tmp_path / "noisy").run()
    counts = {name for name in plain.weights() if name.endswith("num_batches_tracked")}  # stay as received
    weights = [{n: v for n, v in f.weights().items() if n not in counts} for f in (plain, noisy)]
    assert counts and same(*weights)


def test_running_variances_do_not_fall_below_zero(federate):
    job = private_job(privacy={"clip": 5.0, "noise_multiplier": 5.0})
    federation = federate(job).enrol()
    for reply in federation.replies().values():
        assert float(reply.pieces["encoder.1.running_var"].min()) >= 0
        assert float(reply.pieces["encoder.1.running_mean"].min()) < 0
        assert int(reply.pieces["encoder.1.num_batches_tracked"]) == 0
    assert not federation.run().server.last_record["rejected"]


def a_round(federate):
    federation = federate(private_job(), names=("site-1",)).enrol()
    asked = parse_request("round", federation.asked.messages["site-1"])
    return asked, federation.replies()["site-1"], federation.sites["site-1"].find_site(federation.server.job, 0)


def test_the_filter_lets_only_an_accounted_update_pass_and_nothing_that_the_noise_does_not_cover(federate):
    asked, reply, site = a_round(federate)
    check_reply(reply, asked, site)
    other = {name: value + 1e-3 for name, value in reply.pieces.items()}
    with pytest.raises(ValueError, match=r"is not the one that .*site.privacy.jsonl accounts for; nothing was sent"):
        check_reply(Message(reply.header, other), asked, site)
    for moved in ({"run": "20200101-000000"}, {"round": 1}, {"job": "other"}):
        place = {"job": "test-fedavg", "run": asked.run, "round": 0, **moved}
        with pytest.raises(ValueError, match=r"is not the one that .*site.privacy.jsonl accounts for"):
            check_entered(reply, site, **place)
    measured = {"loss": {"segmentation": 0.5}, "metrics": {}, "seconds": {"total": 1.0}, "memory_mb": 3.0, "samples": 7}
    for key, value in measured.items():
        with pytest.raises(ValueError, match=r"not covered by the job's privacy; nothing was sent"):
            check_reply(Message({**reply.header, key: value}, reply.pieces), asked, site)
    with pytest.raises(ValueError, match="style is not covered"):
        check_reply(Message(reply.header, reply.pieces, {"style": {}}), asked, site)


def test_the_same_question_has_the_same_answer_and_costs_once_and_a_damaged_answer_counts_again(federate, scenes):
    federation = federate(private_job()).enrol()
    first, second = federation.replies(), federation.replies()
    assert all(same(first[name].pieces, second[name].pieces) for name in first)
    assert [len(entries(path)) for path in scenes] == [1, 1, 1]
    path = federation.server.folder / "site-1" / "sent" / "round-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert not same(first["site-1"].pieces, federation.replies()["site-1"].pieces)
    assert len(entries(scenes[0])) == 2


def test_a_killed_round_is_answered_as_before_after_a_resume(federate, scenes, tmp_path):
    broken = federate(private_job(), folder=tmp_path / "b").run(until=1)
    sent = broken.replies(names=["site-2"])["site-2"]
    again = federate(private_job(), folder=tmp_path / "b", resume=True).enrol()
    assert again.server.state.round == 1
    assert same(again.replies(names=["site-2"])["site-2"].pieces, sent.pieces)
    again.run().finish()
    assert [len(entries(path)) for path in scenes] == [2, 2, 2]


@pytest.mark.parametrize("key", ["pieces", "items", "groups"])
def test_another_question_in_the_same_round_counts_again(federate, scenes, key):
    federation = federate(private_job(), names=("site-1",)).enrol()
    message = federation.asked.messages["site-1"]
    first = federation.replies()["site-1"]
    if key == "pieces":
        next(iter(message.pieces.values())).flatten()[0].add_(1)
    elif key == "items":
        message.header["items"] = {"style": [None]}
    else:
        message.groups["more"] = {"x": torch.zeros(1)}
    assert not same(first.pieces, federation.replies()["site-1"].pieces)
    assert len(entries(scenes[0])) == 2


def test_it_is_entered_before_it_is_kept(federate, scenes, monkeypatch):
    """Killed between the two, a site has counted an update that never left, and never sends one uncounted."""
    federation = federate(private_job(), names=("site-1",)).enrol()

    kept = type("Kept", (RoundFiles,), {"save": Mock(side_effect=KeyboardInterrupt)})
    monkeypatch.setattr("shared_components.federation.site.noisy_updates.RoundFiles", kept)
    with pytest.raises(KeyboardInterrupt):
        federation.replies()
    assert len(entries(scenes[0])) == 1


@pytest.mark.parametrize(
    "privacy, words",
    [
        ({"clip": 1.0}, "'privacy.noise_multiplier' is missing"),
        ({"noise_multiplier": 1.0}, "'privacy.clip' is missing"),
        ({**NOISE, "epsilon": 1.0}, "unknown key 'privacy.epsilon'; known keys: clip"),
        ({**NOISE, "noise_multiplier": 0}, "privacy.noise_multiplier is 0; it is a number, above 0"),
        *(({**NOISE, "clip": bad}, f"privacy.clip is {bad!r}") for bad in (math.inf, 0, -1, math.nan, "1", True, None)),
        *(({**NOISE, "delta": bad}, f"privacy.delta is {bad}") for bad in (0, 0.2)),
        ("strong", "privacy is 'strong'"),
    ],
)
def test_a_wrong_section_of_a_job_is_refused_by_its_key(privacy, words):
    with pytest.raises(ValueError, match=f"job test-fedavg: {words}"):
        private_job(privacy=privacy)


def test_no_later_message_takes_the_noise_away(federate):
    federation = federate(private_job(), names=("site-1",)).enrol()
    message = federation.asked.messages["site-1"]
    for privacy in ({}, {**NOISE, "noise_multiplier": 1e-6}):
        message.header["job"] = {**message.header["job"], "privacy": privacy}
        with pytest.raises(SiteRefusal, match=r"has another privacy.* than the site enrolled with"):
            federation.replies()


def test_an_audit_of_real_training_proves_no_more_than_is_claimed(federate, scenes, tmp_path):
    """Guess from an update which of two sites' data sets was trained on."""
    updates = []
    for number in (0, 1):
        path = tmp_path / f"world-{number}" / "site.yaml"
        path.parent.mkdir()
        shutil.copy(scenes[number], path)
        federation = federate(plain_job(rounds=1), names=("site-1",), folder=path.parent / "runs")
        federation.sites["site-1"].find_site = lambda job, i, path=path: load_site(path)
        federation.enrol()
        began = federation.asked.messages["site-1"].pieces
        updates.append(federation.replies()["site-1"].pieces)
    names = [name for name, value in began.items() if value.is_floating_point()]
    began, *worlds = ({"all": torch.cat([one[n].flatten() for n in names])} for one in (began, *updates))
    means = [clip_and_noise(began, one, clip=CLIP, noise_multiplier=0)[0]["all"] for one in worlds]
    towards = means[1] - means[0]
    z, trials, random = float(towards.norm()) / (3 * CLIP), 1500, np.random.default_rng(0).bytes

    def seen(world):
        for _ in range(trials):
            sent, _ = clip_and_noise(began, world, clip=CLIP, noise_multiplier=z, random=random)
            yield float(((sent["all"] - began["all"]) * towards).sum())

    threshold = np.quantile(list(seen(worlds[0])), 0.98)
    false, true = (np.mean([value > threshold for value in seen(world)]) for world in worlds)
    margin = 3.3 * math.sqrt(0.25 / trials)  # of both, at 99.9 %
    proved = math.log(max(true - margin - 0.01, 1e-9) / (false + 3.3 * math.sqrt(false * (1 - false) / trials)))
    assert 1.0 < proved <= epsilon({z: 1}, 0.01)


def test_what_is_cut_is_what_the_noise_covers(federate):
    """Every floating piece of the reply has moved by noise, GLOBAL and MIXED ones alike."""
    federation = federate(private_job("pfedla"), names=("site-1", "site-2")).enrol()
    message = federation.asked.messages["site-1"]
    reply = federation.replies(names=["site-1"])["site-1"]
    assert reply.pieces.keys() == message.pieces.keys()
    assert all(float((reply.pieces[n] - v).std()) > 0.25 for n, v in message.pieces.items() if v.numel() > 50)
