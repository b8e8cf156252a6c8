"""FedST's local half in a whole federation: every site's network knows its own site, and nobody else's does."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core import evaluation, site_conditioning
from shared_components.core.method import load_method
from shared_components.core.partition import below
from shared_components.core.partition_rules import representation
from shared_components.core.text.pretrained import MINILM_SHA256
from shared_components.core.text.site_text import SiteText, site_text
from shared_components.core.text.vectors import Vector, add_vectors, read_vectors
from shared_components.data.site_file import load_site
from shared_components.experiments.comparison import run as comparing
from shared_components.federation.messages import FederationError, SiteRefusal
from shared_components.federation.server import runner as server_side
from shared_components.federation.server import training
from shared_components.federation.server.enrolment import profile_header, profile_of
from shared_components.federation.setup import site_setup as site_side
from shared_components.networks import bundle_config
from shared_components.weights.bundle_files.make import write_bundle
from tests.changed_method import changed
from tests.federation.conftest import SITES, Federation, fine_tune, make_job, rewritten

CLIPS = """\
title: Clips
network_def: |
  _target_: shared_components.networks.pvt_fpn_clips.PvtFpnClips
  out_channels: 4
  levels: [32]
  window: 4
  receptive_fields: [8, 4]
  kernels: [2, 1]
tasks: |
  segmentation: {}
training: {height: 32, width: 64, batch_size: 1, iterations: 1, rounds: 2, learning_rate: 1.0e-3}
metadata: {name: Clips, task: to take clips, description: A network for tests., references: []}
"""
pytestmark = pytest.mark.usefixtures("clips_bundle")


@pytest.fixture
def clips_bundle(toy_bundle):
    (toy_bundle / "clips.yaml").write_text(CLIPS)
    write_bundle("clips", toy_bundle)
    assert bundle_config.bundles_folder() == toy_bundle


@pytest.fixture
def play(monkeypatch):
    """Return a function that lets everybody use FedAvg with FedST's rule and its text, other fields as given."""

    def replace(**fields):
        fields = {"partition": representation(), "local_condition_on_site": SiteText(), **fields}
        method = changed(load_method("fedavg"), **fields)
        for side in (server_side, site_side, comparing, site_conditioning):
            monkeypatch.setattr(side, "load_method", lambda name, **arguments: method)
        return method

    return replace


def job(**changes):
    return make_job("fedavg", **({"bundle": "clips", "training": {}, "rounds": 1} | changes))


def due(scenes):
    """Return the expected vector of every site."""
    texts = [load_site(path).text for path in scenes]
    assert len(set(texts)) == 3 and all(text.startswith("synthetic: ") for text in texts)
    known = read_vectors()
    sentences = [f"This is the Local site model and the surgery type is {text}" for text in texts]
    return [known.values[known.texts.index(sentence)] for sentence in sentences]


def kept(federation, site):
    """Return the LOCAL pieces that a site kept after its last round."""
    newest = max((federation.server.folder / site).glob("round-*.safetensors"))
    return below("local/", load_file(newest))


def test_each_site_keeps_its_own_indicator_and_sends_none(play, federate, scenes):
    play()
    federation = federate(job())
    indicators = due(scenes)
    texts = [load_site(path).text for path in scenes]
    while federation.asked.task != "finish":
        replies = federation.replies()
        for message in [*replies.values(), *federation.asked.messages.values()]:
            assert not any(text in json.dumps(message.header) for text in texts)
            for name, value in [pair for p in (message.pieces, *message.groups.values()) for pair in p.items()]:
                assert not any(word in name for word in ("indicator", "selection", ".attn.q."))
                assert not any(value.shape == own.shape and torch.equal(value, own) for own in indicators)
        federation.send(replies)
    federation.finish()
    folder = federation.server.folder
    for site, own in zip(SITES, indicators, strict=True):
        for model in ("model", "best"):
            assert torch.equal(load_file(folder / site / f"{model}.safetensors")["indicator"], own)
    server = list(folder.glob("server/round-*.safetensors"))
    assert server and not any("indicator" in name for path in server for name in load_file(path))


