"""Strict kits refuse code and unlisted classes in jobs; and FLARE's own rehearsal, `nvflare poc`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from evidence.production.deployment import MARK, marked, until
from evidence.production.hostile_jobs import UNLISTED, WORKFLOW, deployed, naming, with_code
from evidence.production.prepared import free_ports
from shared_components.cli import main
from shared_components.flare.deployment.kits import find_kit, secure
from tests.docs.rules import blocks_of
from tests.flare.simulator import CLIENT, ROOT, SERVER, edit

pytestmark = pytest.mark.slow

NVFLARE = Path(sys.executable).with_name("nvflare")
SITES = ("site-1", "site-2")


@pytest.fixture
def poc(tmp_path):
    """Return a function that runs bash with its own home and workspace of `nvflare poc`; its processes end."""
    mark = tmp_path.name + str(os.getpid())
    variables = {
        **os.environ, MARK: mark, "HOME": str(tmp_path / "home"), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PATH": f"{NVFLARE.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    (tmp_path / "home").mkdir()

    def run(*arguments, **more):
        words = {"cwd": tmp_path, "env": {**variables, **more}, "capture_output": True, "text": True, "timeout": 400}
        done = subprocess.run(["bash", *arguments], check=False, **words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.mark = mark
    yield run
    for process in marked(mark):
        process.kill()
    psutil.wait_procs(marked(mark), timeout=10)


SMALL = "--set rounds=1 --set training.iterations=1 --set training.height=32 --set training.width=64"


def test_a_rehearsal_of_the_guide_trains(poc, tmp_path):
    """Run the block of docs/how-to/deploy.md with other ports, another folder and a tiny job."""
    blocks = blocks_of(ROOT / "docs" / "how-to" / "deploy.md", "deploy")
    (commands,) = (block.text for block in blocks if "nvflare poc start" in block.text)
    (tmp_path / "project.yml").write_text(yaml.safe_dump(project(*free_ports(2))))
    for old, new in (
        ("/tmp/nvflare/poc/", f"{tmp_path}/poc/"), ("-n 2", "-i project.yml"), ("--watch", f"{SMALL} --watch"),
        ("--videos 1,1,1", "--videos 1,1,1 --width 96 --height 64"),
    ):  # fmt: skip
        commands = commands.replace(old, new)
    kits = tmp_path / "poc" / "example_project" / "prod_00"
    done = poc("-euo", "pipefail", "-c", commands, PYTHONPATH=str(ROOT))
    assert re.search(r"^surgfl: job \S+ finished$", done, re.M), done
    for name in SITES:
        assert "a template; fill it in" in done and (kits / name / "local" / "site.yaml").is_file()
        assert (kits / name / "surgfl" / "fedavg").is_dir()
    until(lambda: not marked(poc.mark), 30, "the rehearsal has not ended")


def project(port, admin_port):
    builders = ["workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder"]
    ports = {"default_host": "localhost", "fed_learn_port": port, "admin_port": admin_port}
    participants = [
        {"name": "server", "type": "server", **ports}, *({"name": name, "type": "client"} for name in SITES),
        *({"name": f"{name}@nvidia.com", "type": "admin", "role": role}
          for name, role in (("admin", "project_admin"), ("lead", "lead"))),
    ]  # fmt: skip
    return {
        "api_version": 3, "name": "example_project",
        "participants": [participant | {"org": "consortium"} for participant in participants],
        "builders": [{"path": f"nvflare.lighter.impl.{name}"} for name in builders],
    }  # fmt: skip


@pytest.fixture
def marker(tmp_path):
    """Return a folder where a job's code writes a file when it is imported."""
    (tmp_path / "marker").mkdir()
    return tmp_path / "marker"


