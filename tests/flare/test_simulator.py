"""`nvflare simulator` itself: results, equal bits with any number of threads, kills and resumes, exit codes.

A launch takes 15 to 50 seconds, so several tests share one. All networks are narrow.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from tests.flare.simulator import CLIENT, JOBS, ROOT, Simulator, edit, tiny_job
from tests.narrow import narrow_copy

pytestmark = pytest.mark.slow

SITES = ("site-1", "site-2")
AT_ONCE = ("-n", "2", "-t", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("simulator")


@pytest.fixture(scope="module")
def job(folder):
    return tiny_job(folder, "pfedsis")


@pytest.fixture(scope="module")
def launch(folder, programs):
    return partial(Simulator, root=narrow_copy(folder / "narrow"), python=programs / "python")


@pytest.fixture(scope="module")
def plain(folder, job, launch):
    """The user's own command: without -t, every task is a separate process."""
    with launch(job, folder / "plain", "-n", "2") as simulator:
        simulator.code = simulator.wait()
    return simulator


@pytest.fixture(scope="module")
def killed(folder, job, launch):
    """A launch with -t 2 whose site-2 dies in round 1 (its third task)."""
    with launch(job, folder / "killed", *AT_ONCE) as simulator:
        os.kill(simulator.wait_for_task("site-2", 3), signal.SIGKILL)
        simulator.code = simulator.wait(90)
    return simulator


def weights(simulator):
    """Return every server tensor of the last round: models, mixtures and the hypernetworks."""
    return load_file(simulator.run / "server" / "round-00001.safetensors")


def records(simulator, kind="site"):
    lines = (simulator.run / "server" / "rounds.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def assert_equal_bits(a, b):
    assert a.keys() == b.keys() and len(a) > 200
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def test_the_plain_command_ends_well_and_its_workspace_has_the_final_models_of_the_state_folder(plain, folder):
    assert plain.code == 0, plain.output[-4000:]
    page, models = folder / "plain" / "report" / "index.html", folder / "plain" / "models"
    assert plain.last_line == f"surgfl: pfedsis finished 2 rounds; models {models}, report {page}"
    assert page.stat().st_size > 10_000 and "</html>" in page.read_text()
    for site in SITES:
        for name in ("model", "best"):
            copy, model = (parent / site / f"{name}.safetensors" for parent in (models, plain.run))
            assert copy.read_bytes() == model.read_bytes() and copy.samefile(model)
    assert f"models  {models}/<site>/model.safetensors" in plain.output
    assert f"state   {plain.run}\n" in plain.output


# Lines that a run prints; all other lines are not ours.
OURS = re.compile(
    r"pfedsis: 2 sites|site site-\d begins|(enrol|round \d/\d|finish)  |finished$|Dice on the validation|site  +|-+ |"
    r"(site-\d|mean over sites|worst site) |\(first: |(models|report|state)  |FLARE ends its|surgfl: |server |$"
)


def test_at_most_five_lines_of_a_run_are_not_ours(plain):
    """FLARE logs a line for each process of each task."""
    foreign = [line for line in plain.output.splitlines() if not OURS.match(line)]
    assert len(foreign) <= 5, foreign
    logs = [(plain.workspace / party / "log.txt").read_text() for party in ("server", *SITES)]
    assert all("ClientTaskWorker started to run" in log for log in logs[1:])
    assert "nvflare" not in plain.output.replace("nvflare simulator", "") and "Traceback" not in plain.output


def test_two_threads_give_the_same_bits_as_one_even_after_a_kill(plain, killed, folder, job, launch):
    """site-2's process dies in round 1, and the resumed launch ends."""
    assert not (killed.run / "server" / "round-00001.safetensors").exists()
    with launch(job, folder / "killed", *AT_ONCE, SURGFL_RESUME="1") as last:
        assert last.wait() == 0, last.output[-4000:]
    assert "resuming" in last.output and "round 1/2" not in last.output
    assert_equal_bits(weights(plain), weights(last))
    assert len(list(last.state.glob("[0-9]*"))) == 1
    for site in SITES:
        name = f"{site}/model.safetensors"
        assert_equal_bits(*(load_file(one.run / name) for one in (plain, last)))


def test_the_script_trains_to_the_weights_of_the_simulators_command(plain, job, launch, tmp_path):
    shutil.copytree(job, tmp_path / "jobs" / "pfedsis")
    done = run_script(tmp_path, sys.executable, launch.keywords["root"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("surgfl: pfedsis finished 2 rounds; models ")
    for site in SITES:
        for name in ("model", "best"):
            path = f"models/{site}/{name}.safetensors"
            assert_equal_bits(load_file(plain.workspace / path), load_file(tmp_path / "py" / "pfedsis" / path))
    assert (tmp_path / "py-state" / "pfedsis" / "latest" / "run.json").is_file()


def test_a_failed_job_ends_with_its_reason_also_in_the_script(tmp_path, programs):
    tiny_job(tmp_path / "jobs", "pfedsis", sensitivty_images=2)
    done = run_script(tmp_path, programs / "python", ROOT)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("surgfl: job pfedsis FAILED: config_fed_server.json: ") and "sensitivty_images" in last


def run_script(folder, python, root):
    shutil.copy(JOBS / "job.py", folder / "jobs")
    command = [python, folder / "jobs" / "job.py", "pfedsis", "-n", "2", "-w", folder / "py"]
    variables = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": ""}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=400, cwd=root)


def test_a_dead_client_ends_the_job_and_is_named(killed):
    assert killed.code not in (0, None)
    assert killed.last_line.startswith("surgfl: job pfedsis FAILED: round 2 has 1 valid update and needs 2")
    assert "site-2: its process died" in killed.last_line


def test_sites_that_cannot_build_their_executor_end_the_job(tmp_path, launch):
    job = tiny_job(tmp_path, "fedavg")
    misspelt = {"path": "shared_components.flare.executor.SiteExecutors"}
    edit(job / CLIENT, lambda config: config["executors"][0]["executor"].update(misspelt))
    with launch(job, tmp_path / "ws", *AT_ONCE) as simulator:
        assert simulator.wait(90) not in (0, None)
    line = simulator.last_line
    assert line.startswith("surgfl: job fedavg FAILED: ") and all(f"{site}: no answer" in line for site in SITES)
    assert "config_fed_client.json" in line and "SiteExecutors" in line
    assert not list(simulator.state.rglob("round-*"))
