"""`SurgFLRecipe`: the job folders that it writes, and its runs in FLARE's simulator and proof of concept."""

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import nvflare
import psutil
import pytest
import torch
import yaml
from nvflare.recipe import PocEnv, ProdEnv, SimEnv
from safetensors.torch import load_file

from shared_components.flare.deployment.job_folder import read_job_folder
from shared_components.flare.deployment.submission import find_job, write_submission
from shared_components.flare.recipe import SurgFLRecipe
from shared_components.flare.tracking import VARIABLE
from tests.flare.simulator import CLIENT, JOBS, ROOT, SERVER, edit, tiny_job

FILES = (SERVER, CLIENT, "meta.json")
SETTINGS = {"rounds": 2, "training": {"iterations": 3}}


def contents(job):
    return {name: json.loads((job / name).read_text()) for name in FILES}


def files_of(job):
    return {path.relative_to(job).as_posix() for path in job.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["pfedsis", "fedst"])
def test_an_export_is_the_job_that_surgfl_job_submits(tmp_path, name):
    SurgFLRecipe(name, resume="latest", **SETTINGS).export(str(tmp_path / "recipe"))
    submitted = write_submission(find_job(name), tmp_path / "command", settings=SETTINGS, resume="latest")
    exported = tmp_path / "recipe" / name
    assert contents(exported) == contents(submitted) and files_of(exported) == files_of(submitted) == set(FILES)
    read = read_job_folder(exported)
    assert read.problems == read.code == read.marked == () and read.job.rounds == 2


def test_a_job_folder_is_read_as_a_shipped_job_is(tmp_path):
    SurgFLRecipe(JOBS / "fedavg").export(str(tmp_path / "path"))
    SurgFLRecipe("fedavg").export(str(tmp_path / "name"))
    assert contents(tmp_path / "path" / "fedavg") == contents(tmp_path / "name" / "fedavg")


@pytest.fixture
def deployed(monkeypatch, tmp_path):
    """Return the jobs that environments deploy, each as its exported files, and the variables at that moment."""
    seen = []

    def deploy(env, job):
        job.export_job(str(tmp_path / f"deployed-{len(seen)}"))
        variables = {name: os.environ.get(name) for name in (VARIABLE, "SURGFL_STATE")}
        seen.append((files_of(tmp_path / f"deployed-{len(seen)}" / job.name), variables))
        return "job-id"

    for environment in (SimEnv, PocEnv, ProdEnv):
        monkeypatch.setattr(environment, "deploy", deploy)
    monkeypatch.delenv("SURGFL_STATE", raising=False)
    return seen


def test_only_a_production_job_has_no_folder_of_code(deployed, tmp_path):
    recipe = SurgFLRecipe("fedavg")
    simulator = partial(SimEnv, num_clients=2, workspace_root=str(tmp_path / "ws"))
    for env in (simulator(), PocEnv(num_clients=2), ProdEnv(str(tmp_path)), simulator()):
        assert recipe.execute(env).get_job_id() == "job-id"
    marked = {*FILES, "app/custom/.gitkeep"}
    assert [files for files, _ in deployed] == [marked, marked, set(FILES), marked]


def test_the_environment_variables_of_a_run_are_taken_back(deployed, tmp_path, monkeypatch):
    recipe = SurgFLRecipe("fedavg", tracking="tensorboard")
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "ws")))
    assert deployed[0][1] == {VARIABLE: "tensorboard", "SURGFL_STATE": str(tmp_path / "ws-state")}
    assert VARIABLE not in os.environ and "SURGFL_STATE" not in os.environ
    monkeypatch.setenv("SURGFL_STATE", "/mine")
    SurgFLRecipe("fedavg").execute(SimEnv(num_clients=2, workspace_root=str(tmp_path / "ws")))
    assert deployed[1][1] == {VARIABLE: None, "SURGFL_STATE": "/mine"} and os.environ["SURGFL_STATE"] == "/mine"


@pytest.mark.parametrize(
    ("job", "settings", "words"),
    [
        ("fedavgg", {}, "or one of .*fedavg"), ("fedavg", {"rounds": 0}, "rounds"), ("fedavg", {"round": 2}, "round"),
        ("fedavg", {"tracking": "neptune"}, "tracking is 'neptune'; write mlflow, tensorboard, wandb"),
    ],
)  # fmt: skip
def test_a_wrong_job_setting_or_tracker_is_one_sentence(job, settings, words):
    with pytest.raises(ValueError, match=words) as raised:
        SurgFLRecipe(job, **settings)
    assert "\n" not in str(raised.value)


