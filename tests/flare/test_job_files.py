"""The job folders of `nvflare_jobs` that `test_simulator.py` launches none of: two rounds by their own files."""

import json

import pytest
from safetensors.torch import load_file

from shared_components.core.method import method_names
from shared_components.flare.controller import FederationController
from tests.flare.conftest import SITES, ByHand
from tests.flare.simulator import CLIENT, JOBS, SERVER, edit, tiny_job
from tests.flare.test_simulator import LAUNCHED

JOB_NAMES = sorted(path.name for path in JOBS.iterdir() if path.is_dir())
OTHERS = sorted({*JOB_NAMES} - {*LAUNCHED})


def test_all_jobs_give_the_sites_the_same_file():
    assert JOB_NAMES == sorted(method_names()) and {*LAUNCHED} <= {*JOB_NAMES}
    assert len({(JOBS / name / CLIENT).read_bytes() for name in JOB_NAMES}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_job_runs_two_rounds_by_its_own_file(name, workspace, said, tmp_path):
    """On narrow networks, which no shipped weights fit."""
    job = tiny_job(tmp_path, name)
    edit(job / SERVER, lambda config: config["workflows"][0]["args"]["training"].update(start="random"))
    (workflow,) = json.loads((job / SERVER).read_text())["workflows"]
    kind = f"{FederationController.__module__}.{FederationController.__name__}"
    assert workflow["path"] == kind
    controller = ByHand(workspace, **workflow["args"]).start()
    assert controller.panics == []
    assert said[-1].startswith(f"surgfl: {name} finished 2 rounds; models ")
    run = workspace.with_name("ws-state") / name / "latest"
    records = [json.loads(line) for line in (run / "server" / "rounds.jsonl").read_text().splitlines()]
    seen = {(one["site"], one["round"]) for one in records if one["kind"] == "site"}
    assert seen == {(site, round) for site in SITES for round in (0, 1, 2)}
    assert not any(one["rejected"] for one in records if one["kind"] == "aggregation")
    assert all(load_file(run / site / "model.safetensors") for site in SITES)
