"""Jobs with configurations that are not JSON; FLARE would evaluate them in every party's main process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from nvflare.fuel.flare_api.api_spec import AuthorizationError, InvalidJobDefinition

from evidence.production.deployment import Deployment
from evidence.production.hostile_jobs import deployed
from evidence.production.prepared import LEAD
from evidence.production.results import run_to_end
from evidence.production.trials import Deploy, trial
from evidence.production.trials.d_people import MEMBER, administrators
from tests.flare.simulator import edit

CANARY = "canary_of_a_job"
SINGS = "import os\nopen(os.path.join({marker!r}, os.path.basename(os.getcwd())), 'w').close()\n"
WITHOUT = """

import os

if os.environ.get("SURGFL_TEST_DEPLOYMENT", "").rpartition("/")[2] == {name!r}:
    read_only_json = import_only_installed = lambda: None
    from shared_components.flare.patches import site_commands

    site_commands._why_no_app = lambda body: None
"""
UNCHECKED = "hospital-c"
"""Name of the site without our check, which shows that the configurations are really dangerous."""
GUARDED = ("hospital-a", "hospital-b")
CONFIGS = {"client": "app/config/config_fed_client", "server": "app/config/config_fed_server"}


@trial("HOCON that imports code, opens a URL or reads a file")
def configurations(deploy: Deploy) -> str:
    """No party with the check evaluates a configuration; a site without it runs code, connects, and leaks a file."""
    deployment = deploy(change={"administrators": administrators()}, variables={"PYTHONSAFEPATH": ""})
    marker = deployment.folder / "marker"
    marker.mkdir()
    (deployment.root / CANARY).mkdir()
    (deployment.root / CANARY / "__init__.py").write_text(SINGS.format(marker=str(marker)))
    leave_out_check(deployment.root, UNCHECKED)
    with web_server() as (url, asked):
        texts = includes(url)
        deployment.start()
        submitted = submit_to_guarded_server(deployment, texts)
        deployment.server.kill()
        leave_out_check(deployment.root, deployment.server.name)
        deployment.server.start()
        deployment.wait_for_sites(*deployment.sites)
        refused = sum(refused_by_sites(deployment, name, text) for name, text in texts.items())
        refused += refuse_package(deployment)
        assert not list(marker.iterdir()) and not asked, (list(marker.iterdir()), asked)
        answers = {name: deploy_to(deployment, name, text, [UNCHECKED])[1] for name, text in texts.items()}
    assert [path.name for path in marker.iterdir()] == [UNCHECKED] and asked, "the jobs do what they are meant to do"
    assert answers["a file"] != answers["no file"], answers
    run_to_end(deployment, "fedavg", name="after", rounds=1)
    deployment.shutdown()
    return (
        f"{submitted} of {submitted} submissions and {refused} of {refused} deployments refused, 0 imports, "
        f"0 connections; at a site without the check 1 import, {len(asked)} connections, and a reply that depends on a "
        "file"
    )


def includes(url: str) -> dict[str, str]:
    """Return HOCON configurations, by their effect."""
    return {
        "a package": f'include package("{CANARY}.inner:x.conf")',
        "a url": f'include url("{url}")',
        "a file": f'include required(file("{Path(__file__).resolve()}"))',
        "no file": 'include required(file("/no/such/file"))',
    }


@contextmanager
def web_server() -> Iterator[tuple[str, list[str]]]:
    """Serve HTTP on loopback; yield the URL and the list of received requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x.conf", asked
    finally:
        server.shutdown()


def leave_out_check(installed: Path, name: str) -> None:
    """Let a party's processes parse configurations like plain FLARE, from the next start."""
    path = installed / "shared_components" / "flare" / "peers.py"
    path.write_text(path.read_text("utf-8") + WITHOUT.format(name=name))


def with_hocon(deployment: Deployment, text: str, sides: tuple[str, ...], sites: list[str]) -> Path:
    """Write a job for these sites with HOCON configurations on these sides."""
    job = deployment.job("fedavg", name="hocon", rounds=1)
    for side in sides:
        (job / f"{CONFIGS[side]}.json").unlink()
        (job / f"{CONFIGS[side]}.conf").write_text(text)
    edit(job / "meta.json", lambda meta: meta.update(deploy_map={"app": ["server", *sites]}))
    return job


def submit_to_guarded_server(deployment: Deployment, texts: dict[str, str]) -> int:
    """Submit each configuration as a lead and as a member; return the number of refused submissions."""
    count = 0
    for text in texts.values():
        for sides in (("client",), ("server",), ("client", "server")):
            job = with_hocon(deployment, text, sides, list(deployment.sites))
            for person, why in ((LEAD, f"{CONFIGS[sides[0]]}.conf"), (MEMBER, "")):
                try:
                    deployment.submit(job, person)
                except (AuthorizationError, InvalidJobDefinition) as error:
                    assert why in str(error), error
                    count += 1
    assert count == 2 * 3 * len(texts), count
    return count


def deploy_to(deployment: Deployment, name: str, text: str, sites: list[str]) -> tuple[str, list[str]]:
    """Deploy a lead's job with a configuration from the modified server; return its id and the sites' replies."""
    job = deployment.submit(with_hocon(deployment, text, ("client",), sites), LEAD)
    ended = deployment.wait(job)
    assert ended != "FINISHED:COMPLETED", (name, ended)
    replies = [one.replace(job, "") for one in deployed(deployment, job) if not one.startswith("server: ")]
    return job, replies


def refused_by_sites(deployment: Deployment, name: str, text: str) -> int:
    """Deploy a job from the modified server to the sites with the check; return the number of refusals."""
    job, replies = deploy_to(deployment, name, text, list(GUARDED))
    for site in GUARDED:
        why = [one for one in replies if one.startswith(f"{site}: ")]
        assert why and "config/config_fed_client.conf" in why[0] and "remove the file" in why[0], (name, replies)
        assert not (deployment.sites[site].kit / job).exists()
    return len(GUARDED)


def refuse_package(deployment: Deployment) -> int:
    """Deploy a job with a package in its config folder from the modified server; return the number of refusals."""
    job = deployment.job("fedavg", name="package", rounds=1)
    (job / "app/config/evil").mkdir()
    (job / "app/config/evil/__init__.py").write_text("")
    edit(job / "meta.json", lambda meta: meta.update(deploy_map={"app": ["server", *GUARDED]}))
    submitted = deployment.submit(job, LEAD)
    deployment.wait(submitted)
    for site in GUARDED:
        assert not (deployment.sites[site].kit / submitted).exists()
    said = deployed(deployment, submitted)
    refused = [one for one in said if "config/evil/__init__.py" in one and one.startswith(GUARDED)]
    assert len(refused) == len(GUARDED), said
    return len(refused)
