"""A federation with one hostile site: what it changes, and that what is attacked is what a site really sends."""

import pytest
import torch

from evidence.attacks.labels import flip_site
from evidence.attacks.replies import attacked, sign_flip
from evidence.attacks.sent import train_round
from shared_components.core.method import load_method
from shared_components.core.partition import Role, cut, paste
from shared_components.data.dataset import SampleDataset
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.protocol import parse_answers
from shared_components.federation.setup.site_setup import set_up_site
from tests.federation.conftest import SITES, TINY, Federation, make_job, same

ATTACKER = "site-3"


def test_a_flipped_sign_moves_the_mean_by_what_is_claimed(federate, toy_bundle):
    """Three sites of as many frames: the mean moves by (a + b - c) / 3."""
    federation = federate(make_job("fedavg", bundle="toy", rounds=1)).enrol()
    start = {name: value.double() for name, value in federation.server.state.models.shared.items()}
    answers = parse_answers("round", federation.replies())
    moved = [{name: reply.pieces[name].double() - start[name] for name in start} for reply in answers.replies.values()]
    hostile = attacked(federation.asked, answers, ATTACKER, sign_flip(times=1), round=0)
    federation.send(hostile.replies)
    for name, value in federation.server.state.models.shared.items():
        if value.is_floating_point():
            expected = start[name] + (moved[0][name] + moved[1][name] - moved[2][name]) / 3
            torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=1e-5)


def test_an_attack_that_goes_too_far_is_refused_by_name_and_the_others_go_on(federate, toy_bundle):
    federation = federate(make_job("fedavg", bundle="toy", min_sites=2)).enrol()
    while federation.asked.task == "round":
        number, answers = federation.server.state.round, parse_answers("round", federation.replies())
        hostile = attacked(federation.asked, answers, ATTACKER, sign_flip(times=1e9), round=number, seed=1)
        (refused,) = federation.send(hostile.replies)["rejected"]
        assert refused["site"] == ATTACKER and "it moved the weights by" in refused["reason"]
    assert all(bool(torch.isfinite(value).all()) for value in federation.weights().values())


def test_flipped_labels_are_an_attack_and_none_flipped_are_none(federate, toy_bundle, scenes, tmp_path):
    weights = {}
    for share in (None, 0.0, 1.0):
        sites = list(scenes)
        if share is not None:
            sites[2] = flip_site(scenes[2], tmp_path / f"share-{share}", share=share)
        job = make_job("fedavg", bundle="toy", rounds=1)
        weights[share] = Federation(job, tmp_path / f"runs-{share}", sites, SITES).run().weights()
    assert same(weights[None], weights[0.0]) and not same(weights[None], weights[1.0])


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_attacked_is_what_the_site_sends(federate, toy_bundle, scenes, steps):
    """A recorded round is bit for bit the site's own reply, and its LOCAL part is not in it."""
    job = make_job("fedper", bundle="toy", rounds=1, training={**TINY, "iterations": steps})
    federation = federate(job).enrol()
    message = federation.asked.messages["site-2"]
    reply = federation.answer("site-2", "round", message)
    site = load_site(scenes[1])
    setup = set_up_site(job, site)
    paste(message.pieces, setup.partition, setup.network.state_dict())
    dataset = SampleDataset(samples(site, "train"), height=TINY["height"], width=TINY["width"], site=site)
    sent = train_round(
        setup.network, load_method("fedper"), setup.task, dataset, setup.bundle.training, round=0, site=1
    )
    pieces = cut(sent.after, sent.partition, Role.GLOBAL, Role.MIXED)
    assert same(pieces, reply.pieces)
    assert len(sent.batches) == steps and not any(name.startswith("head") for name in reply.pieces)
