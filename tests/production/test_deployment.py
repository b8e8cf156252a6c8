"""The harness itself: it finds each party's processes, ends them and no others, and starts them again."""

import json

import psutil
import pytest

from evidence.production.at_start import GUARDED
from evidence.production.deployment import marked, until

pytestmark = pytest.mark.slow

REPLACED = {
    "CoreCell._add_adhoc_connector", "CoreCell._process_received_msg", "TxTask.handle_ack",
    "FedAdminAgent._dispatch_request", "AppAuthzService.authorize_app_info", "byte_streamer.gen_stream_id",
}  # fmt: skip
PROCESSES = {"server_train", "runner_process", "client_train", "worker_process"}


def test_a_party_is_killed_alone_and_comes_back_and_nothing_stays(deploy, tmp_path):
    """And each of the four kinds of processes is guarded before it connects to anybody."""
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
    assert all(set(found) >= REPLACED for _, found in noted(guarded)), noted(guarded)


def noted(file):
    """Return of each process that has begun to connect its kind, and which functions it had replaced by then."""
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(module.rpartition(".")[2], replaced) for module, replaced in found]
