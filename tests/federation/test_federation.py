"""A whole federation in one process: equivalences, resume, names, quarantine, files."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from shared_components.core import training as local
from shared_components.core.bundle import load_bundle
from shared_components.core.losses import segmentation_loss
from shared_components.core.method import load_method, method_names
from shared_components.core.partition import partition_network
from shared_components.core.task import make_task
from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.samples import samples
from shared_components.data.site_file import load_site
from shared_components.federation.messages import FederationError
from shared_components.networks.bundle_config import build_network
from shared_components.reporting.records import load_run
from tests.federation.conftest import NOT_TINY, SITES, TINY, Federation, make_job, render, rewritten, same
from tests.kinds import one_of_each_kind


def by_rank(federation):
    """Weights with site names replaced by their rank."""
    ranks = {name: str(i) for i, name in enumerate(federation.server.state.sites)}
    return {ranks[k.partition("/")[0]] + k[k.index("/") :]: v for k, v in federation.weights().items()}


KINDS = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("fedas", "feddp", "fedseg") else name
    for name in one_of_each_kind(method_names())
]


@pytest.mark.parametrize("method", KINDS)
def test_resuming_after_a_killed_round_is_bit_equal(federate, job_on_toy, tmp_path, method):
    """Killed in round 1, when one site has already trained it and the server has not aggregated."""
    job = job_on_toy(method)
    options = {"names": SITES[:2] if method in NOT_TINY else SITES}  # larger networks take their time
    straight = federate(job, folder=tmp_path / "a", **options).run_leaving(tmp_path / "b")
    again = federate(job, folder=tmp_path / "b", resume=True, **options)
    assert again.resumed and again.server.state.round == 1 and (tmp_path / "b") in again.server.folder.parents
    assert same(straight.weights(), again.run().weights())
    assert same(straight.server.state.aggregator, again.server.state.aggregator)


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedas", marks=pytest.mark.slow)])
def test_a_round_does_without_dynamo_whose_import_costs_a_simulators_task_1_7_seconds(
    federate, job_on_toy, monkeypatch, method
):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    federate(job_on_toy(method, rounds=1)).run().finish()


def test_names_of_sites_change_nothing_and_a_resume_without_a_run_starts_one(federate, tmp_path):
    a = federate(folder=tmp_path / "a", names=("site-1", "site-2"), resume=True).run()
    assert not a.resumed
    b = federate(folder=tmp_path / "b", names=("hospital-b", "hospital-a")).run()
    assert same(by_rank(a), by_rank(b))


@pytest.mark.parametrize("colour", [0.0, 0.7])
def test_one_site_alone_is_local_training(federate, scenes, colour):
    """FedAvg with one site equals a plain loop that never heard of a federation."""
    job = make_job("fedavg", rounds=2, training={**TINY, "colour": colour})
    trained_weights = federate(job, names=("a",)).run().weights()
    site = load_site(scenes[0])
    settings = load_bundle("pvt_fpn", TINY).training
    torch.manual_seed(settings.seed)
    network = build_network(load_bundle("pvt_fpn").network)
    method = load_method("fedavg")
    partition, optimizer = (partition_network(network, method.partition), local.make_optimizer(network, settings))
    task = make_task("segmentation", classes=site.classes)
    data = SampleDataset(samples(site, "train"), height=32, width=64, site=site)
    network.train()
    for round in range(2):
        context = local.make_context(settings, task, round=round, rounds=job.rounds, site=0)
        options = {"augment": True} | ({"colour": colour} if colour else {})
        for batch in batches(data, batch_size=2, iterations=2, generator=context.generator, **options):
            optimizer.zero_grad()
            segmentation_loss(network(batch["image"]), batch["label"]).backward()
            optimizer.step()
    assert partition.pieces
    assert same({f"a/{name}": value for name, value in network.state_dict().items()}, trained_weights)


def test_local_pieces_never_leave_and_survive_between_rounds(federate):
    federation = federate(make_job(arguments={"ape": False, "sensitivity_images": 2})).enrol()
    replies = federation.replies()
    assert all("decoder_personal" not in n for r in replies.values() for n in r.pieces)
    federation.send(replies)
    federation.replies()
    kept = {name: federation.files(name).load()[1] for name in replies}
    name = "local/decoder_personal.lateral.0.weight"
    assert not torch.equal(kept["site-1"][name], kept["site-2"][name])


@pytest.mark.pictures
def test_finish_leaves_models_metrics_overlays_and_records(federate):
    federation = federate(make_job(rounds=1)).run().finish()
    folder = federation.server.folder
    for name in federation.server.state.sites:
        state = load_file(folder / name / "model.safetensors")
        for piece, value in federation.server.state.models.of(name).items():
            if "[" not in piece:
                assert torch.equal(state[piece], value)
        assert (folder / name / "best.safetensors").is_file()
        final = json.loads((folder / name / "final.json").read_text())
        assert {"dice", "iou", "assd", "hd95", "hd95_monai", "empty"} <= set(final)
        assert list((folder / name / "overlays").glob("*.png"))
    lines = [json.loads(line) for line in (folder / "server" / "rounds.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines].count("final") == 3
    up = lines[0]["bytes"]["up"]
    assert set(up) == {"global", "mixed", "sensitivity"} and up["global"] == up["sensitivity"]


def test_a_site_without_the_styles_that_sge_needs_is_told(scenes, tmp_path):
    closed = rewritten(scenes[1], tmp_path / "closed", publish=[])
    with pytest.raises(FederationError, match="site-2 does not publish 'style'"):
        Federation(make_job(), tmp_path / "runs", [scenes[0], closed], SITES[:2]).enrol()


@pytest.mark.slow
def test_more_rounds_continue_a_finished_run(federate, tmp_path):
    two = {"names": SITES[:2]}
    straight = federate(make_job(rounds=3), folder=tmp_path / "a", **two).run()
    federate(make_job(rounds=2), folder=tmp_path / "b", **two).run().finish()
    more = federate(make_job(rounds=3), folder=tmp_path / "b", resume=True, **two).run()
    assert same(straight.weights(), more.weights())


def test_a_quarantined_frame_is_set_aside_to_the_end(toy_bundle, tmp_path):
    """An unreadable validation frame within the site's quarantine costs that frame, not the job."""
    (path,) = render(tmp_path / "scenes", sites=1, frames_per_video=6)
    path.write_text(path.read_text() + "\nquarantine: 0.2\n")
    samples(load_site(path), "validation")[2].images[0].write_bytes(b"not a picture")
    federation = Federation(make_job("fedavg", rounds=1), tmp_path / "runs", [path], ("site-1",)).run().finish()
    final = json.loads((federation.server.folder / "site-1" / "final.json").read_text())
    assert final["frames"] == 5