def test_the_network_knows_its_site_when_it_validates_trains_and_measures(play, federate, scenes, monkeypatch):
    seen = []

    def noting(stage, then):
        def note(network, *arguments, **options):
            seen.append((stage, network.indicator.clone()))
            return then(network, *arguments, **options)

        return note

    monkeypatch.setattr(evaluation, "score_quickly", noting("validating", evaluation.score_quickly))
    train, measure = noting("training", load_method("fedavg").local.objective), noting("measuring", lambda *_: {})
    play(local_objective=train, local_measure=measure, local_measure_images=1)
    federate(job(), names=["site-1"]).run().finish()
    assert [stage for stage, _ in seen] == ["validating", "training", "measuring", "validating"]
    assert all(torch.equal(indicator, due(scenes)[0]) for _, indicator in seen)


def test_what_is_trained_by_the_selection_alone_stays_at_the_site(play, federate):
    """Two sites start with one gate and end with two, which the server has not."""
    play()
    federation = federate(job(), names=SITES[:2]).run()
    first, second = (kept(federation, site) for site in SITES[:2])
    assert {n for n in first if not (n.startswith("selection.") or ".attn.q." in n)} == {"indicator"}
    differ = {name for name in first if not torch.equal(first[name], second[name])}
    assert {"selection.32.gate.weight", "indicator"} <= differ
    assert not set(first) & set(federation.weights())


def test_numbered_kinds_tell_the_sites_numbers_and_without_the_hook_nothing_is_told(play, federate):
    play(local_condition_on_site=SiteText(kind="one_hot"))
    federation = federate(job()).run()
    assert [kept(federation, site)["indicator"].nonzero().item() for site in SITES] == [0, 1, 2]
    play(local_condition_on_site=None)
    federation = federate(job(), names=["site-1"]).run()
    assert federation.server.state.profiles["site-1"].prepared == ""
    assert not kept(federation, "site-1")["indicator"].any()


def test_a_server_that_trains_is_not_told(play, federate, scenes, monkeypatch):
    seen = []

    def update(work, result):
        seen.append(work.network.indicator.clone())
        return fine_tune(work, result)

    play(server_update=update)
    federate(job(), names=SITES[:2], server_data=scenes[2]).run()
    assert len(seen) == 1 and not seen[0].any()
    assert not hasattr(training, "prepare")


def test_the_encoder_is_part_of_the_profile_and_an_empty_one_is_not_compared(play, federate):
    play()
    federation = federate(job())
    replies = federation.replies()
    for site in ("site-1", "site-2"):
        replies[site].header["prepared"] = ""
    federation.send(replies)
    assert [p.prepared for p in federation.server.state.profiles.values()] == ["", "", f"sentence {MINILM_SHA256}"]
    server = federate(job()).enrol().server
    assert {p.prepared for p in server.state.profiles.values()} == {f"sentence {MINILM_SHA256}"}
    for site, profile in server.state.profiles.items():
        assert profile_of(site, json.loads(json.dumps(profile_header(profile)))) == profile


def test_a_text_without_a_vector_and_a_file_that_is_not_there_are_refused_before_the_first_round(
    play, scenes, tmp_path
):
    play()
    bad = rewritten(scenes[1], tmp_path / "b", text="liver resection")
    words = f"^site site-2, {bad}: vectors.safetensors has no vector of the text .*surgfl text-vectors"
    with pytest.raises(FederationError, match=words):
        Federation(job(), tmp_path / "runs", [scenes[0], bad], SITES[:2]).enrol()
    gone = rewritten(scenes[0], tmp_path / "a", text_vectors="gone.safetensors")
    with pytest.raises((FederationError, SiteRefusal), match=r"'text_vectors' is .*gone\.safetensors, which is not"):
        Federation(job(), tmp_path / "runs", [gone], ["ward"]).enrol()


def own_vectors(folder, text, *, model, sha256):
    """Write a site's vector to a file; return the values for its site.yaml."""
    folder.mkdir(exist_ok=True)
    values = torch.nn.functional.normalize(torch.arange(1.0, 385), dim=0)
    add_vectors(folder / "own.safetensors", [Vector(values, "clip", model, sha256, site_text(text))])
    return {"text": text, "text_vectors": str(folder / "own.safetensors")}


