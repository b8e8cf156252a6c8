"""Secure sums in a whole federation: equal to the plain mean, whoever drops out, over kills, and for few methods."""

import json
import math
from functools import partial
from itertools import pairwise

import pytest
import torch

from shared_components.core.method import load_method, method_names
from shared_components.federation.messages import FederationError, Message, SiteRefusal
from shared_components.federation.runs.store import rounds_in
from shared_components.federation.secure_sums.fixed_point import FRACTION_BITS
from shared_components.federation.secure_sums.job_section import HASHES, MASKED, OPENED, SHARES
from shared_components.federation.site.secure_sums import FILE
from tests.federation.conftest import TINY, make_job, same

SECURE = {"threshold": 2}
SUMMED = sorted(name for name in method_names() if load_method(name).server.weighted_sum_only)
TOY = {"bundle": "toy", "training": {**TINY, "iterations": 1}}
NEAR = {"rtol": 2**-23, "atol": 2.0 ** -(FRACTION_BITS + 1)}  # float32's own last bit, and the fixed point's error


def secure_job(method="fedavg", **changes):
    return make_job(method, **{**TOY, "secure_sums": SECURE, **changes})


def failing(federation, *names):
    return {name: f"site {name}: gone" for name in names if name in federation.asked.messages}


@pytest.mark.parametrize("method", SUMMED)
def test_a_round_equals_the_plain_one_to_the_error_of_the_fixed_point(federate, job_on_toy, tmp_path, method):
    """One round: a later training, FedST's server's too, carries a last bit's difference on; FedAdam takes roots."""
    options = {"rounds": 1} | ({"arguments": {"synthetic": "none"}} if method == "fedst" else {})
    plain = federate(job_on_toy(method, **options), folder=tmp_path / "plain").run()
    options = options | {"secure_sums": SECURE}
    masked = federate(job_on_toy(method, **options), folder=tmp_path / "masked").run()
    loose = {"rtol": 1e-4, "atol": 1e-6} if method == "fedadam" else NEAR
    before, after = plain.weights(), masked.weights()
    assert before.keys() == after.keys() and before
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, **loose)


def test_the_sum_is_that_of_the_quantised_weights_to_the_last_bit(toy_bundle, federate, tmp_path):
    """Against Python's whole numbers: what the sites of a plain federation would have sent, rounded and added."""
    plain = federate(make_job("fedavg", **TOY), folder=tmp_path / "a").enrol()
    replies = plain.replies()
    masked = federate(secure_job(rounds=1), folder=tmp_path / "b").run()
    samples = {site: reply.header["samples"] for site, reply in replies.items()}
    for name, value in masked.server.state.models.shared.items():
        summed = [0] * value.numel()
        for site, reply in replies.items():
            for place, weight in enumerate(reply.pieces[name].double().reshape(-1).tolist()):
                summed[place] += samples[site] * round(weight * 2**FRACTION_BITS)
        due = torch.tensor([s / (2**FRACTION_BITS * sum(samples.values())) for s in summed], dtype=torch.float64)
        assert torch.equal(value.reshape(-1), due.to(value.dtype)), name


def test_no_weight_travels_and_the_records_say_who_was_in_the_sum(toy_bundle, federate):
    federation = federate(secure_job(rounds=1)).enrol()
    replies = federation.replies()
    for site, reply in replies.items():
        assert reply.pieces == {} and set(reply.groups) == {MASKED, SHARES, HASHES}
        assert rounds_in(federation.server.folder / site) == [0]
        assert all(value.dtype == torch.int64 for value in reply.groups[MASKED].values())
    federation.send(replies)
    assert federation.asked.task == "unmask" and set(federation.asked.messages) == set(replies)
    record = federation.send(federation.replies())
    assert record["secure_sum"] == ["site-1", "site-2", "site-3"]
    up = federation.server.records[0]["bytes"]["up"]
    parameters = sum(value.numel() for value in federation.server.state.models.shared.values())
    assert up["masked"] == 8 * parameters and up["shares"] < 1000