def test_a_strict_site_runs_our_jobs_and_refuses_code_and_classes_that_are_not_listed(deploy_quick, marker):
    """The server would accept the code."""
    deployment = deploy_quick("hospital-a", "hospital-b")
    secure(find_kit(deployment.server.kit), allow_custom_code=True)
    deployment.start()
    brings = deployment.submit(with_code(deployment, marker))
    assert deployment.wait(brings) == "FINISHED:FAILED_TO_RUN"
    details = "\n".join(deployed(deployment, brings))
    assert all(f"{name}: NVFLARE_ERROR: BYOC not permitted" in details for name in deployment.sites)
    other = deployment.submit(naming(deployment.job("fedavg", name="other"), CLIENT, UNLISTED))
    assert deployment.wait(other) != "FINISHED:COMPLETED"
    for site in deployment.sites.values():
        assert f"Component '{UNLISTED}' at config path" in site.log and "is not in allow_list" in site.log
    ours = deployment.submit(deployment.job("fedavg", rounds=1))
    assert deployment.wait(ours) == "FINISHED:COMPLETED", deployment.server.log[-4000:]
    assert list(marker.iterdir()) == []


def test_a_strict_server_refuses_code_and_workflows_that_are_not_listed(deploy_quick, marker):
    deployment = deploy_quick("hospital-a")
    secure(find_kit(deployment.sites["hospital-a"].kit), allow_custom_code=True)
    deployment.start()
    brings = deployment.submit(with_code(deployment, marker))
    assert deployment.wait(brings) == "FINISHED:FAILED_TO_RUN"
    assert "server: BYOC not permitted" in "\n".join(deployed(deployment, brings))
    other = deployment.submit(naming(deployment.job("fedavg", name="other"), SERVER, WORKFLOW))
    assert deployment.wait(other) != "FINISHED:COMPLETED"
    log = deployment.server.log
    assert f"Component '{WORKFLOW}' at config path" in log and "is not in allow_list" in log
    assert list(marker.iterdir()) == []


def test_kits_that_allow_code_run_it_and_their_own_filter_still_guards_what_leaves(deploy_quick, marker):
    deployment = deploy_quick("hospital-a")
    for party in deployment.parties:
        secure(find_kit(party.kit), allow_custom_code=True)
    deployment.start()
    job = with_code(deployment, marker)
    edit(job / CLIENT, lambda config: config.update(task_result_filters=[]))  # the job guards nothing
    assert deployment.wait(deployment.submit(job)) != "FINISHED:COMPLETED"
    assert [path.name for path in marker.iterdir()] == ["hospital-a"]
    assert "nothing was sent" in deployment.sites["hospital-a"].log


@pytest.mark.parametrize("name", ["localhost", "hospital-a"])
def test_no_party_starts_without_what_restricts_it(deploy, tmp_path, name):
    """Not from a kit that `nvflare deploy prepare` has made, which has no resources.json, nor by its own script."""
    deployment = deploy("hospital-a")
    (party,) = (one for one in deployment.parties if one.name == name)
    prepared = tmp_path / "prepared" / name
    (tmp_path / "docker.yaml").write_text(yaml.safe_dump({"runtime": "docker", "parent": {"docker_image": "surgfl"}}))
    words = ["deploy", "prepare", party.kit, "--output", prepared, "--config", tmp_path / "docker.yaml"]
    variables = {**party.variables, "HOME": str(tmp_path)}
    subprocess.run([NVFLARE, *words], env=variables, check=True, capture_output=True, timeout=120)
    assert not (prepared / "local" / "resources.json").exists()
    own, party.kit = party.kit, prepared
    party.start()
    assert party.process.wait(60) == 1
    assert f"{prepared}/local/resources.json: no such file, so FLARE's own defaults would apply" in party.log
    # a server's prepared kit stays closed, see `prepared.find_launcher`
    code = 0 if party in deployment.sites.values() else 2
    assert main(["secure-kit", str(prepared)]) == main(["secure-kit", "--check", str(prepared)]) == code
    assert (prepared / "local" / "resources.json").exists() == (code == 0)
    (own / "local" / "resources.json").write_text("")
    path = f"{NVFLARE.parent}{os.pathsep}{party.variables['PATH']}"
    done = subprocess.run(
        [own / "startup" / "sub_start.sh"], cwd=own, env={**party.variables, "PATH": path}, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert f"{own}/local/resources.json: cannot be read" in done.stderr
