"""The job folders of `nvflare_jobs`, two rounds each by their own files; a simulator runs those of `LAUNCHED`."""

import json
import shutil

import pytest
import yaml
from safetensors.torch import load_file

from shared_components.core.method import load_method, method_names
from tests.flare.conftest import run_here
from tests.flare.simulator import CLIENT, JOBS, SERVER, edit, tiny_job

JOB_NAMES = sorted(path.name for path in JOBS.iterdir() if path.is_dir())
LAUNCHED = ("fedst", "mat_fl", "pfedsis")
"""Jobs that `test_simulator.py` and `test_several_tasks.py` launch as they are."""


def test_all_jobs_give_the_sites_the_same_file():
    assert JOB_NAMES == sorted(method_names()) and {*LAUNCHED} <= {*JOB_NAMES}
    assert len({(JOBS / name / CLIENT).read_bytes() for name in JOB_NAMES}) == 1


@pytest.fixture
def sites_of(scenes, tmp_path):
    """Return a function that describes the scenes for a job's sites, by turns with two class maps if it may."""

    def describe(job):
        requires = load_method(job).requires
        names = [f"hospital-{letter}" for letter in "abcdef"[: max(3, requires.min_sites)]]
        for number, name in enumerate(names):
            path = scenes[number % len(scenes)]
            config = yaml.safe_load(path.read_text())
            config["root"] = str((path.parent / config["root"]).resolve())
            if requires.multi_task:
                config["classes"] = ("parts", "shaft_manipulator")[number % 2]
            (tmp_path / "data" / name).mkdir(parents=True)
            (tmp_path / "data" / name / "site.yaml").write_text(yaml.safe_dump(config))
        return names

    return describe


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*JOB_NAMES} - {*LAUNCHED}))
def test_a_job_runs_two_rounds_by_its_own_file(name, sites_of, tmp_path):
    """On narrow networks, which no shipped weights fit."""
    job, sites = tiny_job(tmp_path, name), sites_of(name)
    edit(job / SERVER, lambda config: config["workflows"][0]["args"]["training"].update(start="random"))
    ended = run_here(job, tmp_path / "ws", sites=sites, SURGFL_SITE_CONFIG=str(tmp_path / "data"))
    assert ended.panics == [] and ended.last_line.startswith(f"surgfl: {name} finished 2 rounds; models ")
    records = [json.loads(line) for line in (ended.run / "server" / "rounds.jsonl").read_text().splitlines()]
    seen = {(one["site"], one["round"]) for one in records if one["kind"] == "site"}
    assert seen == {(site, round) for site in sites for round in (0, 1, 2)}
    assert not any(one["rejected"] for one in records if one["kind"] == "aggregation")
    models = [load_file(ended.run / site / "model.safetensors") for site in sites]
    heads = [len(model["head_global.bias" if "head_global.bias" in model else "head.bias"]) for model in models]
    coarse = load_method(name).requires.multi_task  # every other site has one class fewer
    assert heads == [3 if coarse and number % 2 else 4 for number in range(len(sites))]
    shutil.rmtree(tmp_path / "ws-state")
