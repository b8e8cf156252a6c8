"""Processes are killed with SIGKILL."""

import json
from contextlib import ExitStack

from evidence.production.deployment import Deployment
from evidence.production.holds import AT_SERVER, AT_SITE, EARLY, go_on, held
from evidence.production.results import LONGER, equal_tensors, failure, records, rejected, run_to_end, wait_for_round
from evidence.production.trials import Deploy, trial

METHOD = "pfedsis"  # methods with pieces of every role, optimizers, and server state
LEFT = ("hospital-a", "hospital-f")
KILLED = dict(zip(("hospital-b", "hospital-c", "hospital-d", "hospital-e"), AT_SITE, strict=True))


@trial("kill one site's job process, min_sites 2 of 3", quick=True)
def worker_killed(deploy: Deploy) -> str:
    """The job continues with the two other sites, and the record names only the lost site."""
    deployment = deploy()
    deployment.start()
    job = deployment.submit(deployment.job("fedavg", rounds=4, min_sites=2, training=LONGER))
    wait_for_round(deployment, "fedavg", 1)
    deployment.sites["hospital-b"].kill_job()
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    found = rejected(deployment, "fedavg")
    assert len(found) == 4 and not found[0] and set(found[-1]) == {"hospital-b"}, found
    assert found[-1]["hospital-b"].startswith("its process of the job died"), found
    return f"4 of 4 rounds; hospital-b alone is named, in {sum(map(bool, found))} of them"


@trial("kill four of six sites in different phases, min_sites 2")
def sites_killed(deploy: Deploy) -> str:
    """The job continues with the two other sites and names the lost sites; the first site never takes part."""
    deployment = deploy(*sorted({*LEFT, *KILLED}))
    deployment.start()
    settings = {"name": "enough", "rounds": 3, "min_sites": 2, "grace_seconds": 15, "training": LONGER}
    with ExitStack() as stack:
        holds = {
            site: stack.enter_context(held(deployment.sites[site], AT_SITE[phase])) for site, phase in KILLED.items()
        }
        job = deployment.submit(deployment.job(METHOD, **settings))
        for site, wait in holds.items():
            wait()
            deployment.sites[site].kill()
    assert deployment.wait(job, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    first, *others = KILLED
    description = json.loads((deployment.server.runs("enough") / "run.json").read_text("utf-8"))
    assert set(description["left_out"]) == {first}, description["left_out"]
    found = [set(one) for one in rejected(deployment, "enough")]
    assert found == [set(), set(others), set(others)], found
    counts = [len(deployment.sites) - 1 - len(one) for one in found]
    return f"{len(KILLED)} phases; {len(found)} of 3 rounds, with {', '.join(map(str, counts))} sites"


@trial("kill a required site in each phase, resume each time")
def needed_site_killed(deploy: Deploy) -> str:
    """Every kill ends the job with an error message about that site only; after resumes the weights are bit-equal."""
    deployment = deploy()
    deployment.start()
    run_to_end(deployment, METHOD, name="whole", rounds=4)
    lost = deployment.sites["hospital-b"]
    for done, (phase, place) in enumerate(AT_SITE.items()):
        with held(lost, place) as reached:
            job = begin(deployment, "broken", rounds=4, resume="latest" if done > 1 else False)
            reached()
            lost.kill_job()
        assert deployment.wait(job) != "FINISHED:COMPLETED", phase
        said = failure(deployment, "broken", number=done + 1)
        assert f"{lost.name}: its process of the job died" in said, said
        assert not any(other in said for other in deployment.sites if other != lost.name), said
    run_to_end(deployment, METHOD, name="broken", rounds=4, resume="latest")
    return f"{len(AT_SITE)} phases, {len(AT_SITE)} sentences; {equal_tensors(deployment, 'whole', 'broken')}"


@trial("kill the server in each phase, resume each time")
def server_killed(deploy: Deploy) -> str:
    """A resumed run is bit-equal; before the end of round 1 nothing can be resumed, and an error message says so.

    A site's process of the old job may outlive its server. It does not disturb the resumed run.
    """
    deployment = deploy()
    deployment.start()
    rounds, stale = len(AT_SERVER) + 1, 0
    run_to_end(deployment, METHOD, name="whole", rounds=rounds)
    training = deployment.sites["hospital-b"]
    phases = {**dict.fromkeys(AT_SERVER, deployment.server), "while a site trains": training}
    for done, (phase, party) in enumerate(phases.items()):
        place = AT_SERVER.get(phase, AT_SITE["in training"])
        with held(party, place) as reached:
            begin(deployment, "broken", rounds=rounds, resume="latest" if done > 1 else False)
            process = reached()
            deployment.server.kill()
        deployment.server.start()
        if party is training:
            go_on(process)
        deployment.wait_for_sites(*deployment.sites, seconds=180)
        if phase == EARLY:
            refused = begin(deployment, "broken", rounds=rounds, resume="latest")
            assert deployment.wait(refused) != "FINISHED:COMPLETED"
            assert "submit the job without resume" in failure(deployment, "broken")
        stale += sum(len(site.job_pids()) for site in deployment.sites.values())
    run_to_end(deployment, METHOD, name="broken", rounds=rounds, resume="latest")
    found = [one["round"] for one in records(deployment, "broken") if one["kind"] == "aggregation"]
    assert found == list(range(rounds)), found
    equal = equal_tensors(deployment, "whole", "broken")
    return f"{len(phases)} phases; {stale} old processes at sites lived when it was submitted again; {equal}"


def begin(deployment: Deployment, name: str, **changes: object) -> str:
    """Submit a job; return its id."""
    return deployment.submit(deployment.job(METHOD, name=name, **changes))
