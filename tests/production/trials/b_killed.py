"""Processes are killed with -9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.production.deployment import Deployment, until
from tests.production.holds import AT_SERVER, EARLY, held
from tests.production.results import LONGER, equal_tensors, failure, records, rejected, wait_for_round
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


def server_killed_at(phase: str) -> Callable[[Deploy], str]:
    """Return a trial that kills the server in a phase."""

    def run(deploy: Deploy) -> str:
        """A submission takes up what was trained; before the end of round 1 there is nothing, and it says so."""
        deployment = deploy()
        deployment.start()
        finish(deployment, "whole")
        place = AT_SERVER[phase]
        with held(deployment.server, place) as reached:
            deployment.submit(deployment.job("fedavg", name="broken", rounds=3))
            reached()
            deployment.server.kill()
        deployment.server.start()
        deployment.wait_for_sites(*deployment.sites, seconds=120)
        if phase == EARLY:
            refused = deployment.submit(deployment.job("fedavg", name="broken", rounds=3, resume="latest"))
            assert deployment.wait(refused) != "FINISHED:COMPLETED"
            assert "submit the job without resume" in failure(deployment, "broken")
        finish(deployment, "broken", resume=False if phase == EARLY else "latest")
        found = [one["round"] for one in records(deployment, "broken") if one["kind"] == "aggregation"]
        assert found == [0, 1, 2], found
        again = "anew" if phase == EARLY else "resumed at round 2"
        return f"{again}: {equal_tensors(deployment, 'whole', 'broken')}"

    run.__name__ = f"server_killed_{phase.replace(' ', '_')}"
    return run


for _phase in ("in aggregation",):
    trial(f"the server is killed -9 {_phase}, and started again")(server_killed_at(_phase))


def finish(deployment: Deployment, name: str, **changes: Any) -> None:
    """Run a job to its good end: all sites in all of its three rounds."""
    job = deployment.submit(deployment.job("fedavg", name=name, rounds=3, **changes))
    assert deployment.wait(job) == "FINISHED:COMPLETED", f"{name}: {deployment.server.log[-2000:]}"
    assert rejected(deployment, name) == [{}] * 3, name


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
