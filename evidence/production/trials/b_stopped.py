"""A site, then the server, is stopped while a job runs, as the guide describes, and started again."""

import os
import subprocess
import sys
import time
from pathlib import Path

from evidence.production.deployment import MARK, Party, marked, until
from evidence.production.results import LONGER, rejected, wait_for_round
from evidence.production.trials import Deploy, trial

METHOD = "pfedsis"
SECONDS = 30  # seconds until no process of a stopped site is left; the guide promises about fifteen


@trial("stop and start a site, min_sites 2 of 3, then resume")
def stopped_and_started(deploy: Deploy) -> str:
    """No process of the site is left, the record names only it, and it takes part in the resumed run."""
    deployment = deploy()
    leaving = deployment.sites["hospital-b"]
    for party in deployment.parties:
        if party is not leaving:
            party.start()
    script(leaving, "start.sh")
    deployment.wait_for_sites(*deployment.sites, seconds=120)
    settings = {"name": "left", "min_sites": 2, "training": LONGER}
    job = deployment.submit(deployment.job(METHOD, rounds=6, **settings))
    wait_for_round(deployment, "left", 1)
    begun = time.monotonic()
    script(leaving, "stop_fl.sh", answer="y")
    until(lambda: not marked(leaving.variables[MARK]), SECONDS, f"{leaving.name} has ended")
    seconds = time.monotonic() - begun
    script(leaving, "start.sh")
    deployment.wait_for_sites(leaving.name, seconds=120)
    assert deployment.wait(job, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    missed = rejected(deployment, "left")
    assert len(missed) == 6 and not missed[0] and missed[-1], missed
    assert {name for one in missed for name in one} == {leaving.name}, missed
    again = deployment.submit(deployment.job(METHOD, rounds=8, resume="latest", **settings))
    assert deployment.wait(again, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert rejected(deployment, "left") == [*missed, {}, {}], "the resumed run is the same one, with the site in it"
    return (
        f"none of its processes is left after {seconds:.0f} s; {sum(map(bool, missed))} of 6 rounds without it; "
        "resumed, 2 of 2 rounds with it"
    )


@trial("stop and start the server, then resume")
def server_stopped(deploy: Deploy) -> str:
    """No process of the server is left, the sites reconnect by themselves, and no round is lost."""
    deployment = deploy()
    for party in deployment.sites.values():
        party.start()
    script(deployment.server, "start.sh")
    deployment.wait_for_sites(*deployment.sites, seconds=120)
    deployment.submit(deployment.job(METHOD, rounds=4, name="stopped", training=LONGER))
    wait_for_round(deployment, "stopped", 1)
    begun = time.monotonic()
    script(deployment.server, "stop_fl.sh", answer="y")
    until(lambda: not marked(deployment.server.variables[MARK]), SECONDS, "the server has ended")
    seconds, done = time.monotonic() - begun, len(rejected(deployment, "stopped"))
    script(deployment.server, "start.sh")
    deployment.wait_for_sites(*deployment.sites, seconds=180)
    again = deployment.submit(deployment.job(METHOD, rounds=4, name="stopped", training=LONGER, resume="latest"))
    assert deployment.wait(again, seconds=600) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert 1 <= done < 4 and rejected(deployment, "stopped") == [{}] * 4, rejected(deployment, "stopped")
    return f"none of its processes is left after {seconds:.0f} s; {done} of 4 rounds before it, {4 - done} after"


def script(party: Party, name: str, *, answer: str = "") -> None:
    """Run a script of a kit with this environment's Python on PATH, like an installation."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{party.variables['PATH']}"
    with party.console.open("ab") as console:
        subprocess.run(
            [party.kit / "startup" / name], cwd=party.kit, env={**party.variables, "PATH": path},
            input=answer.encode(), stdout=console, stderr=subprocess.STDOUT, check=True, timeout=60,
            start_new_session=True,
        )  # fmt: skip
