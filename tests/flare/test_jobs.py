"""The job folders of `nvflare_jobs`, by FLARE's Python interface and two rounds each by their own files."""

import importlib.util
import json
import shutil

import pytest
from safetensors.torch import load_file

from shared_components.core.method import load_method, method_names
from shared_components.flare.workspaces import refuse_foreign
from tests.federation.conftest import rewritten
from tests.flare.conftest import run_here
from tests.flare.simulator import CLIENT, JOBS, SERVER, edit, tiny_job


@pytest.fixture(scope="module")
def script():
    """Return the module `nvflare_jobs/job.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("job", JOBS / "job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["pfedsis", "fedst", "mat_fl"])
def test_an_exported_job_is_the_one_of_the_folder(script, tmp_path, capsys, name):
    assert script.main([name, "--export", str(tmp_path / "jobs")]) == 0
    exported = tmp_path / "jobs" / name
    for path in (SERVER, CLIENT, "meta.json"):
        assert json.loads((exported / path).read_text()) == json.loads((JOBS / name / path).read_text())
    assert (exported / "app" / "custom" / ".gitkeep").is_file()
    assert sum(path.is_file() for path in exported.rglob("*")) == 4
    assert capsys.readouterr().out == f"{exported}: written\n"


def test_a_job_for_strict_sites_is_the_same_without_its_folder_of_code(script, tmp_path):
    assert script.main(["fedavg", "--export", str(tmp_path), "--strict"]) == 0
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {f"fedavg/{path}" for path in (SERVER, CLIENT, "meta.json")}
    assert (tmp_path / "fedavg" / SERVER).read_text() == (JOBS / "fedavg" / SERVER).read_text()


def test_an_export_overwrites_nothing(script, tmp_path, capsys):
    (tmp_path / "fedavg").mkdir()
    (tmp_path / "fedavg" / "mine.txt").write_text("mine")
    assert script.main(["fedavg", "--export", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["fedavg", "mine.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["fedavgg"], "there is no job 'fedavgg'"), (["../nvflare_jobs/fedavg"], "there is no job"),
        (["fedavg", "-n", "0"], "at least one site"), (["fedavg", "-c", "a,,b"], "at least one site"),
        (["fedavg", "-c", "a,a"], "each another name"), (["fedavg", "-n", "2", "-t", "3"], "from 1 to 2"),
        (["fedavg", "-t", "0"], "from 1 to 3"), (["fedavg", "-w", "a b"], "has a space, a quote"),
        (["fedavg", "-c", "a,server"], "are FLARE's own folders"),
        (["fedavg", "--strict"], "--strict goes with --export"),
        (["fedavg", "--tracking", "neptune"], "tracking is 'neptune'"),
        (["fedavg", "--tracking", "mlflow", "--export", "jobs"], "--tracking goes without --export"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_sentence(script, capsys, options, words):
    assert script.main(options) == 2
    error = capsys.readouterr().err
    assert error.startswith("job.py: ") and words in error and error.count("\n") == 1


@pytest.mark.parametrize("theirs", ["fedavg/thesis.txt", "fedavg/server/notes.txt", "fedavg"])
def test_a_folder_with_other_files_is_not_emptied(script, tmp_path, capsys, theirs):
    path = tmp_path / theirs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    if "server" in theirs:
        (tmp_path / "fedavg" / "photos").mkdir()
    assert script.main(["fedavg", "-w", str(tmp_path)]) == 2
    assert "FLARE would empty it" in capsys.readouterr().err and path.read_text() == "mine"


def test_a_workspace_of_flare_is_accepted(tmp_path):
    refuse_foreign(tmp_path / "new")
    (tmp_path / "begun" / "local").mkdir(parents=True)
    refuse_foreign(tmp_path / "begun")
    (tmp_path / "done" / "server" / "simulate_job").mkdir(parents=True)
    (tmp_path / "done" / "report").mkdir()
    refuse_foreign(tmp_path / "done")


JOB_NAMES = sorted(path.name for path in JOBS.iterdir() if path.is_dir() and path.name[0] not in "_.")
OF_METHODS = [name for name in JOB_NAMES if name in method_names()]  # others have a test of their own
LAUNCHED = ("fedst", "mat_fl", "pfedsis")  # by other tests


def test_every_method_has_a_job_and_all_jobs_give_the_sites_the_same_file(script):
    assert JOB_NAMES == script.names() and OF_METHODS == sorted(method_names()) and {*LAUNCHED} <= {*JOB_NAMES}
    (text,) = {(JOBS / name / CLIENT).read_text() for name in JOB_NAMES}
    parts = [part for kind in ("executors", "task_result_filters") for part in json.loads(text)[kind]]
    assert [part["tasks"] for part in parts] == [["enrol", "round", "unmask", "finish"]] * 2


@pytest.fixture
def sites_of(scenes, tmp_path):
    """Return a function that describes a job's sites, with two class maps in turn if the method permits it."""

    def describe(job):
        requires, sends = load_method(job).requires, load_method(job).local.items
        mixed = requires.multi_task and not sends  # texts' vectors are shipped for the data sets' own classes
        names = [f"hospital-{letter}" for letter in "abcdef"[: max(3, requires.min_sites)]]
        for number, name in enumerate(names):
            own = {"classes": ("parts", "shaft_manipulator")[number % 2]} if mixed else {}
            rewritten(scenes[number % len(scenes)], tmp_path / "data" / name, **own)
        return names

    return describe


def one_of_each_kind():
    """Return a job for each set of a site's own work, with one task or several; FedDP brings networks of its own."""
    kinds = {}
    for name in OF_METHODS:
        method = load_method(name)
        own = {key for key, value in vars(method.local).items() if value} - {"objective", "measure_images"}
        kinds.setdefault((frozenset(own), method.requires.multi_task), name)
    return sorted({*kinds.values(), "fedavg", "feddp"} - {*LAUNCHED})


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each_kind())
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
    if name != "surgfed":  # whose network has no layer per class
        heads = [len(model["head_global.bias" if "head_global.bias" in model else "head.bias"]) for model in models]
        coarse = load_method(name).requires.multi_task  # every other site has one class fewer
        assert heads == [3 if coarse and number % 2 else 4 for number in range(len(sites))]
    shutil.rmtree(tmp_path / "ws-state")
