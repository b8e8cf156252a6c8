"""Files of a site's data are damaged while a job runs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evidence.production.deployment import Deployment, Party, until
from evidence.production.prepared import change_data, data_of
from evidence.production.results import rejected, wait_for_round
from evidence.production.trials import Deploy, trial

JOB = "fedavg"
FILES = ("seq_1/left_frames/frame000.png", "seq_1/labels/frame000.png")  # of the site's training video


@trial("a frame, then a label truncated at one site, min_sites 2 of 3")
def damaged(deploy: Deploy) -> str:
    """Only this site is left out, only its log names the file, and after the repair it comes back."""
    deployment = deploy()
    party = deployment.sites["hospital-b"]
    root = own_data(party, deployment.folder / "data")
    deployment.start()
    job = deployment.submit(deployment.job(JOB, rounds=500, min_sites=2))
    wait_for_round(deployment, JOB, 2)  # so that the first is on record, which comes after the state
    for file in (root / name for name in FILES):
        with cut_off(file):
            until(lambda: left_out(deployment), 300, f"{party.name} is left out of a round for {file.name}")
            before = len(rejected(deployment, JOB))
            wait_for_round(deployment, JOB, before + 2)
        until(lambda: not left_out(deployment), 300, f"{party.name} is back")
        assert str(file) in party.log, f"{party.name} does not name {file}"
    assert all(site.job_pids(job) for site in deployment.sites.values()), "no process has ended"
    with deployment.session() as session:
        session.abort_job(job)
    assert deployment.wait(job) == "FINISHED:ABORTED", deployment.server.log[-2000:]
    found = rejected(deployment, JOB)
    assert {name for one in found for name in one} == {party.name}, found
    reasons = {reason for one in found for reason in one.values()}
    assert reasons == {f"site {party.name} refused; the reason is in its own log"}, reasons
    assert str(root) not in deployment.server.log
    missed = sum(map(bool, found))
    named = f"{len(FILES)} of {len(FILES)} files named at the site"
    return f"{named}; it alone missed {missed} of {len(found)} rounds, and came back each time"


def own_data(party: Party, folder: Path) -> Path:
    """Copy a site's data, since other trials read the same files; return the folder."""
    shutil.copytree(data_of(party.kit)["root"], folder)
    change_data(party.kit, root=str(folder))
    return folder


def left_out(deployment: Deployment) -> bool:
    """Return whether a site was absent in the last recorded round."""
    return any(rejected(deployment, JOB)[-1:])


@contextmanager
def cut_off(file: Path) -> Iterator[None]:
    """Truncate a file to its first half; restore it at the end."""
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    try:
        yield
    finally:
        file.write_bytes(whole)