def test_a_site_that_drops_out_before_its_upload_is_left_out_of_the_sum(toy_bundle, federate, tmp_path):
    weights = []
    for secure in ({}, SECURE):
        job = make_job("fedavg", **TOY, rounds=1, min_sites=2, secure_sums=secure)
        federation = federate(job, folder=tmp_path / str(len(secure))).enrol()
        federation.send(federation.replies(["site-1", "site-3"]), failing(federation, "site-2"))
        if secure:
            assert set(federation.asked.messages) == {"site-1", "site-3"}
            federation.send(federation.replies())
        weights.append(federation.weights())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, **NEAR)


def test_a_site_that_drops_out_after_its_upload_is_in_the_sum_all_the_same(toy_bundle, federate, tmp_path):
    whole = federate(secure_job(rounds=1), folder=tmp_path / "a").run()
    federation = federate(secure_job(rounds=1), folder=tmp_path / "b").enrol()
    federation.send(federation.replies())
    record = federation.send(federation.replies(["site-1", "site-3"]), failing(federation, "site-2"))
    assert record["secure_sum"] == ["site-1", "site-2", "site-3"]
    assert same(whole.weights(), federation.weights())


def test_a_site_that_sends_a_misshapen_vector_is_left_out(toy_bundle, federate):
    federation = federate(secure_job(rounds=1, min_sites=2)).enrol()
    replies = federation.replies()
    groups = replies["site-2"].groups
    name = next(iter(groups[MASKED]))
    groups[MASKED][name] = groups[MASKED][name].float()
    federation.send(replies)
    record = federation.send(federation.replies())
    assert record["secure_sum"] == ["site-1", "site-3"]
    assert "its masked piece" in record["rejected"][0]["reason"]


def test_too_few_that_upload_or_open_end_the_job_by_a_sentence(toy_bundle, federate, tmp_path):
    federation = federate(secure_job(min_sites=1), folder=tmp_path / "a").enrol()
    with pytest.raises(FederationError, match="round 1 has 1 valid update and needs 2"):
        federation.send(federation.replies(["site-1"]), failing(federation, "site-2", "site-3"))
    federation = federate(secure_job(), folder=tmp_path / "b").enrol()
    federation.send(federation.replies())
    with pytest.raises(
        FederationError, match=r"no secure sum: shares were opened by 1 site; .*threshold is 2; site-2: .*gone"
    ):
        federation.send(federation.replies(["site-1"]), failing(federation, "site-2", "site-3"))


def test_a_resume_after_kills_ends_with_the_same_bits_and_no_mask_is_used_twice(toy_bundle, federate, tmp_path):
    """Killed when one site has uploaded; again when all have, and one has opened its shares."""
    straight = federate(secure_job(), folder=tmp_path / "a").run()
    broken = federate(secure_job(), folder=tmp_path / "b").run(until=1)
    first = broken.replies(["site-2"])["site-2"].groups[MASKED]
    again = federate(secure_job(), folder=tmp_path / "b", resume=True).enrol()
    second = again.replies()
    again.send(second)
    again.replies(["site-1"])
    last = federate(secure_job(), folder=tmp_path / "b", resume=True)
    assert last.resumed and last.server.state.round == 1
    last.enrol()
    third = last.replies()
    vectors = [first, second["site-2"].groups[MASKED], third["site-2"].groups[MASKED]]
    for name in first:
        assert not any(torch.any(a[name] == b[name]) for a, b in pairwise(vectors))
    last.send(third)
    assert same(straight.weights(), last.run().weights())


def test_a_second_smaller_sum_of_a_round_is_refused(toy_bundle, federate):
    """The server pretends after the opening that site-3 had not uploaded: the difference would be its weights."""
    federation = federate(secure_job()).enrol()
    federation.send(federation.replies())
    question = federation.asked.messages["site-1"]
    federation.replies(["site-1"])
    federation.replies(["site-1"])  # the very same question may be asked again
    fewer = {site: value for site, value in question.groups[SHARES].items() if site != "site-3"}
    with pytest.raises(SiteRefusal, match="asks to open a second sum of round 1, of other sites"):
        federation.answer("site-1", "unmask", Message(question.header, {}, {SHARES: fewer}))


