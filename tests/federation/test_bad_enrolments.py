"""A bad enrolment or final model excludes only its site, even if the site is the first or among few."""

import dataclasses
import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file

from shared_components.federation.messages import FederationError, Message
from shared_components.federation.server.enrolment import _minority
from tests.federation.conftest import SITES, Federation, make_job, same
from tests.federation.test_initial_weights import given, written

pytestmark = pytest.mark.usefixtures("toy_bundle")

OTHERWISE = {  # changes in the header of a site's enrolment, and words of the refusal
    "card": (
        {"kind": "segmentation", "outputs": ["background", "tool"], "inputs": ["image"], "frames": 1},
        "task|its network",
    ),
    "fixed": ("0" * 64, "site-. enrols with fixed weights other than the job's"),
    "start": ({"start": "rendered", "sha256": "1" * 64}, "site-. enrols with start other than the job's"),
    "partition": ([{"tensor": "head.weight", "role": "local"}], "network partition other than the job's"),
    "prepared": ("clip " + "2" * 64, "their encoder"),
    "samples": ("four", "site-.: its answer to 'enrol': samples is 'four'.*; use one version of surgfl everywhere"),
}


def toy(method="fedavg", **changes):
    return make_job(method, bundle="toy", **{"training": {}, "rounds": 1, "min_sites": 2, **changes})


def said(replies, site, **changes):
    header = {**replies[site].header, **changes}
    return {**replies, site: dataclasses.replace(replies[site], header=header)}


@pytest.mark.parametrize("site", SITES[:2])  # the first and another
@pytest.mark.parametrize("key", OTHERWISE)
def test_a_site_that_enrols_otherwise_is_left_out_alone(federate, key, site):
    federation = federate(toy(training={"fixed": ["encoder"]}))
    replies = federation.replies()
    if key == "prepared":  # one encoder for all but one
        for other in SITES:
            replies = said(replies, other, prepared="clip " + "1" * 64)
    value, words = OTHERWISE[key]
    federation.send(said(replies, site, **{key: value}))
    if federation.asked.task == "enrol":  # the first site's weights are asked of the next
        federation.send(federation.replies())
    others = [other for other in SITES if other != site]
    assert federation.server.state.sites == others == list(federation.asked.messages)
    assert site in federation.server.left_out[site] and re.search(words, federation.server.left_out[site])
    federation.run().finish()
    assert json.loads((federation.server.folder / "run.json").read_text())["left_out"].keys() == {site}


def test_with_two_groups_of_one_size_nobody_can_tell_who_is_wrong(federate, scenes, tmp_path):
    more = Federation(toy(), tmp_path / "runs", [*scenes, scenes[0]], [*SITES, "site-4"])
    replies = more.replies()
    for site in ("site-2", "site-4"):
        replies = said(replies, site, card=OTHERWISE["card"][0])
    with pytest.raises(FederationError, match="site-1, site-3 and site-2, site-4 differ in their task"):
        more.send(replies)


def test_a_message_names_a_few_of_many_sites_and_counts_the_others():
    values = {f"site-{i}": "abc"[i % 3] for i in range(60)}
    with pytest.raises(FederationError) as error:
        _minority("task", values, "site.yaml")
    assert str(error.value).startswith("site-0, site-3, site-6, site-9, site-12, site-15 and 14 more and site-1, ")
    assert str(error.value).count("and 14 more") == 3 and len(str(error.value)) < 300


def test_a_site_that_was_left_out_stays_out_after_a_restart(federate):
    federation = federate(toy(rounds=2))
    federation.send(said(federation.replies(), "site-2", card=OTHERWISE["card"][0]))
    federation.run(until=1)
    again = federate(toy(rounds=2), names=SITES, resume=True)
    assert again.resumed and list(again.asked.messages) == ["site-1", "site-3"]
    assert again.run().finish().server.state.sites == ["site-1", "site-3"]


