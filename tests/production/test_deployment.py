"""The harness itself: it finds each party's processes, ends them and no others, and starts them again."""

import psutil
import pytest

from .deployment import marked, until

pytestmark = pytest.mark.slow


def test_a_party_is_killed_alone_and_comes_back_and_nothing_stays(deploy):
    deployment = deploy("hospital-a", "hospital-b")
    deployment.start()
    job = deployment.submit(deployment.job("fedavg", rounds=500))
    first, second = deployment.sites.values()
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
    assert (
        second.pid is None and second.job_pids()
    )  # FLARE 2.9 lets a job's process live on, for two minutes at least
    deployment.kill()
    assert marked(deployment.mark) == []
    assert "Shutting down" not in first.log and first.log
