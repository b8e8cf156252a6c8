"""Administrators without permission, by role or by certificate."""

import contextlib
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvflare.fuel.flare_api.api_spec import AuthorizationError, InternalError, JobNotDone
from nvflare.fuel.flare_api.flare_api import new_secure_session

from evidence.production.at_start import PYTHON, REST
from evidence.production.deployment import Deployment
from evidence.production.prepared import CHIEF, LEAD, describe, sign_again
from evidence.production.results import rejected, wait_for_round
from evidence.production.trials import Deploy, trial
from shared_components.flare.deployment.federation_file import parse_federation
from shared_components.flare.provision import provision
from tests.flare.simulator import edit

OTHER_LEAD, MEMBER = "another@example.org", "member@example.org"
REFUSALS = (AuthorizationError, InternalError, JobNotDone)
ROLE = "the role in its certificate does not allow it"
NOT_SIGNED = "the authority in this kit's rootCA.pem has not signed the certificate of the server at"


@trial("commands of a member, another lead, and expired, foreign and site certificates", quick=True)
def people(deploy: Deploy) -> str:
    """Each forbidden command has one error message and exit code 2, no party ends, and the job's lead can stop it."""
    deployment = deploy("hospital-a", "hospital-b", change={"administrators": administrators()}, variables={REST: "5"})
    member, other = deployment.kits / MEMBER, deployment.kits / OTHER_LEAD
    expired, foreign, site, named = strangers(deployment)
    deployment.start()
    processes = [party.pid for party in deployment.parties]
    folder = deployment.job("fedavg", rounds=500)
    job = deployment.submit(folder, LEAD)
    wait_for_round(deployment, "fedavg", 1)
    submit, stop = ("submit", str(folder)), ("stop", job)
    told = [
        said(deployment, site, *submit, why=f"hospital-a may not submit a job; {ROLE}"),
        said(deployment, site, "list", why=f"hospital-a may not list jobs; {ROLE}"),
        said(deployment, member, *submit, why=f"{MEMBER} may not submit a job; {ROLE}"),
        said(deployment, member, *stop, why=f"{MEMBER} may not stop job {job}; {ROLE}"),
        said(deployment, other, *stop, why=f"{OTHER_LEAD} may not stop job {job}; {ROLE}"),
        said(deployment, expired, *submit, why=f"{expired}: its certificate expired on"),
        said(deployment, foreign, *submit, why=f"{foreign}: {NOT_SIGNED} localhost:"),
        said(deployment, named, *submit, why=f"{named}: its certificate belongs to hospital-a"),
    ]
    stay_outside(named)
    tries = try_to_end(deployment)
    before = len(rejected(deployment, "fedavg"))
    wait_for_round(deployment, "fedavg", before + 2)
    with deployment.session(LEAD) as session:
        assert [one["job_id"] for one in session.list_jobs()] == [job], "nobody else's job is there"
        session.abort_job(job)
    assert deployment.wait(job) == "FINISHED:ABORTED", "the lead whose job it is stops it"
    done = rejected(deployment, "fedavg")
    assert done == [{}] * len(done)
    tries += try_to_end(deployment)
    last = deployment.submit(deployment.job("fedavg", name="last", rounds=1), LEAD)
    assert deployment.wait(last) == "FINISHED:COMPLETED" and rejected(deployment, "last") == [{}]
    assert [party.pid for party in deployment.parties] == processes
    deployment.shutdown()
    return (
        f"{len(told)} of {len(told)} commands refused by a sentence, {tries} of {tries} shutdowns without effect; the "
        f"job went on for {len(done)} rounds without a loss"
    )


def administrators() -> list[dict[str, str]]:
    """Return the administrators: the other lead has another organisation, where it may restart parties."""
    return [
        {"email": CHIEF, "organisation": "consortium", "role": "project_admin"},
        {"email": LEAD, "organisation": "consortium", "role": "lead"},
        {"email": OTHER_LEAD, "organisation": "university", "role": "lead"},
        {"email": MEMBER, "organisation": "consortium", "role": "member"},
    ]


def strangers(deployment: Deployment) -> list[Path]:
    """Return kits of an administrator with other certificates.

    The certificates are an expired one, one from a federation with equal names, and a site's, under its own name and
    under the administrator's name.
    """
    now, day = datetime.now(UTC), timedelta(days=1)
    foreign = deployment.folder / "foreign"
    described = describe({name: site.kit for name, site in deployment.sites.items()})
    server = deployment.federation.server
    described["server"] |= {"port": server.port, "admin_port": server.admin_port}
    provision(parse_federation(described), foreign)
    expired, site, named = (
        Path(shutil.copytree(deployment.kits / CHIEF, deployment.folder / what / CHIEF))
        for what in ("expired", "site", "named")
    )
    sign_again(expired.parent, CHIEF, begins=now - 2 * day, ends=now - day, by=deployment.kits)
    for kit in (site, named):
        for file in ("client.crt", "client.key"):
            shutil.copy(deployment.sites["hospital-a"].kit / "startup" / file, kit / "startup")
    edit(site / "startup" / "fed_admin.json", lambda file: file["admin"].update(username="hospital-a"))
    edit(named / "startup" / "fed_admin.json", lambda file: file["admin"].update(uid_source="user_input"))
    return [expired, foreign / CHIEF, site, named]


def said(deployment: Deployment, kit: Path, *words: str, why: str) -> str:
    """Run a `surgfl job` command in its own process; return its error message, which must contain the reason."""
    python = deployment.variables.get(PYTHON, sys.executable)
    command = [python, "-m", "shared_components.cli", "job", *words, "--admin", str(kit)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=deployment.variables, cwd=deployment.folder
    )
    assert done.returncode == 2 and not done.stdout, (words, done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and why in lines[0], (words, why, done.stderr)
    print(lines[0], flush=True)
    return lines[0]


def stay_outside(kit: Path) -> None:
    """Log in with plain FLARE, which does not check the certificate in advance; the server must refuse."""
    try:
        session = new_secure_session(CHIEF, str(kit), timeout=10.0, auto_login_max_tries=1)
    except Exception as error:
        assert "client_registration" in str(error), error
        return
    session.close()
    raise AssertionError(f"{kit} is let in as {CHIEF}")


def try_to_end(deployment: Deployment) -> int:
    """Let these administrators shut down every party without permission; return the number of attempts.

    FLARE answers with an error, or lets the sites refuse without an error.
    """
    tries = 0
    for who in (MEMBER, OTHER_LEAD):
        for kind in ("server", "client", "all"):
            with contextlib.suppress(*REFUSALS), deployment.session(who) as session:
                print(who, kind, session.shutdown(kind, wait=False), flush=True)
            tries += 1
    return tries
