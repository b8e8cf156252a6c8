"""FLARE's own rehearsal, `nvflare poc`: its kits become strict by one command."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from evidence.production.deployment import MARK, marked, until
from evidence.production.prepared import free_ports
from shared_components.cli import main
from tests.flare.simulator import ROOT

pytestmark = pytest.mark.slow

NVFLARE = Path(sys.executable).with_name("nvflare")
SITES = ("hospital-a", "hospital-b")


@pytest.fixture
def poc(tmp_path):
    """Return a function that runs `nvflare poc` with a home and a workspace of its own; nothing of it stays."""
    mark = tmp_path.name + str(os.getpid())
    variables = {
        **os.environ, MARK: mark, "HOME": str(tmp_path / "home"), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PATH": f"{NVFLARE.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    (tmp_path / "home").mkdir()

    def run(*arguments, **more):
        words = {"cwd": tmp_path, "env": {**variables, **more}, "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run([NVFLARE, "poc", *arguments], **words)
        assert done.returncode == 0, done.stdout + done.stderr

    run.mark = mark
    yield run
    for process in marked(mark):
        process.kill()
    psutil.wait_procs(marked(mark), timeout=10)


def test_a_rehearsal_starts_with_kits_that_one_command_makes_strict(poc, tmp_path):
    port, admin_port = free_ports(2)
    (tmp_path / "project.yml").write_text(yaml.safe_dump(project(port, admin_port)))
    poc("prepare", "-i", "project.yml")
    kits = tmp_path / "poc" / "rehearsal" / "prod_00"
    for name in ("localhost", *SITES):
        assert main(["secure-kit", str(kits / name)]) == 0
    poc("start", PYTHONPATH=str(ROOT))  # waits until the server sees the sites
    for name in SITES:
        assert "Successfully registered" in (kits / name / "log.txt").read_text()
    poc("stop")
    until(lambda: not marked(poc.mark), 30, "the rehearsal has not ended")


def project(port, admin_port):
    """Return a description as FLARE wants it."""
    builders = ["workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder"]
    organisation = {"org": "consortium"}
    return {
        "api_version": 3,
        "name": "rehearsal",
        "participants": [
            {"name": "localhost", "type": "server", "fed_learn_port": port, "admin_port": admin_port, **organisation},
            *({"name": name, "type": "client", **organisation} for name in SITES),
            {"name": "chief@example.org", "type": "admin", "role": "project_admin", **organisation},
        ],
        "builders": [{"path": f"nvflare.lighter.impl.{name}"} for name in builders],
    }
