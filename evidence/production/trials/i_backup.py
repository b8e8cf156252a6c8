"""The server or a site loses its whole disk, and is restored from a copy that was made while a job ran."""

import shutil
import subprocess
from pathlib import Path

from evidence.production.deployment import Deployment, Party, until
from evidence.production.results import LONGER, equal_tensors, failure, records, run_to_end, wait_for_round
from evidence.production.trials import Deploy, trial
from shared_components.cli import main

METHOD, ROUNDS, SAVED, COPIED, LOST = "pfedsis", 9, 3, 4, 8  # rounds, counted from 1
SETTINGS = {"rounds": ROUNDS, "checkpoint_every": SAVED, "training": LONGER}
LEFT_OUT = ("*.fl", "secure_sums.json", "frames", "features", "replicas")  # as in docs/how-to/back-up.md


@trial("the server's disk lost, restored from a copy made four rounds before")
def server_restored(deploy: Deploy) -> str:
    """The restored server goes on from a round that all sites keep, to equal bits."""
    deployment = deploy()
    return lose(deployment, deployment.server)


@trial("a site's disk lost, restored from a copy made four rounds before")
def site_restored(deploy: Deploy) -> str:
    """The server's newest round is refused with the lost state's name; an earlier one ends with equal bits."""
    deployment = deploy()
    return lose(deployment, deployment.sites["hospital-b"])


def lose(deployment: Deployment, party: Party) -> str:
    """Copy a party's kit after round 4, remove it after round 8, restore it, and resume; return the result."""
    deployment.start()
    run_to_end(deployment, METHOD, name="whole", **SETTINGS)
    deployment.submit(deployment.job(METHOD, name="broken", **SETTINGS))
    wait_for_round(deployment, "broken", COPIED)
    kept = copy(party, deployment.folder / "backup")
    wait_for_round(deployment, "broken", LOST, seconds=300)
    deployment.server.kill()  # a disk that is lost ends its processes; without the server no round goes on
    party.kill()
    shutil.rmtree(party.kit)
    shutil.copytree(kept, party.kit, symlinks=True)
    for gone in {deployment.server, party}:
        gone.start()
    deployment.wait_for_sites(*deployment.sites, seconds=180)
    newest = deployment.submit(deployment.job(METHOD, name="broken", resume="latest", **SETTINGS))
    assert deployment.wait(newest, seconds=300) != "FINISHED:COMPLETED", "no other party has the newest state"
    assert "refused" in failure(deployment, "broken", number=1), deployment.server.log[-2000:]
    sites = deployment.sites.values()
    logs = [line for site in sites for line in site.log.splitlines() if "its state of round" in line]
    assert logs and all("gone" in line and "resume an earlier round" in line for line in logs), logs
    run_to_end(deployment, METHOD, name="broken", resume=f"latest@{SAVED}", **SETTINGS)
    found = [record["round"] for record in records(deployment, "broken") if record["kind"] == "aggregation"]
    assert found == list(range(ROUNDS)), found
    return f"newest round refused, resumed after round {SAVED}: {equal_tensors(deployment, 'whole', 'broken')}"


def copy(party: Party, to: Path) -> Path:
    """Copy a running party's kit with tar until `surgfl runs --check` accepts the copy; return it."""

    def whole() -> bool:
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        left_out = [f"--exclude={name}" for name in LEFT_OUT]
        archive = to.with_suffix(".tar")
        done = subprocess.run(
            ["tar", "-C", party.kit, *left_out, "-cf", archive, "."], capture_output=True, check=False
        )
        assert done.returncode in (0, 1, 2), done  # 1: a file changed; 2: a file was removed before it was read
        subprocess.run(["tar", "-C", to, "-xf", archive], check=True)
        return main(["runs", str(to), "--check"]) == 0

    until(whole, 60, f"a whole copy of {party.name}")
    return to
