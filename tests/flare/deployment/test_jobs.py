"""Job folders: generated from `jobs.yaml`, copied for strict sites, submitted with settings; their classes."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

from shared_components.cli import main
from shared_components.core.method import method_names
from shared_components.federation.messages import Job, with_changes
from shared_components.flare.deployment.job_files import described_jobs, outdated_files
from shared_components.flare.deployment.job_folder import JobFolderError, jobs_folder
from shared_components.flare.deployment.kits import ALLOW_LIST
from shared_components.flare.deployment.submission import find_job, parse_settings, production_copy, write_submission
from tests.flare.simulator import JOBS, SERVER


def args_of(job: Path) -> dict:
    return json.loads((job / SERVER).read_text())["workflows"][0]["args"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    copy = shutil.copytree(jobs_folder(), tmp_path / "nvflare_jobs")
    monkeypatch.setattr("shared_components.flare.deployment.job_folder.jobs_folder", lambda: copy)
    return copy


def test_the_committed_jobs_are_what_the_file_gives():
    assert main(["jobs", "--check"]) == 0 and outdated_files(jobs_folder()) == []


@pytest.mark.parametrize("name", described_jobs(jobs_folder()))
def test_every_row_is_a_job(name):
    written = args_of(jobs_folder() / name)
    assert written == described_jobs(jobs_folder())[name] and Job(**written).method in (name, "fedavg", "fedsam")


def test_a_changed_file_is_refused_and_written_anew(folder, capsys):
    path, before = folder / "pfedsis" / SERVER, (folder / "pfedsis" / SERVER).read_text()
    path.write_text(before.replace('"rounds": 4', '"rounds": 5'))
    (folder / "fedavg" / "meta.json").unlink()
    assert main(["jobs", "--check"]) == 2 and "run `surgfl jobs`" in capsys.readouterr().err
    assert main(["jobs"]) == 0
    assert sorted(line.rpartition("nvflare_jobs/")[2] for line in capsys.readouterr().out.splitlines()) == [
        "fedavg/meta.json: written", f"pfedsis/{SERVER}: written",
    ]  # fmt: skip
    assert path.read_text() == before and main(["jobs", "--check"]) == 0


COMMON = {
    "training": {"height": 192, "iterations": 16, "learning_rate": 0.0005, "precision": "auto"},
    "arguments": {"swa": {"start": 2, "end": 3}}, "rounds": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        ({}, {}),
        ({"training": {}}, {}),
        ({"training": {"height": 64}}, {"training": COMMON["training"] | {"height": 64}}),
        ({"arguments": {"swa": {"start": 1}}}, {"arguments": {"swa": {"start": 1, "end": 3}}}),
        ({"arguments": {"swa": None, "mu": 1}}, {"arguments": {"swa": None, "mu": 1}}),
        ({"training": {"epochs": 2, "precision": None}},
         {"training": {"height": 192, "learning_rate": 0.0005, "epochs": 2}}),
        ({"training": {"epochs": 0}}, {"training": COMMON["training"] | {"epochs": 0}}),
        ({"tasks": {"depth": {"frames": 1}}}, {"tasks": {"depth": {"frames": 1}}}),
    ],
)  # fmt: skip
def test_a_jobs_section_changes_the_entries_that_it_names_and_keeps_the_others(tmp_path, row, changed):
    rows = {name: {} for name in method_names()} | {"fedavg": row}
    (tmp_path / "jobs.yaml").write_text(json.dumps({"all": COMMON, "jobs": rows}))
    jobs = described_jobs(tmp_path)
    assert jobs["fedavg"] == {"name": "fedavg", "method": "fedavg", **COMMON, **changed}
    assert jobs["fedprox"] == {"name": "fedprox", "method": "fedprox", **COMMON}


def test_a_null_setting_means_its_default_and_iterations_replace_epochs():
    own = {"rounds": 4, "training": {"epochs": 2, "height": 64}}
    assert with_changes(own, {"rounds": None, "training": {"height": None}}) == {"training": {"epochs": 2}}
    changed = with_changes(own, {"training": {"iterations": 3}})
    assert changed["training"] == {"epochs": 0, "height": 64, "iterations": 3} and own["training"]["epochs"] == 2
    assert with_changes({}, {"training": {"epochs": 1}}) == {"training": {"epochs": 1}}
    with pytest.raises(ValueError, match="training is 3"):
        Job("a", "pvt_fpn", "fedavg", **with_changes(own, {"training": 3}))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("  fedavgg: {}\n", "fedavgg is no method"), ("  fedavg: {rouns: 3}\n", "jobs.yaml: .*fedavg.* twice"),
        ("more: {}\n", "must have the keys 'all'"), ("  - a\n", r"jobs\.yaml: "),
    ],
)  # fmt: skip
def test_a_wrong_row_is_refused(folder, capsys, row, words):
    with (folder / "jobs.yaml").open("a") as file:
        file.write(row)
    assert main(["jobs"]) == 2
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  fedavg: {}", "  fedavg: {rouns: 3}", "fedavg: unknown key 'rouns'; did you mean 'rounds'? known keys: "),
        *(
            ("  fedavg: {}", f"  fedavg:{row}", "write its settings as 'name: value'")
            for row in ("", " 3", " [rounds]")
        ),
        (None, "all: 3\njobs: {}\n", "must contain 'key: value' lines"),
        ("  fedavg: {}\n", "", "fedavg has no row; add it under 'jobs'"),
    ],
)  # fmt: skip
def test_an_unknown_key_and_a_method_without_a_row_are_refused(folder, capsys, old, new, words):
    path = folder / "jobs.yaml"
    path.write_text(path.read_text().replace(old, new) if old else new)
    assert main(["jobs"]) == 2 and words in capsys.readouterr().err


def test_a_job_without_a_card_is_refused(folder, capsys):
    (folder / "fedavg" / "README.md").unlink()
    assert main(["jobs"]) == 2 and "README.md is missing; write the job's card" in capsys.readouterr().err


@pytest.fixture
def job(tmp_path):
    return shutil.copytree(JOBS / "pfedsis", tmp_path / "pfedsis")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in JOBS.glob("*/meta.json")))
def test_every_job_here_has_a_copy_of_three_files_that_differ_in_nothing(tmp_path, name):
    copy = production_copy(JOBS / name, tmp_path / "to")
    files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert copy == tmp_path / "to" / name
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    assert all((copy / file).read_bytes() == (JOBS / name / file).read_bytes() for file in files)
    assert not (copy / "app" / "custom").exists() and os.listdir(tmp_path / "to") == [name]


@pytest.mark.parametrize(
    ("file", "words"),
    [(file, "every party refuses a job with this file; remove it")
     for file in ("config/custom/a.py", "config/config_fed_client.conf", "README.md", "x/y.json")]
    + [(file, "is code, which a strict site refuses")
       for file in ("custom/net.py", "custom/deep/er.txt", "custom/.gitkeep")],
)  # fmt: skip
def test_a_job_with_other_files_or_with_code_has_no_copy(job, tmp_path, file, words):
    (job / "app" / file).parent.mkdir(parents=True, exist_ok=True)
    (job / "app" / file).write_text("1")
    with pytest.raises(JobFolderError, match=f"{file}: {words}"):
        production_copy(job, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_links_and_special_files_are_refused(job, tmp_path):
    (job / "app/config/secret").symlink_to("/etc/hostname")
    with pytest.raises(JobFolderError, match="secret: is a link"):
        production_copy(job, tmp_path / "to")
    (job / "app/config/secret").unlink()
    os.mkfifo(job / "app/config/pipe")
    with pytest.raises(JobFolderError, match="pipe: is a link or a special file"):
        production_copy(job, tmp_path / "to")


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "meta.json does not exist"), ("{", "cannot be read as JSON"), ("[]", "it is a JSON list, not an object"),
        ('{"name": NaN}', "it contains NaN"),
        ('{"name": "a", "name": "b"}', "it has the key 'name' twice"),
        ('{"deploy_map": 3}', "has no deploy_map"),
        ('{"deploy_map": {"other": ["@ALL"]}}', "names 'other', no folder of the job"),
        ('{"deploy_map": {"../pfedsis/app": ["@ALL"]}}', "no folder of the job"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_job_is_refused(job, tmp_path, meta, words):
    (job / "meta.json").unlink() if meta is None else (job / "meta.json").write_text(meta)
    with pytest.raises(JobFolderError, match=words):
        production_copy(job, tmp_path / "to")


def test_a_copy_overwrites_nothing(job, tmp_path):
    copy = production_copy(job, tmp_path / "to")
    (copy / "meta.json").write_text(json.dumps({"mine": 1}))
    with pytest.raises(JobFolderError, match="exists already"):
        production_copy(job, tmp_path / "to")
    assert json.loads((copy / "meta.json").read_text()) == {"mine": 1}


def test_settings_replace_the_jobs_own_key_by_key(tmp_path):
    before = (JOBS / "pfedsis" / SERVER).read_bytes()
    settings = parse_settings(["rounds=7", "training.iterations=3", "min_sites=2"])
    copy = write_submission(JOBS / "pfedsis", tmp_path, settings=settings)
    args = args_of(copy)
    assert (args["rounds"], args["min_sites"], args["training"]["iterations"]) == (7, 2, 3)
    assert args["training"]["height"] == 192, "the job's own stays"
    assert "resume" not in args and not (copy / "app" / "custom").exists()
    assert (JOBS / "pfedsis" / SERVER).read_bytes() == before


def test_a_resume_is_the_submissions_own_and_not_the_jobs(tmp_path):
    first = write_submission(JOBS / "fedavg", tmp_path / "a", resume="latest")
    assert args_of(first)["resume"] == "latest"
    assert "resume" not in args_of(write_submission(first, tmp_path / "b"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["rounds"], "--set rounds: is no setting"), (["=3"], "--set =3: is no setting"),
        (["training..height=3"], "--set training..height=3: is no setting"),
        (["rounds=3", "rounds=4"], "--set rounds=4: rounds is given twice"),
        (["training=3", "training.height=4"], "--set training.height=4: training is given twice"),
        (["rounds=["], "--set rounds=[: the value is not valid YAML"),
        # as the server would refuse them
        (["rounds=0"], "rounds is 0"), (["rounds=three"], "rounds is 'three'"), (["round=3"], "unknown key 'round'"),
        (["training.hight=32"], "hight"), (["name=../up"], "is no folder name"), (["bundle=nothing"], "nothing"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_before_it_is_sent(tmp_path, given, words):
    with pytest.raises(ValueError) as error:
        write_submission(JOBS / "fedavg", tmp_path, settings=parse_settings(given))
    assert words in str(error.value)


def test_a_job_is_found_by_its_name_and_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_job("pfedsis") == JOBS / "pfedsis"
    assert find_job(str(JOBS / "fedavg")) == JOBS / "fedavg"
    with pytest.raises(ValueError, match=r"nosuch: is no job folder .* or one of .*fedavg, "):
        find_job("nosuch")


def test_a_job_of_another_project_is_refused(tmp_path):
    job = tmp_path / "other"
    (job / "app" / "config").mkdir(parents=True)
    (job / "meta.json").write_text('{"name": "other", "deploy_map": {"app": ["@ALL"]}}')
    with pytest.raises(ValueError, match=r"has 0 files config_fed_server\.json"):
        write_submission(job, tmp_path / "a")
    (job / SERVER).write_text('{"workflows": []}')
    with pytest.raises(ValueError, match="is not from SurgFL"):
        write_submission(job, tmp_path / "b")


def classes_of(value):
    """Yield every class that a config names, however deep."""
    if isinstance(value, dict):
        yield from (value[key] for key in ("path", "class_path") if key in value)
        for item in value.values():
            yield from classes_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from classes_of(item)


@pytest.mark.parametrize("side", ["server", "client"])
def test_the_allow_list_is_the_union_of_the_classes_in_all_jobs(side):
    configs = sorted(JOBS.glob(f"*/app/config/config_fed_{side}.json"))
    named = {name for path in configs for name in classes_of(json.loads(path.read_text()))}
    listed = json.loads(ALLOW_LIST.read_text())[side]["class_allow_list"]
    assert len(configs) == len(list(JOBS.glob("*/meta.json"))) > 20
    assert sorted(named) == listed


@pytest.mark.parametrize("side", ["server", "client"])
def test_flare_allows_the_listed_classes_and_no_others(side, tmp_path):
    listed = json.loads(ALLOW_LIST.read_text())
    mode, resources = "class_list_enforcement_mode", tmp_path / "resources.json"
    resources.write_text(json.dumps({mode: listed[mode], **listed[side]}))
    place = SimpleNamespace(get_resources_file_path=lambda: str(resources))
    for name in listed[side]["class_allow_list"]:
        ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=place)
    for name in ("shared_components.flare.filters.Other", "nvflare.app_common.np.np_trainer.NPTrainer", "os.system"):
        with pytest.raises(Exception, match="is not in allow_list"):
            ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=place)