def test_an_environment_that_is_none_of_flares_is_refused():
    with pytest.raises(ValueError, match="env is dict; give SimEnv, PocEnv or ProdEnv"):
        SurgFLRecipe("fedavg").execute({})


def test_a_production_server_selects_its_own_tracker(deployed, tmp_path):
    with pytest.raises(ValueError, match="set SURGFL_TRACKING there"):
        SurgFLRecipe("fedavg", tracking="tensorboard").execute(ProdEnv(str(tmp_path)))
    assert deployed == []


@pytest.mark.parametrize("name", ["server", "local"])
def test_a_site_with_the_name_of_a_folder_of_flare_is_refused(deployed, tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} are FLARE's own folders"):
        SurgFLRecipe("fedavg").execute(SimEnv(clients=["a", name], workspace_root=str(tmp_path)))
    assert deployed == []


def test_a_folder_with_other_files_is_not_emptied(deployed, tmp_path):
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="FLARE would empty it"):
        SurgFLRecipe("fedavg").execute(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    assert deployed == [] and (tmp_path / "fedavg" / "thesis.txt").read_text() == "mine"


def test_a_job_that_flares_interface_cannot_write_is_refused(tmp_path):
    job = tiny_job(tmp_path, "fedavg")
    edit(job / "meta.json", lambda meta: meta.update(mandatory_clients=["hospital-a"]))
    with pytest.raises(ValueError, match=r"fedavg/meta.json: a recipe has one app for @ALL.*surgfl job"):
        SurgFLRecipe(job)


RUN = """
import sys
from pathlib import Path
from nvflare.recipe import PocEnv, SimEnv
from surgfl.flare import SurgFLRecipe

if __name__ == "__main__":
    env, job, folder = sys.argv[1], sys.argv[2], sys.argv[3]
    recipe = SurgFLRecipe(job, tracking="tensorboard")
    if env == "sim":
        run = recipe.execute(SimEnv(clients=["site-1", "site-2"], workspace_root=folder))
    else:
        run = recipe.execute(PocEnv(num_clients=2, project_conf_path=sys.argv[4]))
    print(run.get_result(timeout=400, clean_up=False))
"""


def models_of(folder):
    return {site: load_file(folder / site / "model.safetensors") for site in ("site-1", "site-2")}


@pytest.mark.slow
def test_simulator_recipe_and_proof_of_concept_give_equal_bits(tmp_path, scenes):
    """FLARE's proof of concept starts a server and two sites on loopback, with a port of its own."""
    job = tiny_job(tmp_path / "jobs", "fedavg")
    (tmp_path / "run.py").write_text(RUN)
    variables = {
        **os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "SURGFL_SITE_CONFIG": str(scenes[0].parent.parent), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip

    def run(*command):
        done = subprocess.run([*map(str, command)], env=variables, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    run(sys.executable, "-m", "nvflare.cli", "simulator", job, "-w", tmp_path / "plain", "-n", 2, "-t", 2)
    expected = models_of(tmp_path / "plain-state" / "fedavg" / "latest")
    run(sys.executable, "run.py", "sim", job, tmp_path / "ws")
    simulated = models_of(tmp_path / "ws-state" / "fedavg" / "latest")
    try:
        done = run(sys.executable, "run.py", "poc", job, tmp_path, poc_project(tmp_path / "project.yml"))
    finally:
        end_poc(tmp_path / "poc")
    result = Path(done.stdout.splitlines()[-1]) / "workspace"
    assert json.loads((result / "surgfl_result" / "run.json").read_text())["job"]["name"] == "fedavg"
    kits = tmp_path / "poc" / "example_project" / "prod_00"
    deployed = {
        site: load_file(kits / site / "surgfl" / "fedavg" / "latest" / site / "model.safetensors") for site in expected
    }
    for site in expected:
        for other in (simulated[site], deployed[site]):
            assert expected[site].keys() == other.keys()
            assert all(torch.equal(expected[site][name], other[name]) for name in other)


def poc_project(path):
    """Write FLARE's own project of a server and two sites with a free port."""
    project = yaml.safe_load((Path(nvflare.__file__).parent / "lighter" / "dummy_project.yml").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for party in project["participants"]:
        if party["type"] == "server":
            party.update(name="server", default_host="localhost", fed_learn_port=port, admin_port=port)
    path.write_text(yaml.safe_dump(project))
    return path


def end_poc(workspace):
    """End the processes of a proof of concept: its folder is in their command line."""
    mine = [one for one in psutil.process_iter(["cmdline"]) if str(workspace) in " ".join(one.info["cmdline"] or [])]
    for process in mine:
        process.kill()
    psutil.wait_procs(mine, timeout=20)
