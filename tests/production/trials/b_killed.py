"""Processes are killed with -9."""

from __future__ import annotations

from tests.production.deployment import until
from tests.production.results import LONGER, equal_tensors, rejected, wait_for_round
from tests.production.trials import Deploy, trial


@trial("one site's job process is killed -9 in training, min_sites 2 of 3", quick=True)
def worker_killed(deploy: Deploy) -> str:
    """The job goes on with the two others, and names the one that is lost alone."""
    deployment = deploy()
    deployment.start()
    job = deployment.submit(deployment.job("fedavg", rounds=4, min_sites=2, training=LONGER))
    wait_for_round(deployment, "fedavg", 1)
    deployment.sites["hospital-b"].kill_job()
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    found = rejected(deployment, "fedavg")
    assert len(found) == 4 and not found[0] and set(found[-1]) == {"hospital-b"}, found
    return f"4 of 4 rounds; hospital-b alone is named, in {sum(map(bool, found))} of them"


@trial("the server is killed -9 after round 1, started again, and the job submitted to resume")
def server_killed(deploy: Deploy) -> str:
    """What was trained before is taken up, to the bit."""
    deployment = deploy()
    deployment.start()
    whole = deployment.submit(deployment.job("pfedsis", name="whole", rounds=3))
    assert deployment.wait(whole) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    deployment.submit(deployment.job("pfedsis", name="broken", rounds=3))
    wait_for_round(deployment, "broken", 1)
    deployment.server.kill()
    deployment.server.start()
    deployment.wait_for_sites(*deployment.sites, seconds=120)
    until(
        lambda: not any(site.job_pids() for site in deployment.sites.values()), 180, "the sites' old jobs end"
    )
    again = deployment.submit(deployment.job("pfedsis", name="broken", rounds=3, resume="latest"))
    assert deployment.wait(again) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    return equal_tensors(deployment, "whole", "broken")
