"""A process stops at the very call that is named, and only a process of a job does."""

import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.production import at_start
from evidence.production.deployment import Party, until
from evidence.production.holds import AT_SERVER, AT_SITE, Place, go_on, held

WORK = """\
class Work:
    def begin(self):
        print("begin", flush=True)

    def step(self):
        print("step", flush=True)

"""
MAIN = """\
from worked import Work

for _ in range(2):
    Work().begin()
    for _ in range(3):
        Work().step()
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that starts the work for a party of this folder; none of it is left."""
    shutil.copy(at_start.__file__, tmp_path / "sitecustomize.py")
    (tmp_path / "worked.py").write_text(WORK)
    (tmp_path / "main.py").write_text(MAIN)
    kit = tmp_path / "hospital-a"
    kit.mkdir()
    party = Party(kit, "client", "org", {at_start.VARIABLE: str(kit / "hold.json")})
    begun = []

    def start(*words):
        variables = {**os.environ, **party.variables, "PYTHONPATH": str(tmp_path)}
        file = (tmp_path / "said").open("w")
        begun.append(subprocess.Popen([sys.executable, "-m", "main", *words], cwd=tmp_path, env=variables, stdout=file))
        return begun[-1]

    yield party, start, tmp_path / "said"
    for process in begun:
        process.kill()
        process.wait()


def test_it_stops_before_the_named_call_and_goes_on_when_told(run):
    party, start, said = run
    with held(party, Place("worked:Work.step", 2, "worked:Work.begin", 2)) as reached:
        process = start("worker_process")
        assert reached() == process.pid
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T", "it is stopped"
        assert said.read_text().split() == ["begin", "step", "step", "step", "begin", "step"]
    go_on(process.pid)
    assert process.wait(20) == 0
    assert said.read_text().split().count("step") == 6


def test_a_held_process_can_be_killed(run):
    party, start, said = run
    with held(party, Place("worked:Work.begin")) as reached:
        process = start("runner_process")
        os.kill(reached(), signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL and said.read_text() == ""


def test_a_process_that_runs_no_job_goes_on(run):
    party, start, said = run
    with held(party, Place("worked:Work.begin")):
        process = start()
        until(lambda: process.poll() is not None, 20, "it has not ended")
    assert process.returncode == 0 and said.read_text().split().count("begin") == 2


@pytest.mark.parametrize("place", [*AT_SITE.values(), *AT_SERVER.values()], ids=str)
def test_every_place_is_a_function(place):
    for name in (place.where, place.after):
        assert not name or callable(pkgutil.resolve_name(name))