ROSTERS = {
    "another key of site-2": lambda keys: keys | {"site-2": {"key": "9" * 64}},
    "no site-3": lambda keys: {site: key for site, key in keys.items() if site != "site-3"},
    "a new site site-4": lambda keys: keys | {"site-4": {"key": "9" * 64}},
}


@pytest.mark.parametrize("resume", [False, True], ids=["the same process", "a resume"])
@pytest.mark.parametrize("words", ROSTERS)
def test_a_site_holds_the_server_to_the_sites_that_it_named_first(toy_bundle, federate, words, resume):
    """Every site is shown all sites of the run with their keys, also sites that a round does not ask."""
    federation = federate(secure_job(rounds=3, client_fraction=0.6, min_sites=2)).run(until=1)
    if resume:
        federation = federate(secure_job(rounds=3, client_fraction=0.6, min_sites=2), resume=True).enrol()
    site = next(iter(set(federation.asked.messages) & {"site-1", "site-3"}))
    sums = federation.asked.messages[site].header["sums"]
    assert set(sums["sites"]) < {"site-1", "site-2", "site-3"} == set(sums["keys"])
    kept = federation.files(site).folder / "secure_sums.json"
    if not json.loads(kept.read_text())["keys"]:  # the first round did not ask it
        federation.replies([site])
    with pytest.raises(SiteRefusal, match=f"the server names {words}, unlike in the run's first round"):
        federation.answer(site, "round", changed(federation, site, nonce="0" * 32, keys=ROSTERS[words](sums["keys"])))


def changed(federation, site, **values):
    message = federation.asked.messages[site]
    return Message({**message.header, "sums": {**message.header["sums"], **values}}, message.pieces, message.groups)


def test_a_second_vector_and_other_sites_keys_and_nonces_of_a_round_are_refused(toy_bundle, federate):
    federation = federate(secure_job()).enrol()
    sums = federation.asked.messages["site-1"].header["sums"]
    answer = partial(federation.answer, "site-1")
    for site, words in (("site-1", "key for site-1 that is not its own"), ("site-3", "same key for two sites")):
        with pytest.raises(SiteRefusal, match=words):
            answer("round", changed(federation, "site-1", keys=sums["keys"] | {site: sums["keys"]["site-2"]}))
    for bad in ({"nonce": "../x"}, {"nonce": None}, {"keys": {}}, {"keys": dict.fromkeys(sums["sites"], "k")},
                {"sites": ["site-2", "site-3"]}, {"sites": 3}, {"total": "many"}, {"total": 0}):  # fmt: skip
        with pytest.raises(SiteRefusal, match=r"(sums\.|no keys)"):
            answer("round", changed(federation, "site-1", **bad))
    federation.replies(["site-1"])
    with pytest.raises(SiteRefusal, match="second vector under the masks of one attempt"):
        federation.replies(["site-1"])  # a runner keeps nothing but the file
    with pytest.raises(SiteRefusal, match="round 1 again for a sum of other sites"):
        answer("round", changed(federation, "site-1", nonce="0" * 32, sites=["site-1", "site-2"]))
    with pytest.raises(SiteRefusal, match="that the site has no part in"):
        answer("unmask", changed(federation, "site-1", nonce="2" * 32))
    with pytest.raises(SiteRefusal, match="a sum of 0 sites; the threshold is 2"):
        answer("unmask", federation.asked.messages["site-1"])


def test_a_plain_job_opens_nothing(toy_bundle, federate):
    federation = federate(make_job("fedavg", **TOY)).enrol()
    message = federation.asked.messages["site-1"]
    with pytest.raises(SiteRefusal, match="unmask message: 'sums' is missing"):
        federation.answer("site-1", "unmask", message)
    message.header["sums"] = {"nonce": "0" * 32, "sites": ["site-1", "site-2"]}
    with pytest.raises(SiteRefusal, match="the job has no secure sums to open"):
        federation.answer("site-1", "unmask", message)