SPOILT = {  # first weights that the job's start does not give, and words of the refusal
    "1e6": (lambda value: value + 1e6 / 2, "differs by"),
    "times": (lambda value: 1000 * value, "differs by"),
    "near": (lambda value: value + 0.1, "differs by"),
    "NaN": (lambda value: value * math.nan, "not finite"),
    "large": (lambda value: value + 1e30, r"beyond 1e\+06"),
    "half": (lambda value: value.half(), r"torch.float16 \(.*\); its network has torch.float32"),
    "none": (lambda value: None, "its piece .* is None"),
}


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("method", ["fedavg", "mat_fl"])
def test_first_weights_that_the_jobs_start_does_not_give_are_their_sites_fault(federate, method, spoil):
    change, words = SPOILT[spoil]
    federation = federate(toy(method))
    replies = federation.replies()
    honest = dict(replies["site-1"].pieces)
    pieces = {name: change(value) if value.is_floating_point() else value for name, value in honest.items()}
    federation.send({**replies, "site-1": Message(replies["site-1"].header, pieces)})
    assert list(federation.server.left_out) == ["site-1"]
    assert re.search(words, federation.server.left_out["site-1"])
    if federation.asked.task == "enrol":
        assert list(federation.asked.messages) == ["site-2"]
        federation.send(federation.replies())
    assert federation.server.state.sites == ["site-2", "site-3"]
    assert {message.header["number"] for message in federation.asked.messages.values()} == {1, 2}
    if method == "fedavg":
        assert same(honest, federation.server.state.models.shared)


def test_an_undeclared_tensor_at_enrolment_is_refused(federate):
    federation = federate(toy(min_sites=0))
    replies = federation.replies()
    replies["site-1"].pieces["ballast"] = torch.zeros(1)
    with pytest.raises(FederationError, match=r"site-1 enrols with other pieces .* the first is ballast"):
        federation.send(replies)


def test_weights_of_a_file_that_the_server_has_not_are_bounded_by_a_new_networks(federate, tmp_path):
    federation = given(federate(toy(training={"start": "file"})), written(tmp_path / "a.safetensors", 7), SITES)
    replies = federation.replies()
    large = {name: value * 1000 for name, value in replies["site-1"].pieces.items()}
    federation.send({**replies, "site-1": Message(replies["site-1"].header, large)})
    assert "look at the file that it begins from" in federation.server.left_out["site-1"]
    federation.send(federation.replies())
    assert federation.server.state.sites == ["site-2", "site-3"] == list(federation.asked.messages)


@pytest.mark.parametrize(
    "change",
    [{"seconds": {"total": 10**400}}, {"header": []}, {"pieces": {"head.bias": None}}, {"final": "text"}],
    ids=["seconds", "header", "piece", "final"],
)
def test_one_sites_answer_ends_nobody_elses_job(federate, change):
    federation = federate(toy()).enrol()
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


ODD_MODELS = {
    "another name": lambda model: {**model, "extra": torch.zeros(3)},
    "another shape": lambda model: {name: value[None] for name, value in model.items()},
    "1e30": lambda model: {name: value + 1e30 for name, value in model.items()},
    "int64": lambda model: {name: value.long() for name, value in model.items()},
    "float64": lambda model: {name: value.double() for name, value in model.items()},
    "NaN": lambda model: {name: value * float("nan") for name, value in model.items()},
    "nothing": lambda model: {},
}


@pytest.mark.parametrize("bad", ODD_MODELS)
def test_a_bad_model_of_the_first_site_excludes_only_itself(publishing, bad):
    federation = publishing(toy("fedper"), *[["model", "result"]] * 3).run()
    replies = federation.replies()
    groups = {name: ODD_MODELS[bad](model) for name, model in replies["site-1"].groups.items()}
    honest = [replies[site].groups["model"] for site in SITES[1:]]
    samples = [federation.server.state.profiles[site].samples for site in SITES[1:]]
    replies["site-1"] = dataclasses.replace(replies["site-1"], groups=groups)
    with pytest.raises(StopIteration):
        federation.send(replies)
    (record,) = (r for r in federation.server.records if r["kind"] == "outsider")
    assert record["sites"] == ["site-2", "site-3"]
    folder = federation.server.folder / "server"
    assert sorted(path.stem for path in (folder / "sites").iterdir()) == ["site-2", "site-3"]
    for name, value in load_file(folder / "model.safetensors").items():
        due = sum(m[name].double() * n for m, n in zip(honest, samples, strict=True)) / sum(samples)
        torch.testing.assert_close(value, due.to(value.dtype))
