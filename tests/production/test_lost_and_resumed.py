"""A party is killed or restarted: only its processes end, the other parties continue, and no result is lost."""

import json

import psutil
import pytest

from evidence.production.at_start import GUARDED, REST
from evidence.production.deployment import marked, until
from evidence.production.prepared import CHIEF
from evidence.production.results import equal_tensors, records, rejected, wait_for_round
from shared_components.cli import main

pytestmark = pytest.mark.slow


def submit(deployment, job, *words, capsys):
    capsys.readouterr()
    assert main(["job", "submit", str(job), *words, "--admin", str(deployment.kits / CHIEF)]) == 0
    return capsys.readouterr().out.split()[-1]


def test_only_a_restarted_site_is_rejected_and_it_takes_part_again_after_a_resume(deploy_quick, capsys):
    # seconds before each of a round's two steps, so that the site comes back in time
    deployment = deploy_quick(variables={REST: "5"})
    deployment.start()
    job = deployment.job("fedavg", rounds=6, min_sites=2, bundle="pfedsis")
    lost = deployment.sites["hospital-b"]
    begun = submit(deployment, job, "--set", "min_sites=2", capsys=capsys)
    wait_for_round(deployment, "fedavg", 1)
    lost.kill_parent()
    lost.start()  # as the watchdog of its start.sh does
    assert deployment.wait(begun) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    before = rejected(deployment, "fedavg")
    assert len(before) == 6 and not before[0]
    assert [set(one) for one in before[-3:]] == [{"hospital-b"}] * 3, before
    assert before[-1]["hospital-b"].startswith("it was restarted")

    again = submit(deployment, job, "--set", "rounds=7", "--resume", begun, capsys=capsys)
    assert deployment.wait(again) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    after = rejected(deployment, "fedavg")
    assert after[:6] == before and after[6] == {}, "the resumed run is the same run, with the site"


def test_a_killed_server_is_resumed_by_a_submission_to_bit_equal_weights(deploy_quick, capsys):
    # round 3 must not be over before the kill
    deployment = deploy_quick("hospital-a", "hospital-b", variables={REST: "2"})
    deployment.start()
    whole = submit(deployment, deployment.job("pfedsis", name="whole", rounds=3), capsys=capsys)
    assert deployment.wait(whole) == "FINISHED:COMPLETED", deployment.server.log[-4000:]

    job = deployment.job("pfedsis", name="broken", rounds=3)
    killed = submit(deployment, job, capsys=capsys)
    wait_for_round(deployment, "broken", 1)
    deployment.server.kill()
    deployment.server.start()
    deployment.wait_for_sites("hospital-a", "hospital-b", seconds=120)

    main(["job", "list", "--admin", str(deployment.kits / CHIEF)])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(killed)]
    assert " lost " in row
    resumed = submit(deployment, job, "--resume", capsys=capsys)
    assert deployment.wait(resumed) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    run = deployment.server.runs("broken")
    assert json.loads((run / "submissions.json").read_text()) == [killed, resumed]
    equal_tensors(deployment, "whole", "broken")
    assert [r["round"] for r in records(deployment, "broken") if r["kind"] == "aggregation"] == [0, 1, 2]


REPLACED = {
    "CoreCell._process_received_msg", "ConfigFactory.get_config_loader", "AppDeployer.deploy",
    "authn.add_authentication_headers", "byte_streamer.gen_stream_id",
}  # fmt: skip
PROCESSES = {"server_train", "runner_process", "client_train", "worker_process"}


def test_each_process_is_guarded_before_it_connects_and_a_party_is_killed_alone_and_comes_back(deploy, tmp_path):
    guarded = tmp_path / "guarded.txt"
    deployment = deploy("hospital-a", "hospital-b", variables={GUARDED: str(guarded)})
    deployment.start()
    job = deployment.submit(deployment.job("fedavg", rounds=500))
    first, second = deployment.sites.values()
    until(lambda: {kind for kind, _ in noted(guarded)} == PROCESSES, 60, "the four kinds of processes do not connect")
    for party in deployment.parties:
        until(lambda party=party: len(party.job_pids(job)) == 1, 60, f"{party.name} runs no job")
    pids = {party.name: {party.pid, *party.job_pids()} for party in deployment.parties}
    assert len(set.union(*pids.values())) == 6 and deployment.connected() == ["hospital-a", "hospital-b"]
    first.kill()
    assert first.pid is None and first.job_pids() == []
    assert all(psutil.pid_exists(pid) for pid in pids["hospital-b"] | pids["localhost"])
    first.start()
    assert first.pid not in pids["hospital-a"]
    second.kill_parent()
    assert second.pid is None and second.job_pids()  # FLARE 2.9 lets a job's process live on, for two minutes at least
    deployment.kill()
    assert marked(deployment.mark) == []
    assert "Shutting down" not in first.log and first.log
    assert all(set(replaced) >= REPLACED for _, replaced in noted(guarded)), noted(guarded)


def noted(file):
    """Return the kind of each process that has begun to connect, with the functions that it had replaced by then."""
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(module.rpartition(".")[2], replaced) for module, replaced in records]
