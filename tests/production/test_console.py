"""`surgfl job` against a real server: submit, list, watch, stop, fetch, and wrong commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.production.deployment import until
from evidence.production.prepared import CHIEF
from shared_components.cli import main
from shared_components.federation.runs.run_cleanup import find_runs

pytestmark = pytest.mark.slow


@pytest.fixture
def surgfl(capsys):
    """Return a function that runs a command of `surgfl job`, and returns the exit code and both outputs."""

    def run(deployment, *words, who=CHIEF):
        kit = who if "/" in str(who) else deployment.kits / who
        capsys.readouterr()  # drop FLARE's own output
        code = main(["job", *map(str, words), "--admin", str(kit)])
        out, err = capsys.readouterr()
        return code, out.strip(), err.strip()

    return run


def test_an_administrator_submits_watches_lists_stops_and_fetches(deploy_quick, surgfl, tmp_path):
    deployment = deploy_quick("hospital-a", "hospital-b")
    job = deployment.job("pfedsis", rounds=5)
    code, out, err = surgfl(deployment, "list")  # before the server starts
    assert (code, out) == (2, "") and "cannot be reached" in err and err.count("\n") == 0, err

    deployment.start()
    assert surgfl(deployment, "list") == (0, "no jobs", "")
    code, out, err = surgfl(deployment, "submit", job, "--set", "rounds=2", "--watch")
    first, *lines = out.splitlines()
    assert code == 0, out + err
    assert lines[-1] == f"surgfl: job {first} finished" and str(deployment.server.kit) not in out
    kit = deployment.kits / CHIEF
    assert lines[-2] == f"result  surgfl job fetch {first} --admin {kit} --out results"
    expected = {f"round {number}/2  {site}  loss " for number in (1, 2) for site in deployment.sites}
    assert all(sum(line.startswith(begin) for line in lines) == 1 for begin in expected), out

    code, out, err = surgfl(deployment, "fetch", first, "--out", tmp_path / "results")
    assert code == 0, out + err
    (result,) = (tmp_path / "results" / first).glob("**/surgfl_result")
    assert json.loads((result / "run.json").read_text())["rounds"] == 2
    page = (result / "report" / "index.html").read_text()
    assert "hospital-a" in page and "data:image/jpeg" not in page and "data:image/png" not in page
    last = json.loads((result / "rounds.jsonl").read_text().splitlines()[-1])
    expected = {"report/index.html", "run.json", "rounds.jsonl"}
    expected |= {f"models/server/{name}" for name in last["files"].values()}
    assert {str(p.relative_to(result)) for p in result.rglob("*") if p.is_file()} == expected
    assert len(expected) == 4, "the sites publish their models, so there is a model for unseen sites"
    assert not list(deployment.server.runs("pfedsis").glob("hospital-*/overlays"))
    code, out, err = surgfl(deployment, "fetch", first, "--out", tmp_path / "results")
    assert code == 2 and "exists already" in err

    code, second, err = surgfl(deployment, "submit", job, "--set", "rounds=500")
    assert code == 0, err
    until(lambda: " running " in surgfl(deployment, "list")[1], 60, "the second job runs")
    until(lambda: [run.done > 0 for run in find_runs(deployment.server.kit)] == [True, True], 60, "a round of it ends")
    assert surgfl(deployment, "fetch", second)[0] == 2
    assert surgfl(deployment, "stop", second) == (0, f"{second} is being stopped", "")
    code, out, err = surgfl(deployment, "watch", second)
    assert code == 3 and out.splitlines()[-1] == f"surgfl: job {second} stopped", out
    assert "STOPPED: " in out and "FAILED" not in out
    until(lambda: all(not party.job_pids(second) for party in deployment.parties), 60, "its processes have ended")
    for party in deployment.parties:
        newest = find_runs(party.kit)[-1]
        assert newest.status == ("stopped" if party is deployment.server else "unfinished")
        assert newest.method == "pfedsis" and 1 <= newest.done < 500 == newest.rounds
    assert "has ended already: stopped" in surgfl(deployment, "stop", second)[2]

    code, third, err = surgfl(deployment, "submit", job, "--resume", "another")
    code, out, err = surgfl(deployment, "watch", third)
    assert code == 1 and "has no run 'another'" in out.splitlines()[-1], out
    rows = surgfl(deployment, "list")[1]
    assert [rows.count(f" {state} ") for state in ("finished", "stopped", "failed")] == [1, 1, 1], rows

    wrong = "0f1e0f1e-0000-4000-8000-000000000000"
    for words in (("watch", wrong), ("stop", wrong), ("fetch", wrong)):
        code, out, err = surgfl(deployment, *words)
        assert (code, out) == (2, "") and f"there is no job {wrong}" in err, err
    code, out, err = surgfl(deployment, "list", who=deployment.kits / "hospital-a")
    assert code == 2 and "is the kit of a site" in err


def test_flares_console_logs_in_as_the_kits_owner_without_asking_for_a_name(deploy_quick):
    deployment = deploy_quick("hospital-a")
    deployment.start()
    path = f"{Path(sys.executable).parent}{os.pathsep}{deployment.variables['PATH']}"
    console = subprocess.run(
        [deployment.kits / CHIEF / "startup" / "fl_admin.sh"], input="check_status server\nlist_jobs\nbye\n",
        env={**deployment.variables, "PATH": path}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "User Name" not in console.stdout and "hospital-a" in console.stdout, console.stdout + console.stderr
