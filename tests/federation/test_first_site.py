"""No site decides for the others by what it enrols or finishes with: being first, or one of few, gives no power."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from shared_components.federation.messages import FederationError, Message
from tests.federation.conftest import Federation, make_job, rewritten

pytestmark = pytest.mark.usefixtures("toy_bundle")

SITES = ("site-1", "site-2", "site-3")
OTHERWISE = {
    "card": {"kind": "segmentation", "outputs": ["background", "tool"], "inputs": ["image"], "frames": 1},
    "fixed": "0" * 64,
    "start": {"start": "rendered", "sha256": "1" * 64},
    "partition": [{"tensor": "head.weight", "role": "local"}],
    "prepared": "clip " + "2" * 64,
}


def toy(method="fedavg", **changes):
    return make_job(method, bundle="toy", **{"training": {}, "rounds": 1, "min_sites": 2, **changes})


def said(replies, site, **changes):
    reply = replies[site]
    header = {**reply.header, **changes}
    return {**replies, site: dataclasses.replace(reply, header=header)}


# ---- enrolment


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("key", OTHERWISE)
def test_a_site_that_enrols_otherwise_is_left_out_alone(federate, key, site):
    federation = federate(toy(training={"fixed": ["encoder"]}))
    replies = federation.replies()
    if key == "prepared":  # one encoder for all but one
        for other in SITES:
            replies = said(replies, other, prepared="clip " + "1" * 64)
    federation.send(said(replies, site, **{key: OTHERWISE[key]}))
    if federation.asked.task == "enrol":  # the first site's weights are asked of the next
        federation.send(federation.replies())
    others = [other for other in SITES if other != site]
    assert federation.server.state.sites == others == list(federation.asked.messages)
    assert site in federation.server.left_out[site]
    federation.run().finish()
    assert json.loads((federation.server.folder / "run.json").read_text())["left_out"].keys() == {site}


def test_with_two_groups_of_one_size_nobody_can_tell_who_is_wrong(federate, scenes, tmp_path):
    more = Federation(toy(), tmp_path / "runs", [*scenes, scenes[0]], [*SITES, "site-4"])
    replies = more.replies()
    for site in ("site-2", "site-4"):
        replies = said(replies, site, card=OTHERWISE["card"])
    with pytest.raises(FederationError, match="site-1, site-3 and site-2, site-4 differ in their task"):
        more.send(replies)


def test_a_site_that_was_left_out_stays_out_after_a_restart(federate):
    federation = federate(toy(rounds=2))
    federation.send(said(federation.replies(), "site-2", card=OTHERWISE["card"]))
    federation.run(until=1)
    again = federate(toy(rounds=2), names=SITES, resume=True)
    assert again.resumed and list(again.asked.messages) == ["site-1", "site-3"]
    assert again.run().finish().server.state.sites == ["site-1", "site-3"]


@pytest.mark.parametrize(
    "spoil", [lambda w: w + 1e6 / 2, lambda w: 1000 * w, lambda w: w + 0.1], ids=["1e6", "times", "near"]
)
@pytest.mark.parametrize("method", ["fedavg", "mat_fl"])
def test_first_weights_that_the_jobs_start_does_not_give_are_their_sites_fault(federate, method, spoil):
    federation = federate(toy(method))
    replies = federation.replies()
    pieces = {
        name: spoil(value) if value.is_floating_point() else value for name, value in replies["site-1"].pieces.items()
    }
    honest = dict(replies["site-1"].pieces)
    federation.send({**replies, "site-1": Message(replies["site-1"].header, pieces)})
    assert list(federation.server.left_out) == ["site-1"]
    assert "differs by" in federation.server.left_out["site-1"]
    if federation.asked.task == "enrol":
        federation.send(federation.replies())
    assert federation.server.state.sites == ["site-2", "site-3"]
    if method == "fedavg":
        assert all(torch.equal(honest[name], value) for name, value in federation.server.state.models.shared.items())


def test_weights_of_a_file_that_the_server_has_not_are_bounded_by_a_new_networks(federate, tmp_path):
    from .test_initial_weights import given, written

    federation = given(federate(toy(training={"start": "file"})), written(tmp_path / "a.safetensors", 7), SITES)
    replies = federation.replies()
    large = {name: value * 1000 for name, value in replies["site-1"].pieces.items()}
    federation.send({**replies, "site-1": Message(replies["site-1"].header, large)})
    assert "look at the file that it begins from" in federation.server.left_out["site-1"]
    federation.send(federation.replies())
    assert federation.server.state.sites == ["site-2", "site-3"] == list(federation.asked.messages)


# ---- the finish

ODD_MODELS = {
    "another name": lambda model: {**model, "extra": torch.zeros(3)},
    "another shape": lambda model: {name: value[None] for name, value in model.items()},
    "1e30": lambda model: {name: value + 1e30 for name, value in model.items()},
    "int64": lambda model: {name: value.long() for name, value in model.items()},
    "float64": lambda model: {name: value.double() for name, value in model.items()},
    "NaN": lambda model: {name: value * float("nan") for name, value in model.items()},
    "nothing": lambda model: {},
}


@pytest.mark.parametrize("odd", ODD_MODELS)
def test_an_odd_model_of_the_first_giver_excludes_itself_alone(scenes, tmp_path, odd):
    files = [rewritten(path, tmp_path / f"s{i}", publish=["model", "result"]) for i, path in enumerate(scenes)]
    federation = Federation(toy("fedper"), tmp_path / "runs", files, SITES).run()
    replies = federation.replies()
    groups = {name: ODD_MODELS[odd](model) for name, model in replies["site-1"].groups.items()}
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