def test_the_file_of_secrets_is_the_sites_alone_and_its_loss_is_told(toy_bundle, federate, tmp_path):
    federation = federate(secure_job()).run(until=1)
    path = federation.server.folder / "site-1" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    kept = path.read_text()
    again = federate(secure_job(), resume=True)
    for content, words in ((None, "is gone"), ("{", "cannot be read"), ("{}", "cannot be read"), ("[]", "cannot be")):
        path.unlink()
        if content is not None:
            path.write_text(content)
        with pytest.raises(SiteRefusal, match=f"{FILE} {words}.*put it back, or start a new run"):
            again.replies(["site-1"])
        path.write_text(kept)


def test_weights_beyond_the_sum_or_the_largest_change_are_refused_by_the_site_itself(toy_bundle, federate, monkeypatch):
    """If a site did not refuse, the mean that went too far ends the job and blames no single site."""
    federation = federate(secure_job()).enrol()
    message = changed(federation, "site-1", total=2**40)
    with pytest.raises(SiteRefusal, match=r"piece .* beyond .*, the limit of a secure sum .*lower secure_sums"):
        federation.answer("site-1", "round", message)
    job = secure_job(largest_change=1e-9)
    with pytest.raises(SiteRefusal, match=r"moved the weights by .* \(largest_change\)"):
        federate(job).enrol().replies(["site-1"])
    monkeypatch.setattr("shared_components.federation.site.secure_sums.check_pieces", lambda *a, **k: None)
    federation = federate(job).enrol()
    federation.send(federation.replies())
    with pytest.raises(FederationError, match=r"does not show which site is wrong.*; ask site-1, site-2, site-3"):
        federation.send(federation.replies())


@pytest.mark.parametrize("method", [name for name in method_names() if name not in SUMMED])
def test_other_methods_are_refused_by_the_server(toy_bundle, federate, method):
    with pytest.raises(FederationError, match=f"{method} does not work with secure_sums"):
        federate(secure_job(method))


@pytest.mark.parametrize("threshold", [4, 5])
def test_a_threshold_above_the_number_of_sites_is_refused(toy_bundle, federate, threshold):
    with pytest.raises(FederationError, match="of 3 sites needs a threshold above half"):
        federate(secure_job(secure_sums={"threshold": threshold}))


@pytest.mark.parametrize(
    "section, words",
    [
        ({"treshold": 2}, "unknown key 'secure_sums.treshold'"),
        ({"fraction_bits": 20}, "'secure_sums.threshold' is missing"),
        *(({"threshold": bad}, f"secure_sums.threshold is {bad}") for bad in (1, 2.0, True, math.nan)),
        ({"threshold": 2, "fraction_bits": 49}, "secure_sums.fraction_bits is 49"),
        ("on", "secure_sums is 'on'"),
    ],
)
def test_an_odd_section_is_refused_by_key(section, words):
    with pytest.raises(ValueError, match=words):
        make_job("fedavg", secure_sums=section)


@pytest.mark.parametrize("key", ["stolen", "zero", "none"])
def test_a_site_whose_key_would_stop_all_others_is_left_out(toy_bundle, federate, key):
    federation = federate(secure_job(min_sites=2, rounds=1))
    replies = federation.replies()
    header = replies["site-3"].header
    if key == "none":
        del header["sums_key"]
    else:
        header["sums_key"] = replies["site-2"].header["sums_key"] if key == "stolen" else {"key": "0" * 64}
    federation.send(replies)
    assert federation.server.state.sites == ["site-1", "site-2"] and "key" in federation.server.left_out["site-3"]
    assert federation.run().server.last_record["secure_sum"] == ["site-1", "site-2"]


@pytest.mark.parametrize("bad", [{}, {OPENED: {}}, {OPENED: {"site-9": torch.zeros(1, 33, dtype=torch.uint8)}}])
def test_an_odd_opening_of_one_site_is_passed_over(toy_bundle, federate, bad):
    federation = federate(secure_job(rounds=1)).enrol()
    federation.send(federation.replies())
    replies = federation.replies()
    replies["site-2"] = Message(replies["site-2"].header, {}, bad)
    assert federation.send(replies)["secure_sum"] == ["site-1", "site-2", "site-3"]
