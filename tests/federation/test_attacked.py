"""A federation with one hostile site: what it changes, and that what is attacked is what a site really sends."""

import pytest
import torch

from evidence.attacks.labels import flip_site
from evidence.attacks.replies import attacked, noise, sign_flip
from evidence.attacks.sent import train_round
from shared_components.core.method import load_method
from shared_components.core.partition import Role, cut, paste
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.protocol import Answers
from shared_components.federation.site.site_setup import set_up_site
from tests.federation.conftest import TINY, Federation, make_job

ATTACKER = "site-3"


@pytest.fixture
def hostile(federate, toy_bundle, tmp_path):
    """Return a function that runs two FedAvg rounds with an attack and gives weights and refusals."""

    def run(attack, name, **changes):
        federation = federate(make_job("fedavg", bundle="toy", **changes), folder=tmp_path / name).enrol()
        refused = []
        while federation.asked.task == "round":
            answers = Answers(federation.replies())
            given = attacked(federation.asked, answers, ATTACKER, attack, round=federation.server.state.round, seed=1)
            federation.send(given.replies)
            refused += federation.server.last_record["rejected"]
        return federation.weights(), refused

    return run


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("attack", [sign_flip(times=-1), noise(times=0)], ids=["sign flip", "noise"])
def test_an_attack_without_strength_changes_no_bit_of_two_rounds(hostile, attack):
    honest, _ = hostile(None, "honest")
    found, _ = hostile(attack, "attacked")
    assert equal(honest, found)
    other, _ = hostile(sign_flip(times=1), "flipped")
    assert not equal(honest, other)


def test_a_flipped_sign_moves_the_mean_by_what_is_claimed(federate, toy_bundle):
    """Three sites of as many frames: the mean moves by (a + b - c) / 3."""
    federation = federate(make_job("fedavg", bundle="toy", rounds=1)).enrol()
    start = {name: value.double() for name, value in federation.server.state.models.shared.items()}
    answers = Answers(federation.replies())
    moved = [{name: reply.pieces[name].double() - start[name] for name in start} for reply in answers.replies.values()]
    given = attacked(federation.asked, answers, ATTACKER, sign_flip(times=1), round=0)
    federation.send(given.replies)
    for name, value in federation.server.state.models.shared.items():
        if value.is_floating_point():
            expected = start[name] + (moved[0][name] + moved[1][name] - moved[2][name]) / 3
            torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-5)


def test_an_attack_that_goes_too_far_is_refused_by_name_and_the_others_go_on(hostile):
    weights, refused = hostile(sign_flip(times=1e9), "far", min_sites=2)
    assert [one["site"] for one in refused] == [ATTACKER] * 2
    assert "it moved the weights by" in refused[0]["reason"]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_flipped_labels_are_an_attack_and_none_flipped_are_none(federate, toy_bundle, scenes, tmp_path):
    found = {}
    for share in (None, 0.0, 1.0):
        sites = list(scenes)
        if share is not None:
            sites[2] = flip_site(scenes[2], tmp_path / f"share-{share}", share=share)
        job = make_job("fedavg", bundle="toy", rounds=1)
        names = ("site-1", "site-2", "site-3")
        found[share] = Federation(job, tmp_path / f"runs-{share}", sites, names).run().weights()
    assert equal(found[None], found[0.0]) and not equal(found[None], found[1.0])


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_attacked_is_what_the_site_sends(federate, toy_bundle, scenes, steps):
    """A recorded round is bit for bit the site's own reply, and its LOCAL part is not in it."""
    job = make_job("fedper", bundle="toy", rounds=1, training={**TINY, "iterations": steps})
    federation = federate(job).enrol()
    message = federation.asked.messages["site-2"]
    reply = federation.sites["site-2"].answer("round", message)
    site = load_site(scenes[1])
    bench = set_up_site(job, site)
    paste(message.pieces, bench.partition, bench.network.state_dict())
    dataset = SampleDataset(samples(site, "train"), height=TINY["height"], width=TINY["width"], site=site)
    sent = train_round(
        bench.network, load_method("fedper"), bench.task, dataset, bench.bundle.training, round=0, site=1
    )
    pieces = cut(sent.after, sent.partition, Role.GLOBAL, Role.MIXED)
    assert set(pieces) == set(reply.pieces) and equal(pieces, reply.pieces)
    assert len(sent.batches) == steps and not any(name.startswith("head") for name in reply.pieces)