SCHEDULE = {"schedule": "cosine", "warmup_rounds": 1, "betas": [0.9, 0.95], "decay_free": True}


@pytest.mark.parametrize("counted", [{"iterations": 2}, {"epochs": 1, "batch_size": 1}])
def test_a_resumed_federation_has_the_rates_of_an_undisturbed_one_to_the_bit(federate, job_on_toy, tmp_path, counted):
    plain = {"height": 32, "width": 64, "batch_size": 2, "learning_rate": 1e-3, **counted}
    job = job_on_toy("fedavg", rounds=3, training={**plain, **SCHEDULE})
    whole = federate(job, folder=tmp_path / "a").run_leaving(tmp_path / "b", trained=()).weights()
    again = federate(job, folder=tmp_path / "b", resume=True).run().weights()
    assert same(whole, again)
    constant = federate(job_on_toy("fedavg", rounds=3, training=plain)).run().weights()
    assert not same(whole, constant)


def test_rates_that_cycle_during_averaging_reach_the_sites_whatever_the_schedule(federate):
    job = make_job("fedavg", rounds=3, training={**TINY, **SCHEDULE}, arguments={"swa": {"start": 1, "rate": 0.0}})
    federation = federate(job, names=SITES[:1]).run(until=1)
    before = federation.weights()
    assert same(before, federation.run().weights())  # a rate of 0 moves nothing


@pytest.mark.parametrize("method", ["fedavg", "pfedsis", "fedseg"])
def test_threads_and_the_frame_cache_change_no_bit(job_on_toy, scenes, tmp_path, method):
    weights = []
    for limits in ("workers: 0\nframe_cache_gb: 0\n", "workers: 3\nframe_cache_gb: 1\n"):
        folder = tmp_path / f"sites-{len(weights)}"
        files = [rewritten(path, folder / path.parent.name) for path in scenes]
        for file in files:
            file.with_name("limits.yaml").write_text(limits)
        federation = Federation(job_on_toy(method), folder / "runs", files, SITES).run()
        caches = list(federation.server.folder.glob("site-*/frames/*/*"))
        assert bool(caches) == (limits.startswith("workers: 3"))
        federation.finish()
        assert not list(federation.server.folder.glob("site-*/frames"))
        weights.append(federation.weights())
    assert same(*weights)


def test_a_job_that_validates_every_second_round_trains_the_same_models(federate, job_on_toy, tmp_path):
    job = job_on_toy("fedavg", rounds=4)
    every = federate(job, folder=tmp_path / "every").run()
    second = federate(job_on_toy("fedavg", rounds=4, validate_every=2), folder=tmp_path / "second").run()
    assert same(every.weights(), second.weights())
    sites = [record for record in second.server.records if record["kind"] == "site"]
    assert {record["round"] for record in sites if "metrics" in record} == {0, 2}
    assert all("validating" in record["seconds"] for record in sites if "metrics" in record)

    second.finish()
    run = load_run(second.server.folder)
    assert all(run.finals[site] for site in SITES)
    best = load_file(second.server.folder / SITES[0] / "best.safetensors")
    assert best