def test_a_site_may_bring_vectors_of_its_own_if_all_are_of_one_encoder(play, scenes, tmp_path):
    play()
    files = {}
    for name, digest in {"a": "1" * 64, "b": "1" * 64, "c": "2" * 64}.items():
        own = own_vectors(tmp_path / name, f"surgery {name}", model=f"clip-{name}", sha256=digest)
        files[name] = rewritten(scenes[0], tmp_path / name / "site", **own)
    alike = Federation(job(), tmp_path / "one", [files["a"], files["b"]], SITES[:2]).enrol()
    assert alike.server.state.profiles["site-2"].prepared == f"clip {'1' * 64}"
    words = (
        rf"^site-1 and site-2 differ in their encoder \(clip {'1' * 64} and clip {'2' * 64}\).*"
        "make text_vectors or text_encoder in site.yaml agree$"
    )
    with pytest.raises(FederationError, match=words):
        Federation(job(), tmp_path / "two", [files["a"], files["c"]], SITES[:2]).enrol()


@pytest.mark.parametrize("other, shown", [(SiteText(kind="one_hot"), "one_hot"), (None, "none")])
def test_a_resumed_run_wants_the_encoder_that_it_began_with(play, federate, other, shown):
    play()
    federate(job(rounds=2), names=["site-1"]).run(until=1)
    play(local_condition_on_site=other)
    said = rf"site-1 has another encoder than when the run began \({shown} now, sentence {MINILM_SHA256} then\)"
    again = federate(job(rounds=2), names=["site-1"], resume=True)
    with pytest.raises(FederationError, match=said):
        again.enrol()


def test_a_site_whose_text_changes_between_rounds_is_refused_by_itself(play, scenes, tmp_path):
    play()
    path = rewritten(scenes[0], tmp_path / "a")
    federation = Federation(job(rounds=2), tmp_path / "runs", [path], ["ward"]).run(until=1)
    path.write_text(path.read_text().replace(load_site(path).text, load_site(scenes[1]).text))
    with pytest.raises(SiteRefusal, match=r"^site ward, .*site\.yaml: text, text_vectors or text_encoder have changed"):
        federation.replies()


def test_the_held_out_model_is_told_of_the_site_that_it_is_tested_on(play, scenes, tmp_path, monkeypatch):
    """Sites consent, so the server's model has the mean of their indicators until it is conditioned."""
    play()
    own = due(scenes)
    federation = Federation(job(), tmp_path / "runs", scenes[:2], SITES[:2]).run().finish()
    model = load_file(federation.server.folder / "server" / "model.safetensors")
    weights = [federation.server.state.profiles[site].samples for site in SITES[:2]]
    mean = sum(w * v for w, v in zip(weights, own, strict=False)) / sum(weights)
    torch.testing.assert_close(model["indicator"], mean)
    seen = []
    monkeypatch.setattr(comparing.evaluation, "score_fully", lambda network, *a, **k: seen.append(network) or {})
    outside = load_site(scenes[2], name="held-out")
    comparing._test(federation.server, outside, federation.server.folder / "server", "model")
    assert torch.equal(seen[0].indicator, own[2])
    comparing._test(federation.server, load_site(scenes[0]), federation.server.folder / "site-1", "best")
    assert torch.equal(seen[1].indicator, own[0])


def test_a_held_out_site_without_a_vector_is_found_before_training(play, scenes, tmp_path):
    play()
    bad = rewritten(scenes[2], tmp_path / "c", text="liver resection")

    def planned(held_out):
        known = {"start_weights": None, "variant": SimpleNamespace(method="fedavg", arguments={})}
        sites = dict.fromkeys(SITES[:2], "")
        return SimpleNamespace(**known, held_out=held_out, sites=sites, job=lambda: job().to_json())

    with pytest.raises(FederationError, match=r"^site .*has no vector of the text"):
        comparing._check_outsider(planned(str(bad)))
    comparing._check_outsider(planned(str(scenes[2])))
    comparing._check_outsider(planned(""))
    play(local_condition_on_site=None)
    comparing._check_outsider(planned(str(bad)))
